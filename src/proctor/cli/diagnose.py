"""`proctor diagnose`: find what broke in traces and where; for a run, what its failures share.

The exit code does not depend on the findings; it is 2 if a file yields no trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from proctor import api
from proctor.cli._command import Command
from proctor.cli._options import chat_model, chat_model_options
from proctor.cli.trace import TraceFiles, redaction_option
from proctor.diagnose.methods import METHODS
from proctor.errors import ProctorError

if TYPE_CHECKING:
    from proctor.diagnose.clusters import Clusters
    from proctor.diagnose.finding import Diagnosis
    from proctor.diagnose.llm.detector import DetectorOptions
    from proctor.trace import Trace


class NamedTrace(NamedTuple):
    """A trace, and the name of its trial or its file."""

    where: str
    trace: Trace


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, metavar="TRACE|RUN...")
@click.option("--method", type=click.Choice([*METHODS]), default="offline", help="How to diagnose.")
@chat_model_options("PROVIDER:MODEL, for single_pass and agentic.")
@click.option("--prompt-version", default="v2", help="v1 or v2.")
@click.option(
    "--evidence",
    type=click.Choice(("strict", "off")),
    default="strict",
    help="Whether a model's quotes must appear verbatim in the span.",
)
@click.option(
    "--max-cost",
    type=click.FloatRange(min=0, min_open=True),
    metavar="USD",
    help="Cost limit per trace.",
)
@click.option("--no-cache", is_flag=True, help="Do not use cached answers of the model.")
@click.option("--failed", is_flag=True, help="For a run, only trials that did not pass.")
@click.option(
    "--format",
    "shape",
    type=click.Choice(("console", "json", "markdown")),
    default="console",
    help="Output format.",
)
@redaction_option
def diagnose(files: tuple[str, ...], **options: Any) -> None:
    """Find what broke in traces, or in the trials of a run.

    For a run, failures that several trials share are clustered, the most frequent first.

    Examples:
      # what broke, where, and how certain it is
      proctor diagnose run.json
      # as JSON
      proctor diagnose traces/ --format json
      # what the failures of a run have in common
      proctor diagnose latest --failed
      # with a model
      proctor diagnose run.json --method agentic --model openai:gpt-4o-mini
    """
    from proctor.diagnose.methods import asks

    how = _asking(options) if asks(options["method"]) else None
    runs = {text: found for text in files if (found := _find_run(text)) is not None}
    named = tuple(text for text in files if text not in runs)
    loaded = TraceFiles(named) if named else None
    if loaded is not None:
        looked = _looked(loaded, options["no_redact"])
        _echo_traces(looked, how, options, several=loaded.several)
    for run in runs.values():
        _echo_run(run, how, options)
    if loaded is not None:
        loaded.exit()


def _find_run(text: str) -> Path | None:
    """Return the run folder for a path, name, tag or `latest`; None for a trace file."""
    from proctor.runs.find import LATEST, find_run

    if Path(text).exists():
        return Path(text) if (Path(text) / "_spec_.yaml").is_file() else None
    try:
        return find_run(text, api.results_root())
    except ProctorError:
        if text == LATEST:
            raise
        return None  # the trace reader reports what is wrong with it


def _asking(options: dict[str, Any]) -> DetectorOptions:
    from proctor.diagnose.methods import asking
    from proctor.llm.cache import DiskCache, cache_folder
    from proctor.llm.chat_model import ChatReply

    name = options["model"]
    return asking(
        None if name is None else chat_model(name, options),
        prompt_version=options["prompt_version"],
        evidence=options["evidence"],
        max_cost_usd=options["max_cost"],
        cache=None if options["no_cache"] else DiskCache(cache_folder("diagnose"), ChatReply),
    )


def _looked(loaded: TraceFiles, no_redact: bool) -> Iterator[NamedTrace]:
    from proctor.trace.redact import redactor_for

    redactor = redactor_for(not no_redact)
    for trace in loaded:
        yield NamedTrace(loaded.file, trace if redactor is None else redactor.trace(trace))


def _trials(path: Path, failed: bool) -> Iterator[NamedTrace]:
    from proctor.runs.run import Run

    run = Run(path)
    for trial in run.trials():
        if failed and trial.passed:
            continue
        trace = run.trace(trial)
        if trace is not None:
            yield NamedTrace(trial.name, trace)


def _found(looked: NamedTrace, method: str, how: DetectorOptions | None) -> Diagnosis:
    from proctor.diagnose.methods import adiagnose, asks, diagnose_offline

    if not asks(method):
        return diagnose_offline(looked.trace, method)
    from proctor.background import run_sync

    return run_sync(adiagnose(looked.trace, method, how))


def _echo_traces(
    traces: Iterator[NamedTrace],
    how: DetectorOptions | None,
    options: dict[str, Any],
    *,
    several: bool,
) -> None:
    """Print each trace as it is read, with its file if there are several."""
    from proctor.report.diagnosis import console_lines, markdown_lines

    shape = options["shape"]
    for looked in traces:
        found = _found(looked, options["method"], how)
        if shape == "json":
            click.echo(json.dumps({"file": looked.where, **found.to_dict()}))
        else:
            lines = console_lines if shape == "console" else markdown_lines
            click.echo("\n".join(lines(found, looked.where if several else None)))


def _echo_run(path: Path, how: DetectorOptions | None, options: dict[str, Any]) -> None:
    from proctor.diagnose.clusters import Clusters

    clusters, diagnoses, seen = Clusters(), list[dict[str, Any]](), 0
    for looked in _trials(path, options["failed"]):
        found = _found(looked, options["method"], how)
        clusters.add(looked.where, looked.trace, found)
        seen += 1
        if options["shape"] == "json":
            diagnoses.append({"trial": looked.where, **found.to_dict()})
    _echo_clusters(clusters, seen, diagnoses, options["shape"])


def _echo_clusters(
    clusters: Clusters, seen: int, diagnoses: list[dict[str, Any]], shape: str
) -> None:
    from proctor.report.diagnosis import cluster_lines, cluster_table

    rows = clusters.all()
    if shape == "json":
        document = {"clusters": [row.to_dict() for row in rows], "trials": diagnoses}
        click.echo(json.dumps(document))
    else:
        lines = cluster_lines if shape == "console" else cluster_table
        click.echo("\n".join(lines(rows, seen)))
