"""``ferryman bench``: puts load on a server and measures what becomes of it."""
