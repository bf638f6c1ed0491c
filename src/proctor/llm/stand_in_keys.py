"""Keys for calls that are replayed: clients want one before they ask, though nobody is asked.

Promise: keys that are set are left alone, and stand-ins are gone when the replay ends. They say
what they are, because a program that is started meanwhile may send one to a provider.
"""

from __future__ import annotations

import os

STAND_IN = "replayed-without-a-key"

_KEYS = (
    ("OPENAI_API_KEY",),
    ("ANTHROPIC_API_KEY",),
    ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    ("AZURE_OPENAI_API_KEY",),
    ("CEREBRAS_API_KEY",),
    ("CO_API_KEY",),
    ("DEEPSEEK_API_KEY",),
    ("FIREWORKS_API_KEY",),
    ("GROQ_API_KEY",),
    ("HF_TOKEN",),
    ("MISTRAL_API_KEY",),
    ("OPENROUTER_API_KEY",),
    ("TOGETHER_API_KEY",),
    ("XAI_API_KEY",),
)
"""Variables that clients read by themselves; of those that mean the same, one is enough."""


class StandInKeys:
    """Stand-ins in the environment of this process, from `put` to `remove`."""

    def __init__(self) -> None:
        self._put: list[str] = []

    def put(self) -> None:
        """Set every key that is not set."""
        for names in _KEYS:
            if not any(os.environ.get(name) for name in names):
                os.environ[names[0]] = STAND_IN
                self._put.append(names[0])

    def remove(self) -> None:
        """Take away those put here; one that was set anew meanwhile stays."""
        for name in self._put:
            if os.environ.get(name) == STAND_IN:
                del os.environ[name]
        self._put.clear()
