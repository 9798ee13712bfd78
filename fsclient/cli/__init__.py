"""The commands that people type: braidfs, and the helper of mount(8)."""
