"""The default backend: what bubblewrap is asked for, and which system calls are refused."""
