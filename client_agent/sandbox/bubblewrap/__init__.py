"""The default backend: bubblewrap, its options, and the filter of system calls."""
