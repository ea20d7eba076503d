"""What the server knows about jobs, without clock or I/O."""
