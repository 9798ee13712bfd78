"""The client: mounts BraidFS. Python decides here; file bytes stay in the native lanes."""
