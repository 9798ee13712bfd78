"""The commands of `./dev`, one module each; `__main__` is their command line."""
