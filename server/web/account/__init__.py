"""Login, and what is one's own."""
