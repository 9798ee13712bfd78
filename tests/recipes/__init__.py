"""Each recipe of the pages for training runs here as its page has it."""
