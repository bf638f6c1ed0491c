"""What a run's folder keeps of suite, agents and settings, so that it can be resumed and repeated.

Promise: no secret is in it; what was written as a reference to a variable stays one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from proctor.runs.provenance import new_run_id, provenance
from proctor.spec import Configuration
from proctor.spec.located import plain
from proctor.trace.redact import default_redactor
from proctor.trials.prepare import RunContext

KEPT_SETTINGS = ("judge", "prices", "redaction")
"""Settings that change results; limits are among the options, agents in the suite."""


def spec_record(ready: RunContext) -> dict[str, Any]:
    """What the folder keeps so that the run can be resumed and repeated."""
    suite = ready.suite
    redact = (ready.redactor or default_redactor()).value
    return {
        "run_id": new_run_id(),
        "name": ready.name,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "provenance": provenance(suite.folder),
        "base_dir": str(suite.folder.resolve()),
        "options": ready.options.record(),
        "agents": {
            name: redact(
                {**config.model_dump(mode="json", exclude_none=True), "version": config.version()}
            )
            for name, config in ready.agents.items()
        },
        "settings": settings_record(ready.configuration),
        **({} if ready.design is None else {"experiment": ready.design.record()}),
        "suite": suite_record(ready),
        "cells": ready.plan.record(),
        "stopped": None,
    }


def settings_record(configuration: Configuration) -> dict[str, Any]:
    """The settings a run depends on, as they were written: no secret is in them."""
    found = {key: configuration.tree.child(key) for key in KEPT_SETTINGS}
    return _without_secrets(
        {key: plain(tree, as_written=True) for key, tree in found.items() if tree is not None}
    )


def suite_record(ready: RunContext) -> dict[str, Any]:
    """The suite as it ran: the cases that were chosen and the agents they were put to."""
    return chosen_record(ready, _without_secrets(ready.written))


def chosen_record(ready: RunContext, agents: Mapping[str, Any]) -> dict[str, Any]:
    """The suite with the cases that were chosen and these agents, as written."""
    whole = ready.suite.resolved()
    cases = [
        written
        for case, written in zip(ready.suite.cases, whole["cases"], strict=True)
        if case.id in ready.cases
    ]
    rest = {key: value for key, value in whole.items() if key not in ("agent", "agents", "cases")}
    return {**rest, "agents": agents, "cases": cases}


def _without_secrets(value: Any) -> Any:
    """What somebody wrote, with secrets out of it; references to variables hold none."""
    if isinstance(value, dict):
        options = cast("dict[str, Any]", value)
        return {key: _without_secrets(item) for key, item in options.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(item) for item in cast("list[Any]", value)]
    return default_redactor().text(value) if isinstance(value, str) else value
