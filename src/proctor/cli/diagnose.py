"""`proctor diagnose`: find what broke in traces and where; for a run, what its failures share.

The exit code does not depend on the findings; it is 2 if a file yields no trace.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command
from proctor.cli._options import (
    POSITIVE,
    chat_model,
    chat_model_options,
    checked_run,
    complete_runs_or_files,
    detector_options,
    option,
    refuse_unused,
    settings_redactor,
    trial_or_files,
    warn,
)
from proctor.cli.trace import TraceFiles, redaction_option
from proctor.diagnose import methods
from proctor.errors import ProctorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proctor.diagnose.clusters import Clusters, SharedCauses
    from proctor.diagnose.finding import Diagnosis
    from proctor.diagnose.llm.detector import DetectorOptions
    from proctor.diagnose.methods import TrialEvidence
    from proctor.trace import Trace


_MODEL = (
    "base_url api_key_env prompt_version prompt_size reasoning_effort agents chunk evidence leads"
    " no_cache"
)


@click.command(
    cls=Command,
    groups={
        "Common options": "method model failed shape max_cost",
        "Model": _MODEL,
        "Output": "everything details no_redact",
    },
)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="TRACE|RUN|RUN:TRIAL...",
    shell_complete=complete_runs_or_files,
)
@option("--method", "How to diagnose.", choices=methods.METHODS, default="offline")
@chat_model_options("PROVIDER:MODEL, for the methods that call a model.")
@detector_options
@option("--max-cost USD", "Cost limit per trace.", type=POSITIVE)
@option("--no-cache", "Do not use cached answers of the model.", is_flag=True)
@option("--failed", "For a run, only trials that did not pass.", is_flag=True)
@option("--all", "everything", "Show findings of less than 25 % confidence, too.", is_flag=True)
@option("--details", "For several traces, show each diagnosis after the summary.", is_flag=True)
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

    Says where to start: the step from which the other findings follow. For a run or several traces,
    those that share a cause are one row, the most frequent first. Failing trials of a run are
    compared with passing trials of the same case.

    Examples:
      # what broke, where, and how certain it is
      proctor diagnose run.json
      # as JSON
      proctor diagnose traces/ --format json
      # what the failures of a run have in common
      proctor diagnose latest --failed
      # one trial
      proctor diagnose latest:refund/hasty/0/1
      # and every diagnosis in full
      proctor diagnose latest --failed --details
      # with a model
      proctor diagnose run.json --method agentic --model openai:gpt-4o-mini
    """
    method = options["method"]
    for name in f"model max_cost {_MODEL}".split():
        if why := methods.why_unused(method, name):
            refuse_unused(name, f"with the method {method}, which {why}")
    detector = None
    if methods.calls_model(options["method"]):
        from proctor.llm.chat_model import ChatReply, DiskCache, cache_folder

        name = options["model"]
        shared = ("prompt_version", "evidence", "leads", "reasoning_effort", "agents", "chunk")
        detector = methods.detector_options(
            None if name is None else chat_model(name, options),
            **{key: options[key] for key in shared},
            max_cost_usd=options["max_cost"],
            limit=options["prompt_size"],
            cache=None if options["no_cache"] else DiskCache(cache_folder("diagnose"), ChatReply),
        )
    runs, named = _runs_and_files(files)
    if not runs:
        refuse_unused("failed", "without a run", "name a run: `latest`, a tag or a folder")
    loaded = TraceFiles(named) if named else None
    if loaded is not None:
        _echo_traces(loaded, detector, options)
    for run, trials in runs.items():
        _echo_run(run, trials, detector, options)
    if loaded is not None:
        loaded.exit()


def _runs_and_files(names: Sequence[str]) -> tuple[dict[Path, set[str]], tuple[str, ...]]:
    """Return the named trials of each run (none named: all of them), and the other names."""
    runs: dict[Path, set[str]] = {}
    others: list[str] = []
    for name in names:
        try:
            found = trial_or_files(name)
        except ProctorError:
            if ":" in name or not Path(name).exists():
                raise
            found = name  # the reader of the file says what is wrong with it
        if isinstance(found, str):
            if (Path(found) / "_spec_.yaml").is_file():
                runs[Path(found)] = set()
            else:
                others.append(name)
        else:
            run, trial = found
            runs.setdefault(run.path, set()).add(trial.name)
    return runs, tuple(others)


def _diagnose(
    trace: Trace,
    method: str,
    detector: DetectorOptions | None,
    evidence: TrialEvidence | None = None,
) -> Diagnosis:
    from proctor.background import run_sync

    if detector is None:
        return methods.diagnose_offline(trace, method, evidence)
    return run_sync(methods.adiagnose(trace, method, detector, evidence))


def _echo_traces(
    loaded: TraceFiles, detector: DetectorOptions | None, options: dict[str, Any]
) -> None:
    """Print the diagnosis of a trace; of several, what they share, and each on request."""
    from proctor.diagnose.finding import SHOWN_FROM

    redactor = None if options["no_redact"] else settings_redactor()
    shown: list[tuple[str, Diagnosis]] = []
    last: tuple[str, Trace, Diagnosis] | None = None
    several: tuple[SharedCauses, Clusters] | None = None
    for trace in loaded:
        # Redacted first: quotes in findings, and what a model is sent, come from the trace.
        safe = trace if redactor is None else redactor.trace(trace)
        found = _diagnose(safe, options["method"], detector)
        if options["shape"] == "json":
            # One document per line: the number of traces is not known in advance.
            least = 0.0 if options["everything"] else SHOWN_FROM
            click.echo(json.dumps({"file": loaded.file, **found.to_dict(least)}))
            continue
        shown.append((loaded.file if loaded.several else "", found))
        # One trace shares nothing: groups begin with the second.
        if last is not None:
            several = several or _groups()
            for group in several:
                group.add(*last)
        file = f"{loaded.file} " if loaded.several else ""
        last = (f"{file}{found.trace_id}", safe, found)
    if last is not None and several is None:
        _echo_details(shown, options)
    elif last is not None and several is not None:
        for group in several:
            group.add(*last)
        _echo_summary(*several, shown, options)


def _groups() -> tuple[SharedCauses, Clusters]:
    from proctor.diagnose.clusters import Clusters, SharedCauses

    return SharedCauses(), Clusters()


def _echo_details(shown: Sequence[tuple[str, Diagnosis]], options: dict[str, Any]) -> None:
    from proctor.report.diagnosis import console_lines, markdown_lines

    for where, found in shown:
        if options["shape"] == "markdown":
            lines = markdown_lines(found, where or None, everything=options["everything"])
        else:
            lines = console_lines(found, where or None, everything=options["everything"])
        click.echo("\n".join(lines))


def _echo_summary(
    causes: SharedCauses,
    clusters: Clusters,
    shown: Sequence[tuple[str, Diagnosis]],
    options: dict[str, Any],
) -> None:
    """Print what several diagnoses share: causes, then kinds of failure, then notes."""
    from collections import Counter

    from proctor.report.diagnosis import (
        cluster_lines,
        cluster_table,
        other_notes,
        shared_cause_lines,
        shared_cause_table,
    )

    notes = Counter(note for _, found in shown for note in dict.fromkeys(other_notes(found)))
    console = options["shape"] == "console"
    rows = causes.all()
    lines = list((shared_cause_lines if console else shared_cause_table)(rows, len(shown), notes))
    found = clusters.all()
    if options["details"] or not rows:
        lines += (cluster_lines if console else cluster_table)(found, len(shown))
    click.echo("\n".join(lines))
    if options["details"]:
        _echo_details(shown, options)
    elif any(diagnosis.findings for _, diagnosis in shown):
        click.echo("--details shows every finding")


def _echo_run(
    path: Path, only: set[str], detector: DetectorOptions | None, options: dict[str, Any]
) -> None:
    """Print what trials of a run share. Its traces were redacted when they were stored."""
    from proctor.diagnose.finding import SHOWN_FROM
    from proctor.formatting import and_more, plural
    from proctor.results.evidence import evidence_of, trajectories_of
    from proctor.runs.annotations import experiments_of
    from proctor.runs.run import Run

    run, (causes, clusters) = checked_run(Run(path)), _groups()
    tested = experiments_of(path)
    diagnoses = list[dict[str, Any]]()
    shown: list[tuple[str, Diagnosis]] = []
    unreadable: list[str] = []
    trials = [trial for trial in run.trials() if not only or trial.name in only]
    failing = {trial.case for trial in trials if trial.status.judged and not trial.passed}
    trajectories = trajectories_of(run, failing)
    for trial in trials:
        if options["failed"] and trial.passed:
            continue
        trace = run.readable_trace(trial, unreadable)
        if trace is None:
            continue
        evidence = evidence_of(trial, trajectories)
        found = _diagnose(trace, options["method"], detector, evidence)
        about = {step: one.text for (name, step), one in tested.items() if name == trial.name}
        found = methods.with_tests(found, about)
        clusters.add(trial.name, trace, found)
        failed = [c.id for c in trial.checks if c.status == "fail"]
        causes.add(trial.name, trace, found, failed)
        shown.append((trial.name, found))
        least = 0.0 if options["everything"] else SHOWN_FROM
        diagnoses.append({"trial": trial.name, **found.to_dict(least)})
    if unreadable:
        warn(f"{plural(len(unreadable), 'trace')} skipped: {and_more(unreadable, 2, str)}")
    if options["shape"] == "json":
        document = {
            "causes": [row.to_dict() for row in causes.all()],
            "clusters": [row.to_dict() for row in clusters.all()],
            "trials": diagnoses,
            "unreadable": unreadable,
        }
        click.echo(json.dumps(document))
    elif len(only) == 1:
        _echo_details(shown, options)
    else:
        _echo_summary(causes, clusters, shown, options)
