"""Talking to agents over HTTP."""
