"""The operations of the metaserver, each in a file that ends with its row (metaserver.ops.row)."""
