"""Trials on workers of Ray, on this machine or on many.

The driver keeps everything that makes a run a run; workers perform single trials and say what
they came to. See `workforce` for how it is put together.
"""
