"""Tests of braidfs.checkpoint.torch. They run where torch is: tests/integration/test_torch.py, in
the long form, starts them in an environment that has it."""
