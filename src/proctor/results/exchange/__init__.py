"""Results in and out: files that other programs read, and results that other programs made."""
