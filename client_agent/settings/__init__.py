"""What an operator decides about the agent."""
