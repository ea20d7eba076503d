"""The server's settings: read once, frozen. Reference: ``docs/operate.md``."""
