"""Model traffic: what an agent sends to its model, seen without instrumentation of the agent."""
