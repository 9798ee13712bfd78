"""The mutual handshake that starts every connection, without I/O."""
