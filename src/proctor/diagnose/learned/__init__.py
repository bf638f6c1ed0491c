"""The learned detector: features of spans, the shipped model, and probabilities turned into
findings.

Nothing here imports numpy before a trace is diagnosed.
"""
