"""What the programs of BraidFS must agree on, and the layers below them."""
