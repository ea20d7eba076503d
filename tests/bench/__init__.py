"""Measures the numbers of ``docs/performance.md``: ``make bench``."""
