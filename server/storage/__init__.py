"""Stored files and scratch files, in a folder of the server."""
