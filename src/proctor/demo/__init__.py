"""The agents, tools and cases of `proctor demo`: a small bicycle shop and two of its clerks.

Nothing in here is known to the rest of Proctor, which runs it as it runs anybody's suite.
"""
