"""Executors beside the local one: Ray."""
