"""The learned detector: features of spans, the shipped model, and how its chances become findings.

Nothing here imports numpy before a trace is diagnosed.
"""
