"""The trash: names that were removed are kept for a while (docs/decisions/0021-trash.md)."""
