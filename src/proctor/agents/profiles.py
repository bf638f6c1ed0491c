"""Agents that come with Proctor, by name: common models as they are, and the built-ins.

A profile is what a user would write in `agents:`; an agent of the same name there takes its
place. Keys stay in the providers' usual environment variables.
"""

from __future__ import annotations

from typing import Any

_MODELS = (
    "openai:gpt-4o",
    "openai:gpt-4o-mini",
    "openai:gpt-4.1",
    "openai:gpt-4.1-mini",
    "openai:gpt-5",
    "openai:gpt-5-mini",
    "openai:gpt-5-nano",
    "openai:gpt-5.2",
    "openai:o4-mini",
    "anthropic:claude-opus-4-5",
    "anthropic:claude-opus-4-6",
    "anthropic:claude-sonnet-4-5",
    "anthropic:claude-sonnet-4-6",
    "anthropic:claude-haiku-4-5",
    "google:gemini-2.5-pro",
    "google:gemini-2.5-flash",
    "deepseek:deepseek-chat",
    "mistral:mistral-large-latest",
    "groq:llama-3.3-70b-versatile",
)
"""In the names of their providers; the profile is called by the part after the colon."""

PROFILES: dict[str, dict[str, Any]] = {
    **{name.partition(":")[2]: {"kind": "chat", "model": name} for name in _MODELS},
    "smollm2": {"kind": "chat", "model": "local:smollm2", "max_tokens": 256},
    "random": {"kind": "random"},
    "human": {"kind": "human"},
    "scripted": {"kind": "scripted"},
}
"""Name → options. `scripted` without a script follows the solution that a scenario declares."""
