"""Tests of causes: does a change of the agent help, and is a run worth believing?"""
