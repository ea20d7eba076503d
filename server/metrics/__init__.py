"""What ``GET /metrics`` of the server says."""
