"""A run as one JSON document: what `results.json` has, the totals, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from proctor.trials.research.unfold import research_record

if TYPE_CHECKING:
    from proctor.runs.run import Run


def run_document(run: Run, exit_code: int) -> str:
    """The document, indented for people who look at it after all."""
    document: dict[str, Any] = {
        "path": str(run.path),
        **{key: run.spec.get(key) for key in ("run_id", "name", "created", "stopped")},
        "exit_code": exit_code,
        "totals": run.totals,
        "cells": run.cells,
        "failures": run.failures,
    }
    if (research := research_record(run.path)) is not None:
        document["research"] = research
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
