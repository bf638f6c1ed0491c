"""Estimators, intervals, comparisons, sequential tests and planning: pure functions on counts.

Every result names its estimand, its n and its method. Nothing here reads a file or knows a run,
and numpy is imported only by the functions that need it.
"""
