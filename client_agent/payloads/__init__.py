"""What the agent remembers of its payloads: all its SQL."""
