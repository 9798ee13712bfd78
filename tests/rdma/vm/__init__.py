"""A machine with RDMA for tests: Soft-RoCE in a qemu guest over this host's own root."""
