"""Attempts that run one after the other in one sandbox start."""
