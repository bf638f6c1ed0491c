"""How a check is declared, and what it is given.

A check is one function `(options, context) -> Outcome`: `options` is the layer the user wrote
(so that a check sees its neighbours, such as a match mode), `context` is what happened. Declaring
it with `@check` next to the field of the same name in the layer's options is all there is to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from proctor.checks.result import Layer, Outcome
from proctor.trace import Trace

if TYPE_CHECKING:
    from proctor.checks.judge import Judge  # noqa: TC004 (contexts are never read from JSON)

Outcomes = Outcome | Iterable[tuple[str, Outcome]]
"""One outcome, or several of one check, each under a name of its own."""

CheckFunction = Callable[[Any, "CheckContext"], Outcomes | Awaitable[Outcomes]]


class CheckContext(msgspec.Struct, eq=False):
    """What a check may look at: the case, what the agent did and said, and what it did before.

    `case` is the `proctor.spec.Case`; `baseline` is the trace saved for it, if any; `judges` are
    the configured LLM judges by name ("default" where a check names none).
    """

    case: Any
    trace: Trace
    answer: str
    baseline: Trace | None = None
    judges: Mapping[str, Judge] = {}

    @property
    def input(self) -> Any:
        """What the agent was asked."""
        return self.case.input


class CheckKind(NamedTuple):
    """A kind of check: where it belongs, whether a failure blocks, whether it asks a judge."""

    name: str
    layer: Layer
    run: CheckFunction
    blocking: bool
    judged: bool


CHECKS: dict[Layer, dict[str, CheckKind]] = {layer: {} for layer in Layer}
"""Every built-in check by layer and name, in the order they are judged."""


def check(
    layer: Layer, *, blocking: bool | None = None, judged: bool = False
) -> Callable[[CheckFunction], CheckFunction]:
    """Declare a function as the check of its own name.

    A failure blocks in the correctness layer and warns in the others unless `blocking` says
    otherwise. `judged` checks ask an LLM and run only while nothing blocking has failed.
    """

    def declare(function: CheckFunction) -> CheckFunction:
        blocks = layer == Layer.CORRECTNESS if blocking is None else blocking
        name = function.__name__
        CHECKS[layer][name] = CheckKind(name, layer, function, blocks, judged)
        return function

    return declare
