"""What runs all the time: the loops, what wakes them, and their supervisor."""
