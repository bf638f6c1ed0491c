"""`proctor trail`: measure diagnosis against TRAIL's annotations.

`run` is an experiment stored as a run, `score` scores a folder of predictions, `compare` shows
experiments side by side.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli import _options
from proctor.cli._command import CommandGroup
from proctor.cli._options import option
from proctor.errors import EXIT_CANNOT_JUDGE
from proctor.formatting import plural
from proctor.sanitize import line

if TYPE_CHECKING:
    from collections.abc import Iterable

APPROACHES = ("offline", "rules", "learned", "single_pass", "agentic", "off", "on")
OUTPUT = "results/trail"


@click.group(cls=CommandGroup)
def trail() -> None:
    """Measure diagnosis against TRAIL's annotations.

    Examples:
      # how good is the diagnosis of these traces?
      proctor trail run --experiment-id first --trail-data-dir trail/data --gold-dir trail --split
          GAIA
      # which of two was better?
      proctor trail compare first second
    """


@trail.command(
    groups={
        "Common options": "experiment_id trail_data_dir gold_dir split approach subset output_dir",
        "Model": "model base_url api_key_env prompt_version prompt_size reasoning_effort agents"
        " chunk evidence leads max_workers max_cost",
        "Output": "notes quiet as_json",
    }
)
@option("--experiment-id", "The name of the experiment.", required=True)
@option("--trail-data-dir", "The folder of traces.", required=True, type=_options.FOLDER)
@option("--gold-dir", "The folder of annotations.", required=True, type=_options.FOLDER)
@option("--output-dir", "The folder for runs.", type=_options.FOLDER, default=OUTPUT)
@option("--approach", "The method of diagnosis.", choices=APPROACHES, default="offline")
@option("--split", "The split of TRAIL.", choices=("GAIA", "SWE Bench"), default="GAIA")
@option("--subset", "full, dev18, sample18, or a file of trace ids.", default="full")
@_options.chat_model_options("PROVIDER:MODEL, for single_pass and agentic.")
@_options.detector_options
@option(
    "--max-workers", "Traces to diagnose at the same time.", type=click.IntRange(min=1), default=5
)
@option("--max-cost USD", "Cost limit of the experiment.", type=_options.POSITIVE)
@option("--notes", "Notes to store with it.", default="", show_default=False)
@_options.quiet_option
@option("--json", "as_json", "Print the metrics as one JSON document.", is_flag=True)
@click.pass_context
def run(ctx: click.Context, **given: Any) -> None:
    """Diagnose annotated traces and score the findings.

    The same command resumes an interrupted experiment and retries traces that failed.

    Examples:
      # one approach on one split
      proctor trail run --experiment-id rules-only --approach rules --trail-data-dir trail/data
          --gold-dir trail --split 'SWE Bench'
      # a model on eighteen traces
      proctor trail run --experiment-id small --approach agentic --subset dev18 --model
          openai:gpt-4o-mini --trail-data-dir trail/data --gold-dir trail
    """
    from proctor.cli.run import execute_run
    from proctor.trail.experiment import ExperimentConfig, begin, score_lines, write_results
    from proctor.trials.session import INFRA

    config = {name: given[name] for name in ExperimentConfig.model_fields if name in given}
    # The experiment is a run: resume, limits and cost come with it.
    limits = {} if given["max_cost"] is None else {"max_cost_usd": given["max_cost"]}
    experiment = begin(ExperimentConfig(**config), **limits)
    if experiment.missing:
        names = ", ".join(experiment.missing[:3])
        _options.warn(f"{plural(len(experiment.missing), 'trace')} not found: {names}")
    if experiment.resumed:
        click.echo(f"resuming {experiment.folder.path}", err=True)
    ended = execute_run(experiment.context, experiment.folder, rerun=INFRA, quiet=given["quiet"])
    done = write_results(ended.run)
    _echo_problems("gold", done.metrics["gold_problems"])
    fallbacks = done.metrics["fallen_back"]
    if given["as_json"]:
        click.echo(json.dumps(done.metrics))
    elif fallbacks and len(fallbacks) + len(done.metrics["failed"]) == len(ended.run.cells):
        # Figures of another method under the model's name would be read as the model's.
        why = next(iter(fallbacks.values()))
        click.echo(f"no figures: the model answered for none of {len(fallbacks)} traces: {why}")
    else:
        settings = done.config
        click.echo(f"{settings['approach']} · {settings['model'] or 'no model'}")
        click.echo("\n".join(score_lines(done.metrics)))
        for name, why in done.metrics["failed"].items():
            click.echo(f"  not judged: {name}: {why}")
        click.echo(f"stored in {done.path}")
    if ended.signal is not None:
        ctx.exit(ended.exit_code)
    # Metrics over fewer traces than planned, or over another method's answers, are not comparable.
    if done.metrics["failed"] or fallbacks or ended.run.stopped:
        ctx.exit(EXIT_CANNOT_JUDGE)


@trail.command()
@option("--gold-dir", "The folder of annotations.", required=True, type=_options.FOLDER)
@option("--generated-dir", "The folder of predictions.", required=True, type=_options.FOLDER)
@_options.json_option
@click.pass_context
def score(ctx: click.Context, gold_dir: Path, generated_dir: Path, *, as_json: bool) -> None:
    """Score a folder of predictions.

    Prints the official metrics and additional ones. Exits with 2 if a file cannot be read.

    Examples:
      # the official metrics and ours
      proctor trail score --gold-dir trail/processed_annotations_gaia --generated-dir
          results/trail/first/2026-01-31_001/predictions
    """
    from proctor.trail.experiment import card_record, score_lines
    from proctor.trail.scorer import read_annotations
    from proctor.trail.scorer import score as scored

    gold, predicted = read_annotations(gold_dir), read_annotations(generated_dir)
    record = card_record(scored(gold.by_trace, predicted.by_trace))
    _echo_problems("gold", gold.problems)
    _echo_problems("prediction", predicted.problems)
    unread = gold.unread + predicted.unread
    click.echo(json.dumps(record) if as_json else "\n".join(score_lines(record)))
    # A score over some of the files is not the score of the folder.
    if unread or not record["traces"]:
        ctx.exit(EXIT_CANNOT_JUDGE)


def _echo_problems(side: str, problems: Iterable[str]) -> None:
    """Print a warning for each problem."""

    for problem in problems:
        _options.warn(f"{side} {line(problem, 300)}")


@trail.command()
@click.argument(
    "names", nargs=-1, metavar="[EXPERIMENT|RUN]...", shell_complete=_options.complete_runs
)
@option("--output-dir", "The folder of runs.", type=_options.FOLDER, default=OUTPUT)
@_options.json_option
def compare(names: tuple[str, ...], output_dir: Path, *, as_json: bool) -> None:
    """Compare experiments.

    Examples:
      # every experiment so far
      proctor trail compare
      # two of them
      proctor trail compare rules-only small
    """
    from proctor.trail.experiment import load_results, log_lines

    found = load_results(output_dir, names)
    if as_json:
        rows = [{"config": t.config, "metrics": t.metrics, "run": str(t.path)} for t in found]
        click.echo(json.dumps(rows))
    elif found:
        click.echo("\n".join(log_lines(found)))
    else:
        click.echo(f"no experiments in {output_dir}", err=True)
