"""What the agent says about itself and its payloads."""
