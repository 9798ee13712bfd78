"""The users' package, without a mount."""
