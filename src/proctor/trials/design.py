"""What an experiment adds to a suite: axes, scenarios, and where each case came from.

Promise: lossless through the run folder's spec, so that a run is resumed and repeated from its
folder alone. Templates are kept whole, with everything they include.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from proctor.runs.folder import OUTPUT
from proctor.trials.axes import Axes
from proctor.trials.kept_templates import restored_scenarios, scenarios_record
from proctor.trials.research.outline import Outline
from proctor.trials.staging import Scenario


class Origin(NamedTuple):
    """The suite a case was taken from: what its import paths and baselines start from."""

    folder: Path
    baselines: Path

    def record(self) -> dict[str, str]:
        """What the run folder keeps of it."""
        return {"folder": str(self.folder), "baselines": str(self.baselines)}


@dataclass(frozen=True)
class Design:
    """An experiment made ready to be planned."""

    name: str
    axes: Axes
    output: str = OUTPUT
    description: str | None = None
    scenarios: Mapping[str, Scenario] = field(default_factory=dict[str, Scenario])
    """By case id; the other cases are those of suites."""
    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])
    """By case id, of those that come from suites."""
    research: Outline | None = None
    """How trials are chosen from results so far, where not all are planned beforehand."""

    def record(self) -> dict[str, Any]:
        """What the run folder keeps of it."""
        return {
            "name": self.name,
            **({"description": self.description} if self.description else {}),
            "output": self.output,
            **self.axes.record(),
            "scenarios": scenarios_record(self.scenarios),
            "origins": {case: origin.record() for case, origin in sorted(self.origins.items())},
            **({} if self.research is None else {"research": self.research.record()}),
        }

    @classmethod
    def restored(cls, record: Mapping[str, Any]) -> Design:
        """The design of a run folder."""
        origins: Mapping[str, Mapping[str, str]] = record.get("origins") or {}
        return cls(
            name=str(record["name"]),
            axes=Axes.restored(record),
            output=str(record.get("output", OUTPUT)),
            description=record.get("description"),
            scenarios=restored_scenarios(record.get("scenarios") or {}),
            origins={
                case: Origin(Path(each["folder"]), Path(each["baselines"]))
                for case, each in origins.items()
            },
            research=Outline.restored(record["research"]) if "research" in record else None,
        )
