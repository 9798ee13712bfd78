"""Leases: what this client may cache, and how it gives that up."""
