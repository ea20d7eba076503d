"""What server and agent have in common; imports neither."""
