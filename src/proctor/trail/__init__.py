"""TRAIL experiments: a detector of errors put to traces with gold, as a run like any other.

A trace is a case, a way of diagnosing is the agent, the share of gold pairs it found the score.
So experiments resume, run side by side, keep their cost and can be queried as all runs can.
"""
