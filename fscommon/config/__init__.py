"""Configuration of the programs: TOML files and mount options."""
