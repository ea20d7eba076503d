"""The files of a job, and what one sees of them."""
