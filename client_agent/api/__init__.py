"""HTTP: the routes, and the replies to failed requests."""
