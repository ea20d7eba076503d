"""How a payload is run: slots, and the way of one attempt from its bundle to its end."""
