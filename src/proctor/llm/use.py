"""What asking models took, added up over calls.

An unknown sum is None and never 0; calls without a known price are counted beside the cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proctor.llm.base import ChatReply


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What asking took. `unpriced` calls are not in `cost_usd`; what no reply told is None.

    `calls` counts replies received, repairs included; `cached` answers cost nothing now.
    """

    calls: int = 0
    cached: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    unpriced: int = 0

    @classmethod
    def of(cls, replies: Iterable[ChatReply]) -> ModelUse:
        """What these replies took."""
        total = NOTHING
        for reply in replies:
            total += cls(
                calls=1,
                input_tokens=reply.usage.input_tokens,
                output_tokens=reply.usage.output_tokens,
                cost_usd=reply.cost_usd,
                unpriced=int(reply.cost_usd is None),
            )
        return total

    def __add__(self, other: ModelUse) -> ModelUse:
        """Both together."""
        return ModelUse(
            self.calls + other.calls,
            self.cached + other.cached,
            _plus(self.input_tokens, other.input_tokens),
            _plus(self.output_tokens, other.output_tokens),
            _plus(self.cost_usd, other.cost_usd),
            self.unpriced + other.unpriced,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return asdict(self)


NOTHING = ModelUse()
"""What an answer costs that nobody was asked about."""


def _plus(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return a + b
