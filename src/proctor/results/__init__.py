"""Results of any number of runs: queried, counted, exchanged."""
