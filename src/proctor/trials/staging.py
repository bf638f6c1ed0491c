"""Scenarios as cases: selected like cases, built for each seed and parameters, played or asked.

Promise: what a trial is put to depends on the template, the seed of the experiment and the
parameters alone. An agent sees what is visible of the scenario, never its parameters or truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from proctor.spec import Case, Configuration
from proctor.trials.perform import PreparedCase


class About(NamedTuple):
    """What a scenario can be selected by."""

    tags: tuple[str, ...] = ()
    difficulty: str | None = None
    type: str | None = None
    properties: dict[str, Any] = {}


class Scenario(NamedTuple):
    """A scenario of the catalog, selected."""

    id: str
    template: Any
    about: About
    overrides: Mapping[str, Any] = {}

    def placeholder(self) -> dict[str, Any]:
        return {"id": self.id}


class ScenarioPool:
    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def select(self, text: str) -> list[Scenario]:
        return []

    def has(self, name: str) -> bool:
        return False

    def scope(self, name: str) -> list[Scenario]:
        return []

    def names(self) -> list[str]:
        return []


def staged_case(scenario: Scenario, case: Case) -> PreparedCase:
    raise NotImplementedError


def scenarios_record(scenarios: Mapping[str, Scenario]) -> dict[str, Any]:
    return {}


def restored_scenarios(record: Mapping[str, Any]) -> dict[str, Scenario]:
    return {}


def checked_parameters(
    experiment: Any, fixed: Mapping[str, Any], scenarios: Mapping[str, Scenario]
) -> dict[str, Any]:
    return dict(fixed)
