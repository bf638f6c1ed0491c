"""Data that ships with Proctor: a trace made up for looking at (no real customer, no real shop)."""

from importlib.resources import files
from importlib.resources.abc import Traversable


def example_trace() -> Traversable:
    """A support agent answers a question: planning, model calls, a failing tool, documents."""
    return files(__name__) / "support_agent.json"
