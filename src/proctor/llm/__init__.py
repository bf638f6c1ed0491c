"""Language models: one small protocol to ask them, prices, and a scripted server for tests.

Nothing here knows of agents, checks or runs. Start at `get_model`, `ChatRequest` and `MockLLM`;
names are imported when first used, because clients and price tables are slow to load.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proctor.llm.base import (
        ChatModel,
        ChatReply,
        ChatRequest,
        ModelError,
        ModelErrorKind,
        TokenUsage,
        ToolSpec,
    )
    from proctor.llm.local import LocalModel
    from proctor.llm.mock import MockLLM
    from proctor.llm.prices import PriceTable, cost_usd
    from proctor.llm.providers import get_model

__all__ = [
    "ChatModel",
    "ChatReply",
    "ChatRequest",
    "LocalModel",
    "MockLLM",
    "ModelError",
    "ModelErrorKind",
    "PriceTable",
    "TokenUsage",
    "ToolSpec",
    "cost_usd",
    "get_model",
]

_HOME_OF = {
    "ChatModel": "proctor.llm.base",
    "ChatReply": "proctor.llm.base",
    "ChatRequest": "proctor.llm.base",
    "LocalModel": "proctor.llm.local",
    "MockLLM": "proctor.llm.mock",
    "ModelError": "proctor.llm.base",
    "ModelErrorKind": "proctor.llm.base",
    "PriceTable": "proctor.llm.prices",
    "TokenUsage": "proctor.llm.base",
    "ToolSpec": "proctor.llm.base",
    "cost_usd": "proctor.llm.prices",
    "get_model": "proctor.llm.providers",
}
"""Public name → the module that defines it."""


def __getattr__(name: str) -> Any:
    """Import a public name from its home and remember it here (PEP 562)."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'proctor.llm' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
