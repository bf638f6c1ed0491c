"""Runs: what is kept of trials, where, and how it is read back.

`RunFolder` owns the folder, `Journal` and `segments` its two growing files, `Run` reads it.
"""
