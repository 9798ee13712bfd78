"""The only package of BraidFS that imports pyfuse3."""
