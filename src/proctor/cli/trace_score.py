"""`proctor trace score`: the quality of traces, in eight dimensions, without a case or a model.

Exit code 0 whatever the scores: this is a look, not a gate (`path: {quality: …}` in a suite is).
2 when a file gave nothing.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from proctor.cli._command import Command, Example
from proctor.cli.trace_files import (
    Loaded,
    files_argument,
    json_option,
    redaction_option,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proctor.checks.judge import Judge
    from proctor.checks.quality_dimensions import Quality, QualityConfig
    from proctor.trace import Trace
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
@files_argument
@json_option
@click.option("--expect", metavar="TOOLS", help="The tools that should be used, with commas.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A YAML file: targets, weights, query rules, penalties.",
)
@click.option("--judge", metavar="MODEL", help="A model that judges the reasoning.")
@click.option("--judge-url", metavar="URL", help="Where that model is, if not at its provider.")
@redaction_option
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

    chosen = _config(config, expect)
    loaded = Loaded(files)
    places: list[_Place] = []
    found = list(_scored(_placed(loaded, places), chosen, _judge(judge, judge_url)))
    redactor = redactor_for(not no_redact)
    shown = [_redacted(each, redactor) for each in found]
    if as_json:
        pairs = zip(places, shown, strict=True)
        write_json("scores", ({"file": at.file, **each.to_dict()} for at, each in pairs), loaded)
    else:
        for number, (at, each) in enumerate(zip(places, shown, strict=True)):
            named, *lines = quality_lines(each)
            first = "  ".join(filter(None, (named, at.shown)))
            click.echo("\n".join([*([""] if number else []), first, *lines]))
        if len(shown) > 1:
            click.echo("\n" + "\n".join(average_lines(averages(shown), len(shown))))
    loaded.leave()


class _Place(NamedTuple):
    """The file of a trace, and how it is shown; empty where only one file was named."""

    file: str
    shown: str


def _placed(loaded: Loaded, places: list[_Place]) -> "Iterator[Trace]":
    """The traces, with the file of each noted as it is read."""
    for trace in loaded:
        places.append(_Place(loaded.file, loaded.where()))
        yield trace


def _scored(
    traces: "Iterable[Trace]", config: "QualityConfig", judge: "Judge | None"
) -> "Iterator[Quality]":
    from proctor.checks.quality import score_trace, score_traces_with

    if judge is None:
        yield from (score_trace(trace, config) for trace in traces)
    else:
        # One event loop for all, since a model keeps its connections in the loop it began in.
        yield from asyncio.run(score_traces_with(judge, traces, config))


def _config(path: Path | None, expect: str | None) -> "QualityConfig":
    from proctor.checks.quality_dimensions import QualityConfig

    config = QualityConfig()
    if path is not None:
        from proctor.spec.located import SpecError
        from proctor.spec.validation import validated
        from proctor.spec.yaml_reader import read

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
