"""The command line: one module per command, each a thin skin over the public API."""
