"""Requests and replies over one stream of frames."""
