"""Posting webhooks."""
