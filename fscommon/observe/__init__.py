"""What is seen from outside: structured logs and metrics."""
