"""Leases: what this client may believe without asking, and how it gives that up."""
