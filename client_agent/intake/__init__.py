"""Accepting attempts: the checks, and storing the bundle."""
