"""How a bundle is run without trusting it."""
