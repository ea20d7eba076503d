"""How an attempt comes in: whether it may be taken, and its bundle sealed on disk."""
