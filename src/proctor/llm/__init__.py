"""Language models: one small client protocol, prices, and a scripted server for tests.

Independent of agents, checks and runs. Start at `get_model`, `ChatRequest` and `MockLLM`; names are
imported on first use, because clients and price tables are slow to load.
"""

from typing import TYPE_CHECKING

from proctor._lazy import imported_when_used

if TYPE_CHECKING:
    from proctor.llm.chat_model import (
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

# Public name → the module that defines it.
_HOME_OF = dict.fromkeys(__all__, "proctor.llm.chat_model") | {
    "LocalModel": "proctor.llm.local",
    "MockLLM": "proctor.llm.mock",
    "PriceTable": "proctor.llm.prices",
    "cost_usd": "proctor.llm.prices",
    "get_model": "proctor.llm.providers",
}

if not TYPE_CHECKING:  # without this guard a type checker would accept any attribute name
    __getattr__, __dir__ = imported_when_used(__name__, _HOME_OF, globals())
