"""``ferryman agent check``: tests whether each limit of the sandbox works on this host."""
