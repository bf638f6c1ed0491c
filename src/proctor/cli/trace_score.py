"""`proctor trace score`: the quality of traces, in eight dimensions, without a case or a model.

Exit code 0 whatever the scores: this is a look, not a gate (`path: {quality: …}` in a suite is).
2 when a file gave nothing.
"""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli.lazy import Command, Example
from proctor.cli.terminal import tell_problem
from proctor.errors import EXIT_CANNOT_JUDGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.checks.judge import Judge
    from proctor.checks.quality_model import Quality, QualityConfig
    from proctor.trace.assemble import Problem
    from proctor.trace.redact import Redactor


@click.command(
    cls=Command,
    examples=[
        Example("proctor trace score run.json", "what is good, what is not, and what to do"),
        Example("proctor trace score runs/ --expect search,book --json", "for other programs"),
        Example(
            "proctor trace score run.json --judge openai:gpt-4o-mini",
            "let a model judge the reasoning, too",
        ),
    ],
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.option("--expect", metavar="TOOLS", help="The tools that should be used, with commas.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A YAML file: targets, weights, query rules, penalties.",
)
@click.option("--judge", metavar="MODEL", help="A model that judges the reasoning.")
@click.option("--judge-url", metavar="URL", help="Where that model is, if not at its provider.")
@click.option("--no-redact", is_flag=True, help="Leave secrets as they are.")
def score(
    files: tuple[str, ...],
    *,
    as_json: bool,
    expect: str | None,
    config: Path | None,
    judge: str | None,
    judge_url: str | None,
    no_redact: bool,
) -> None:
    """Score the quality of traces."""
    from proctor.checks.quality_text import average_lines, averages, quality_lines
    from proctor.trace.redact import redactor_for
    from proctor.trace.render_json import document

    chosen = _config(config, expect)
    problems: list[Problem] = []
    found = list(_scored(files, chosen, _judge(judge, judge_url), problems))
    redactor = redactor_for(not no_redact)
    shown = [_redacted(each, redactor) for each in found]
    if as_json:
        for piece in document("scores", (each.to_dict() for each in shown), problems):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    else:
        for number, each in enumerate(shown):
            click.echo("\n".join([*([""] if number else []), *quality_lines(each)]))
        if len(shown) > 1:
            click.echo("\n" + "\n".join(average_lines(averages(shown), len(shown))))
    if any(problem.fatal for problem in problems):
        raise click.exceptions.Exit(EXIT_CANNOT_JUDGE)


def _scored(
    files: tuple[str, ...],
    config: "QualityConfig",
    judge: "Judge | None",
    problems: "list[Problem]",
) -> "Iterator[Quality]":
    from proctor.checks.quality import score_trace, score_traces_with
    from proctor.trace.load import iter_traces

    def tell(problem: "Problem") -> None:
        problems.append(problem)
        tell_problem(problem)

    traces = iter_traces(files, tell)
    if judge is None:
        yield from (score_trace(trace, config) for trace in traces)
    else:
        # One event loop for all, since a model keeps its connections in the loop it began in.
        yield from asyncio.run(score_traces_with(judge, traces, config))


def _config(path: Path | None, expect: str | None) -> "QualityConfig":
    from proctor.checks.quality_model import QualityConfig

    config = QualityConfig()
    if path is not None:
        from proctor.spec.located import validated
        from proctor.spec.problems import SpecError
        from proctor.spec.reader import read

        document = read(path)
        read_config = document.tree and validated(document.tree, QualityConfig, document.problems)
        if document.problems or read_config is None:
            raise SpecError(document.problems)
        config = read_config
    if expect is None:
        return config
    tools = tuple(tool.strip() for tool in expect.split(",") if tool.strip())
    return config.model_copy(update={"expected_tools": tools})


def _judge(model: str | None, url: str | None) -> "Judge | None":
    if model is None:
        if url is not None:
            raise click.UsageError("--judge-url needs --judge")
        return None
    from proctor.checks.judge import Judge
    from proctor.llm import get_model

    return Judge(get_model(model, base_url=url))


def _redacted(quality: "Quality", redactor: "Redactor | None") -> "Quality":
    """The same figures with secrets taken out of every text, ids apart."""
    if redactor is None:
        return quality
    import msgspec

    def texts(items: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(redactor.text, items))

    dimensions: list[Any] = [
        msgspec.structs.replace(
            each,
            why=redactor.text(each.why),
            issues=texts(each.issues),
            recommendations=texts(each.recommendations),
        )
        for each in quality.dimensions
    ]
    return msgspec.structs.replace(quality, dimensions=tuple(dimensions))
