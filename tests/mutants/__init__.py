"""Proof that the tests notice: each protection is taken out in turn, and a test must fail."""
