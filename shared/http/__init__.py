"""The HTTP side that server and agent have in common: who may come in, from where, how fast."""
