"""The stored payloads: all SQL of the agent."""
