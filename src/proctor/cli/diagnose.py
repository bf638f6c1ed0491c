"""`proctor diagnose`: what broke in traces, and where; of a run, what its trials share.

Exit code 0 whatever is found: this is a look, not a gate. 2 when a file gave nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import chat_model, chat_model_options
from proctor.cli.trace_files import Loaded, redaction_option
from proctor.diagnose.methods import METHODS
from proctor.errors import ProctorError

if TYPE_CHECKING:
    from proctor.diagnose.clusters import Clusters
    from proctor.diagnose.finding import Diagnosis
    from proctor.diagnose.llm.detector import DetectorOptions
    from proctor.trace import Trace


class Looked(NamedTuple):
    """A trace to look at, and how people call it: its trial, or the file it came from."""

    where: str
    trace: Trace


@click.command(
    cls=Command,
    examples=[
        Example("proctor diagnose run.json", "what broke, where, and how sure that is"),
        Example("proctor diagnose traces/ --format json", "for other programs"),
        Example("proctor diagnose latest --failed", "what the failures of a run share"),
        Example(
            "proctor diagnose run.json --method agentic --model openai:gpt-4o-mini",
            "let a model look too",
        ),
    ],
)
@click.argument("files", nargs=-1, required=True, metavar="TRACE|RUN...")
@click.option("--method", type=click.Choice([*METHODS]), default="offline", show_default=True)
@chat_model_options("PROVIDER:MODEL, for single_pass and agentic.")
@click.option("--prompt-version", default="v2", show_default=True, help="v1 or v2.")
@click.option(
    "--evidence",
    type=click.Choice(("strict", "off")),
    default="strict",
    show_default=True,
    help="Whether a model's quotes must stand in their span.",
)
@click.option(
    "--max-cost", type=click.FloatRange(min=0, min_open=True), help="Dollars for one trace at most."
)
@click.option("--no-cache", is_flag=True, help="Ask again what was asked before.")
@click.option("--failed", is_flag=True, help="Of a run, only trials that did not pass.")
@click.option(
    "--format",
    "shape",
    type=click.Choice(("console", "json", "markdown")),
    default="console",
    show_default=True,
)
@redaction_option
def diagnose(files: tuple[str, ...], **options: Any) -> None:
    """Find what broke in traces, or in the trials of a run.

    Of a run, failures that trials share come first, each as one row.
    """
    from proctor.diagnose.methods import asks

    how = _asking(options) if asks(options["method"]) else None
    runs = {text: found for text in files if (found := _run_meant(text)) is not None}
    named = tuple(text for text in files if text not in runs)
    loaded = Loaded(named) if named else None
    if loaded is not None:
        looked = _looked(loaded, options["no_redact"])
        _tell_traces(looked, how, options, several=loaded.several)
    for run in runs.values():
        _tell_run(run, how, options)
    if loaded is not None:
        loaded.leave()


def _run_meant(text: str) -> Path | None:
    """The run that is meant by its folder, its name, a tag or `latest`; None: a file of traces."""
    from proctor.cli._options import results_root
    from proctor.runs.find import LATEST, find_run

    if Path(text).exists():
        return Path(text) if (Path(text) / "_spec_.yaml").is_file() else None
    try:
        return find_run(text, results_root(None))
    except ProctorError:
        if text == LATEST:
            raise
        return None  # the reader of traces says what is wrong with it


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


def _looked(loaded: Loaded, no_redact: bool) -> Iterator[Looked]:
    from proctor.trace.redact import redactor_for

    redactor = redactor_for(not no_redact)
    for trace in loaded:
        yield Looked(loaded.file, trace if redactor is None else redactor.trace(trace))


def _trials(path: Path, failed: bool) -> Iterator[Looked]:
    from proctor.runs.run import Run

    run = Run(path)
    for trial in run.trials():
        if failed and trial.passed:
            continue
        trace = run.trace(trial)
        if trace is not None:
            yield Looked(trial.name, trace)


def _found(looked: Looked, method: str, how: DetectorOptions | None) -> Diagnosis:
    from proctor.diagnose.methods import adiagnose

    return asyncio.run(adiagnose(looked.trace, method, how))


def _tell_traces(
    traces: Iterator[Looked], how: DetectorOptions | None, options: dict[str, Any], *, several: bool
) -> None:
    """Each trace as it is read; of several files each says which one it is from."""
    from proctor.report.diagnosis import console_lines, markdown_lines

    shape = options["shape"]
    for looked in traces:
        found = _found(looked, options["method"], how)
        if shape == "json":
            click.echo(json.dumps({"file": looked.where, **found.to_dict()}))
        else:
            lines = console_lines if shape == "console" else markdown_lines
            click.echo("\n".join(lines(found, looked.where if several else None)))


def _tell_run(path: Path, how: DetectorOptions | None, options: dict[str, Any]) -> None:
    from proctor.diagnose.clusters import Clusters

    clusters, diagnoses, seen = Clusters(), list[dict[str, Any]](), 0
    for looked in _trials(path, options["failed"]):
        found = _found(looked, options["method"], how)
        clusters.add(looked.where, looked.trace, found)
        seen += 1
        if options["shape"] == "json":
            diagnoses.append({"trial": looked.where, **found.to_dict()})
    _tell_clusters(clusters, seen, diagnoses, options["shape"])


def _tell_clusters(
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
