"""Export results to files for other programs, and import results of other programs."""
