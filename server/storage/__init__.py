"""Sealed files on disk."""
