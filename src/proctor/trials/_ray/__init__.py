"""Trials on Ray workers, on this machine or on many.

The driver keeps the journal, the limits and the checkpoints (`executor`); a worker runs single
trials and returns their results (`worker`).
"""
