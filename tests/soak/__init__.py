"""Hours of jobs while everything is killed, restarted, reloaded, drained and restored."""
