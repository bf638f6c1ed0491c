"""Agents: what is under test, each kind in a module of its own.

Start at `Agent` and `AgentConfig` in `base`; `registry` finds agents by name or kind.
"""
