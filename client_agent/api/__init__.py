"""The HTTP side: routes, and what goes wrong as an answer."""
