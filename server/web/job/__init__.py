"""The pages of one job."""
