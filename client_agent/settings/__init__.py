"""The agent's settings."""
