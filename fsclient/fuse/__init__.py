"""The one door to pyfuse3: nothing else in BraidFS imports it."""
