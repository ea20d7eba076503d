"""``ferryman agent check``: whether each limit of the sandbox holds on this host."""
