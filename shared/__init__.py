"""What server, agent and SDK have in common; imports none of them."""
