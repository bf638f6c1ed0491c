"""The agents, tools and cases of `proctor demo`: a small bicycle shop and two of its clerks.

The rest of Proctor does not know this package, and runs it as it runs any user's suite.
"""
