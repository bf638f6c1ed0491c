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
from proctor.trials.plan import Plan
from proctor.trials.prepare import RunContext

KEPT_SETTINGS = ("judge", "prices", "redaction")
"""Settings that change results; limits are among the options, agents in the suite."""


def spec_record(context: RunContext) -> dict[str, Any]:
    """What the folder keeps so that the run can be resumed and repeated."""
    suite = context.suite
    redact = (context.redactor or default_redactor()).value
    return {
        "run_id": new_run_id(),
        "name": context.name,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "provenance": provenance(suite.folder),
        "base_dir": str(suite.folder.resolve()),
        "options": context.options.record(),
        "agents": {
            name: redact(
                {**config.model_dump(mode="json", exclude_none=True), "version": config.version()}
            )
            for name, config in context.agents.items()
        },
        "settings": settings_record(context.configuration),
        **({} if context.design is None else {"experiment": context.design.record()}),
        "suite": suite_record(context),
        "cells": context.plan.record(),
        "stopped": None,
    }


def memory_record(context: RunContext, plan: Plan, stopped: str | None) -> dict[str, Any]:
    """Return what reports read of a run that is not kept; provenance would cost more than it."""
    return {
        "run_id": new_run_id(),
        "name": context.name,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "options": context.options.record(),
        "suite": suite_record(context),
        "cells": plan.record(),
        "stopped": stopped,
    }


def settings_record(configuration: Configuration) -> dict[str, Any]:
    """The settings a run depends on, as they were written: no secret is in them."""
    found = {key: configuration.tree.child(key) for key in KEPT_SETTINGS}
    return _without_secrets(
        {key: plain(tree, as_written=True) for key, tree in found.items() if tree is not None}
    )


def suite_record(context: RunContext) -> dict[str, Any]:
    """The suite as it ran: the cases that were chosen and the agents they were put to."""
    return chosen_record(context, _without_secrets(context.written))


def chosen_record(context: RunContext, agents: Mapping[str, Any]) -> dict[str, Any]:
    """The suite with the cases that were chosen and these agents, as written."""
    whole = context.suite.resolved()
    cases = [
        written
        for case, written in zip(context.suite.cases, whole["cases"], strict=True)
        if case.id in context.cases
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
