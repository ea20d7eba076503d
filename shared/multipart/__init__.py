"""Multipart forms, received with flat memory and refused by name."""
