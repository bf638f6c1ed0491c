"""Diagnosis: what broke in a trace, where, and how well a detector tells it.

The taxonomy and the scorer depend on nothing but the standard library.
"""
