"""`proctor judge`: compare LLM judges with human labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from proctor.cli._command import CommandGroup
from proctor.cli._options import FILE, chat_model, chat_model_options, json_option, option
from proctor.cli._output import echo_json
from proctor.errors import ProctorError
from proctor.formatting import level_of, money, plural
from proctor.sanitize import printable

if TYPE_CHECKING:
    from proctor.checks.judge_audit import Audit, LabelledAnswer

MAX_SHOWN = 10
"""Rows listed one by one; the rest are counted."""


@click.group(cls=CommandGroup)
def judge() -> None:
    """Check how reliable an LLM judge is.

    Examples:
      # does this judge agree with people?
      proctor judge audit labels.csv --model openai:gpt-4o-mini
    """


@judge.command(
    groups={
        "Common options": "models rubric threshold votes concurrency as_json",
        "Model": "base_url api_key_env weights no_cache",
        "Resampling": "seed resamples",
    }
)
@click.argument("labels", type=FILE)
@chat_model_options("PROVIDER:MODEL; repeat it for an ensemble.", several=True)
@option("--rubric", "A built-in rubric, or a YAML file.", default="helpfulness")
@option("--threshold X", "The lowest passing score, 0 to 1.", type=click.FloatRange(0, 1))
@option(
    "--votes", "Calls per model and row; the median counts.", type=click.IntRange(1, 99), default=1
)
@option(
    "--weights",
    "How much a disagreement between distant labels counts.",
    choices=["none", "linear", "quadratic"],
    default="none",
)
@option("--seed", "The seed of the bootstrap.", type=int, default=0)
@option(
    "--resamples",
    "Bootstrap resamples; 0 omits the interval.",
    type=click.IntRange(0, 100_000),
    default=2000,
)
@option("--concurrency", "Rows to judge at the same time.", type=click.IntRange(1, 64), default=4)
@option("--no-cache", "Do not use cached verdicts.", is_flag=True)
@json_option
def audit(labels: Path, **options: Any) -> None:
    """Compare a judge with human labels (Cohen's kappa).

    LABELS is a CSV file with the columns input, answer, label and optionally expected, context. A
    label is pass, borderline or fail, or a score from 1 to 5. Without --model, the verdicts to
    compare are in the column `judge`.

    Examples:
      # judge every row and compare
      proctor judge audit labels.csv --model openai:gpt-4o-mini --rubric correctness
      # compare verdicts in the column `judge`
      proctor judge audit scored.csv --weights quadratic --json
    """
    from proctor.checks.judge_audit import read_labels

    rows = read_labels(labels)
    found = _audited(rows, options)
    if options["as_json"]:
        echo_json(found)
    else:
        click.echo("\n".join(_lines(found, options)))


def _audited(rows: list[LabelledAnswer], options: dict[str, Any]) -> Audit:
    from proctor.checks.judge_audit import Measure, given_verdicts, judged_verdicts

    weights = None if options["weights"] == "none" else options["weights"]
    measure = Measure(weights, options["seed"], options["resamples"])
    # Verdicts in the file are compared as they are: no model, no cost.
    if not options["models"]:
        if not any(row.judge for row in rows):
            raise click.UsageError("name a judge with --model, or add a column `judge` to the file")
        return given_verdicts(rows, measure)
    from dataclasses import replace

    from proctor.background import run_sync
    from proctor.checks.judge import Judge, JudgeCache, JudgeSettings, default_cache_folder
    from proctor.trials.prepare import closing

    rubric = _rubric(options["rubric"])
    if options["threshold"] is not None:
        rubric = replace(rubric, threshold=options["threshold"])
    models = [chat_model(name, options) for name in options["models"]]
    cache = None if options["no_cache"] else JudgeCache(default_cache_folder())
    judge = Judge(models, rubric, JudgeSettings(votes=options["votes"]), cache=cache)

    # In one event loop, because connections of a model belong to the loop that opened them.
    async def run() -> Audit:
        async with closing({"audited": judge}):
            return await judged_verdicts(rows, judge, measure, concurrency=options["concurrency"])

    return run_sync(run())


def _rubric(name: str) -> Any:
    from proctor.checks.judge import rubric_from
    from proctor.spec.yaml_reader import read

    # By the suffix: a built-in rubric is found even if a file has its name.
    if not name.endswith((".yaml", ".yml", ".json")):
        return rubric_from(name)
    written = read(Path(name)).value()
    if not isinstance(written, dict):
        raise ProctorError("a rubric is a mapping with a `rule`", where=name)
    return rubric_from(cast("dict[str, Any]", written))


# -- output ---------------------------------------------------------------------------------


def _lines(found: Audit, options: dict[str, Any]) -> list[str]:
    who = ", ".join(options["models"]) or "the column `judge`"
    scored = found.agreement.n
    rows = f"rows: {found.rows}, compared: {scored}, unscored: {len(found.unscored)}"
    lines = [printable(f"judge: {who}"), rows, "", *_table(found), "", *_figures(found)]
    if found.borderline_as:
        lines.append(
            f"labels are only pass or fail, so borderline verdicts count as {found.borderline_as}"
        )
    lines += _listed(
        f"disagreements ({len(found.disagreements)} of {scored}):",
        [f"line {d.line}: people {d.people}, judge {d.judge}" for d in found.disagreements],
    )
    lines += _listed(
        f"unscored ({len(found.unscored)} of {found.rows}):",
        [f"line {one.line}: {one.reason}" for one in found.unscored],
    )
    usage = found.usage
    if usage.calls or usage.cached:
        cost = money(usage.cost_usd, usage.unpriced) or "unknown"
        # Not 0: some providers report no tokens.
        counts = (usage.input_tokens, usage.output_tokens)
        read, written = ("unknown" if count is None else count for count in counts)
        lines += [
            "",
            f"judging: {plural(usage.calls, 'call')}, {usage.cached} from the cache, cost {cost}",
            f"tokens: {read} in, {written} out",
        ]
    return lines


def _figures(found: Audit) -> list[str]:
    result = found.agreement
    if result.raw is None:
        return ["nothing to compare: no agreement, no kappa"]
    lines = [f"agreement: {result.agreed} of {result.n} = {result.raw:.3f}"]
    name = f"kappa ({result.weights} weights)" if result.weights else "kappa"
    # Chance agreement is 1 if there is only one label, and kappa would be 0 / 0.
    if result.kappa is None:
        return [*lines, f"{name}: undefined, all labels are the same"]
    line = f"{name}: {result.kappa:.3f}"
    if (found_in := result.interval) is not None:
        left_out = f", {found_in.undefined} without a kappa omitted" if found_in.undefined else ""
        line += (
            f", {level_of(found_in.level)} interval {found_in.low:.3f} to {found_in.high:.3f} "
            f"(bootstrap over {result.n} rows, {found_in.resamples} resamples, "
            f"seed {found_in.seed}{left_out})"
        )
    return [*lines, line]


def _table(found: Audit) -> list[str]:
    result = found.agreement
    # People in rows, the judge in columns, totals at the edges.
    names = [printable(str(category)) for category in result.categories]
    corner = "people \\ judge"
    totals = [sum(row) for row in result.table]
    columns = [sum(column) for column in zip(*result.table, strict=True)]
    body = [
        [name, *map(str, row), str(total)]
        for name, row, total in zip(names, result.table, totals, strict=True)
    ]
    grid = [[corner, *names, "all"], *body, ["all", *map(str, columns), str(result.n)]]
    widths = [max(len(row[i]) for row in grid) for i in range(len(grid[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in grid
    ]


def _listed(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    shown = [f"  {printable(line)}" for line in lines[:MAX_SHOWN]]
    more = [f"  and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
    return ["", title, *shown, *more]
