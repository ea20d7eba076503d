"""Sealed bundles: their format, written while files stream in, read, unpacked."""
