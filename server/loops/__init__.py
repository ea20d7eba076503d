"""What runs all the time: sweeps that wake on bells, and their supervisor."""
