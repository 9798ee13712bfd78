"""The client's session with the metaserver: a sans-IO core and the trio rim around it."""
