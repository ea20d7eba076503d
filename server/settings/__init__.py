"""The server's settings: read once, frozen. Reference: ``docs/operator-guide.md``."""
