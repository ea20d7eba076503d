"""What the test of the engine takes apart."""
