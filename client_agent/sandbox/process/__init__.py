"""The processes of one attempt: how they are started, supervised and ended."""
