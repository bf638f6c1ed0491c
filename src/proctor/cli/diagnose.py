"""`proctor diagnose`: find what broke in traces and where; for a run, what its failures share.

The exit code does not depend on the findings; it is 2 if a file yields no trace.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor import api
from proctor.cli._command import Command
from proctor.cli._options import (
    POSITIVE,
    chat_model,
    chat_model_options,
    checked_run,
    option,
    settings_redactor,
    warn,
)
from proctor.cli.trace import TraceFiles, redaction_option
from proctor.diagnose import methods
from proctor.errors import ProctorError

if TYPE_CHECKING:
    from proctor.diagnose.finding import Diagnosis
    from proctor.diagnose.llm.detector import DetectorOptions
    from proctor.trace import Trace


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, metavar="TRACE|RUN...")
@option("--method", "How to diagnose.", choices=methods.METHODS, default="offline")
@chat_model_options("PROVIDER:MODEL, for single_pass and agentic.")
@option("--prompt-version", "v1 or v2.", default="v2")
@option(
    "--evidence",
    "Whether a model's quotes must appear verbatim in the span.",
    choices=("strict", "off"),
    default="strict",
)
@option(
    "--leads",
    "Whether the model is shown what the offline detector found.",
    choices=("none", "offline"),
    default="none",
)
@option("--max-cost USD", "Cost limit per trace.", type=POSITIVE)
@option("--no-cache", "Do not use cached answers of the model.", is_flag=True)
@option("--failed", "For a run, only trials that did not pass.", is_flag=True)
@option(
    "--format",
    "shape",
    "Output format.",
    choices=("console", "json", "markdown"),
    default="console",
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
    detector = None
    if methods.calls_model(options["method"]):
        from proctor.llm.cache import DiskCache, cache_folder
        from proctor.llm.chat_model import ChatReply

        name = options["model"]
        detector = methods.detector_options(
            None if name is None else chat_model(name, options),
            prompt_version=options["prompt_version"],
            evidence=options["evidence"],
            leads=options["leads"],
            max_cost_usd=options["max_cost"],
            cache=None if options["no_cache"] else DiskCache(cache_folder("diagnose"), ChatReply),
        )
    runs = {text: found for text in files if (found := _find_run(text)) is not None}
    named = tuple(text for text in files if text not in runs)
    loaded = TraceFiles(named) if named else None
    if loaded is not None:
        _echo_traces(loaded, detector, options)
    for run in runs.values():
        _echo_run(run, detector, options)
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


def _diagnose(trace: Trace, method: str, detector: DetectorOptions | None) -> Diagnosis:
    from proctor.background import run_sync

    if detector is None:
        return methods.diagnose_offline(trace, method)
    return run_sync(methods.adiagnose(trace, method, detector))


def _echo_traces(
    loaded: TraceFiles, detector: DetectorOptions | None, options: dict[str, Any]
) -> None:
    """Print each diagnosis as soon as its trace is read, with the file if there are several."""
    from proctor.report.diagnosis import console_lines, markdown_lines

    redactor = None if options["no_redact"] else settings_redactor()
    lines = markdown_lines if options["shape"] == "markdown" else console_lines
    for trace in loaded:
        # Redacted first: quotes in findings, and what a model is sent, come from the trace.
        safe = trace if redactor is None else redactor.trace(trace)
        found = _diagnose(safe, options["method"], detector)
        if options["shape"] == "json":
            # One document per line: the number of traces is not known in advance.
            click.echo(json.dumps({"file": loaded.file, **found.to_dict()}))
        else:
            click.echo("\n".join(lines(found, loaded.file if loaded.several else None)))


def _echo_run(path: Path, detector: DetectorOptions | None, options: dict[str, Any]) -> None:
    """Print the clusters of failures in a run. Its traces were redacted when they were stored."""
    from proctor.diagnose.clusters import Clusters
    from proctor.formatting import and_more, plural
    from proctor.report.diagnosis import cluster_lines, cluster_table
    from proctor.runs.run import Run

    run, clusters, diagnoses = checked_run(Run(path)), Clusters(), list[dict[str, Any]]()
    unreadable: list[str] = []
    for trial in run.trials():
        if options["failed"] and trial.passed:
            continue
        trace = run.readable_trace(trial, unreadable)
        if trace is None:
            continue
        found = _diagnose(trace, options["method"], detector)
        clusters.add(trial.name, trace, found)
        diagnoses.append({"trial": trial.name, **found.to_dict()})
    if unreadable:
        warn(f"{plural(len(unreadable), 'trace')} skipped: {and_more(unreadable, 2, str)}")
    rows = clusters.all()
    if options["shape"] == "json":
        document = {
            "clusters": [row.to_dict() for row in rows],
            "trials": diagnoses,
            "unreadable": unreadable,
        }
        click.echo(json.dumps(document))
    else:
        lines = cluster_lines if options["shape"] == "console" else cluster_table
        click.echo("\n".join(lines(rows, len(diagnoses))))
