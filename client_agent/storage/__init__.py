"""The agent's files on disk, and safe ways to open and remove files of jobs."""
