"""The client's session with the metaserver: a core without I/O, and its connections in trio."""
