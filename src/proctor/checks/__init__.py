"""Checks: was what the agent did, and answered, right?"""
