"""The processes of one attempt: started, watched, and dead for certain."""
