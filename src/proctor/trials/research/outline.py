"""What research comes to for the selected cases and agents; kept whole in the run folder.

Promise: lossless through the spec of a run, so that the same rounds unfold on resume and rerun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from proctor.spec.research import Research


class Stage(NamedTuple):
    """A level with its cases found and its parameters checked; `value` is its place on the scale:
    that of the parameter, else 1 for the first level, 2 for the second, …"""

    name: str
    cases: tuple[str, ...]
    params: dict[str, Any]
    value: float


class Variant(NamedTuple):
    """The whole without one thing: another agent, or the same under other parameters."""

    without: str
    agent: str
    params: dict[str, Any]


@dataclass(frozen=True)
class Outline:
    """Research made ready to be planned."""

    research: Research
    stages: tuple[Stage, ...] = ()
    whole: str | None = None
    """Ablation: the agent that has everything."""
    variants: tuple[Variant, ...] = ()
    space: Mapping[str, Any] | None = None
    """tpe: the axes to choose along, as they are written, values checked."""

    def record(self) -> dict[str, Any]:
        """What the run folder keeps of it."""
        told = self.research.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        return {
            **told,
            **({"stages": [_listed(stage) for stage in self.stages]} if self.stages else {}),
            **({"whole": self.whole} if self.whole is not None else {}),
            **({"variants": [_listed(each) for each in self.variants]} if self.variants else {}),
            **({"space": dict(self.space)} if self.space is not None else {}),
        }

    @classmethod
    def restored(cls, record: Mapping[str, Any]) -> Outline:
        """The outline of a run folder."""
        own = ("stages", "whole", "variants", "space")
        told = {key: value for key, value in record.items() if key not in own}
        return cls(
            research=Research.model_validate(told),
            stages=tuple(
                Stage(each["name"], tuple(each["cases"]), dict(each["params"]), each["value"])
                for each in record.get("stages") or ()
            ),
            whole=record.get("whole"),
            variants=tuple(Variant(**each) for each in record.get("variants") or ()),
            space=record.get("space"),
        )


def _listed(each: Stage | Variant) -> dict[str, Any]:
    written: dict[str, Any] = each._asdict()
    return {**written, "cases": list(each.cases)} if isinstance(each, Stage) else written
