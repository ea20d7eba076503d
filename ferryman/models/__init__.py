"""The documents that a server and its clients exchange, exactly as they are on the wire."""
