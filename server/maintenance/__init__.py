"""Backup and restore: programs of their own beside the server."""
