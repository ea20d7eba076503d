"""Measures the numbers of DESIGN §10: ``make bench``."""
