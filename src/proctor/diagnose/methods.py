"""Every way to diagnose a trace, by name: without a model, or with one.

`proctor.diagnose(trace)` is this module's `diagnose`. A method that asks a model is given the
offline findings as leads and falls back to them, so it always has an answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from proctor.diagnose.api import METHODS as OFFLINE
from proctor.diagnose.api import diagnose as offline_diagnosis
from proctor.errors import ProctorError, hint_among

if TYPE_CHECKING:
    from proctor.diagnose.finding import Diagnosis
    from proctor.diagnose.llm.detector import DetectorOptions
    from proctor.llm.chat_model import ChatModel
    from proctor.trace import Trace

ASKED = {"single_pass": "single_pass", "agentic": "agentic", "on": "agentic"}
"""Names users write of methods that ask a model, and the method each stands for."""

METHODS = (*OFFLINE, *ASKED)


def asking(model: ChatModel | str | None, **how: Any) -> DetectorOptions:
    """How a model is asked, from its name or itself; see `DetectorOptions` for the options."""
    from proctor.diagnose.llm.detector import DetectorOptions
    from proctor.llm.providers import get_model

    if model is None:
        raise ProctorError(
            "this method asks a model, and none is named",
            hint="name one, such as openai:gpt-4o-mini; the method `offline` needs none",
        )
    return DetectorOptions(model=get_model(model) if isinstance(model, str) else model, **how)


async def adiagnose(
    trace: Trace, method: str = "offline", how: DetectorOptions | None = None
) -> Diagnosis:
    """Find what broke in a trace; `how` says which model is asked, for methods that ask one."""
    if not asks(method):
        return offline_diagnosis(trace, method)
    from proctor.diagnose.llm import detector

    look = detector.agentic if ASKED[method] == "agentic" else detector.single_pass
    return await look(trace, how or asking(None), offline_diagnosis(trace, "offline"))


def diagnose(
    trace: Trace, method: str = "offline", *, model: ChatModel | str | None = None, **how: Any
) -> Diagnosis:
    """Find what broke in a trace: findings, scores, how sure, how long it took.

    `model` and further options (`DetectorOptions`) are for methods that call a model. Inside a
    running event loop use `await adiagnose(...)` for those.
    """
    if not asks(method):
        return offline_diagnosis(trace, method)
    return asyncio.run(adiagnose(trace, method, asking(model, **how)))


def asks(method: str) -> bool:
    """Whether a method asks a model; an unknown name is an error with all that there are."""
    if method not in METHODS:
        raise ProctorError(
            f"unknown method {method!r} of diagnosis",
            hint=hint_among(method, METHODS),
        )
    return method in ASKED
