"""What the agent reports about itself and its payloads."""
