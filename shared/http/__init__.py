"""HTTP as server and agent have it in common: listening, connections, authentication, origins."""
