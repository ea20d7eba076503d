"""The log of a job."""
