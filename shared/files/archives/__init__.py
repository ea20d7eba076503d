"""Strict readers of the archives that users send: ZIP and tar."""
