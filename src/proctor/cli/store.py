"""`proctor store`: keep a built scenario, and look after the store of live traces.

`proctor store NAME DIR` is short for `proctor store keep NAME DIR`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from proctor.cli._command import Command, Entry, Example, LazyGroup
from proctor.cli._options import Duration
from proctor.cli.serve import DEFAULT_STORE
from proctor.words import dollars, plural

_HERE = "proctor.cli.store"


class StoreGroup(LazyGroup):
    """A group whose first word may be a scenario's name instead of a command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A word that is no command, with a folder after it, is kept."""
        if args[0] not in self.table and not args[0].startswith("-") and len(args) > 1:
            return "keep", self.get_command(ctx, "keep"), args
        return super().resolve_command(ctx, args)


@click.group(
    name="store",
    cls=StoreGroup,
    table={
        "keep": Entry("proctor.cli.store_keep", "keep", "Keep a built scenario under a name."),
        "add": Entry(
            "proctor.cli.store_add", "add", "Add traces of files to a store of live traces."
        ),
        "stats": Entry(_HERE, "stats", "What a store of live traces holds."),
        "prune": Entry(_HERE, "prune", "Forget old traces."),
        "migrate": Entry(_HERE, "migrate", "Bring a store's tables up to date."),
        "export": Entry(_HERE, "export", "Write traces of a store to a file."),
    },
    examples=[
        Example("proctor store meadow-7 meadow", "keep the built scenario in the folder `meadow`"),
        Example("proctor store add runs/", "traces of files among the live ones"),
        Example("proctor store stats", "how many traces, how large, since when"),
        Example("proctor store prune --older-than 30d", "forget what nobody looks at any more"),
    ],
)
def store() -> None:
    """Keep built scenarios, and look after live traces."""


def _url(function: Any) -> Any:
    return click.option(
        "--store", "url", default=DEFAULT_STORE, show_default=True, help="Which store."
    )(function)


@click.command(
    name="stats",
    cls=Command,
    examples=[
        Example("proctor store stats", "the store of this folder"),
        Example("proctor store stats --store postgresql://proctor@db/traces --json", "another"),
    ],
)
@_url
@click.option("--json", "as_json", is_flag=True, help="One document.")
def stats(url: str, *, as_json: bool) -> None:
    """What a store of live traces holds."""
    from proctor.server.store import existing_store
    from proctor.server.store.store import PageRequest

    opened = existing_store(url)
    figures = opened.figures()
    ends = [opened.traces(page=PageRequest(1, 0, sort)) for sort in ("started", "newest")]
    first, last = (_moment(rows[0].started_ns) if rows else None for rows in ends)
    told = {**figures._asdict(), "bytes": opened.size(), "first": first, "last": last}
    opened.close()
    if as_json:
        click.echo(json.dumps(told))
        return
    for name, value in told.items():
        click.echo(f"{name:<10} {_shown(name, value)}")


def _shown(name: str, value: Any) -> str:
    """A figure as a person reads it; --json has all its digits."""
    if value is None:
        return "unknown" if name == "cost_usd" else "–"
    if name == "bytes":
        return f"{value / 1e6:,.1f} MB"
    if name == "cost_usd":
        return dollars(value)
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _moment(nanoseconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="seconds")


@click.command(
    name="prune",
    cls=Command,
    examples=[Example("proctor store prune --older-than 30d", "keep a month")],
)
@_url
@click.option("--older-than", type=Duration(), required=True, help="Since nothing was added.")
def prune(url: str, older_than: float) -> None:
    """Forget old traces."""
    from proctor.server.store import existing_store

    opened = existing_store(url)
    gone = opened.prune(time.time_ns() - int(older_than * 1e9))
    opened.compact()
    opened.close()
    click.echo(f"{plural(gone, 'trace')} forgotten")


@click.command(
    name="migrate",
    cls=Command,
    examples=[Example("proctor store migrate", "after an upgrade; `serve` does it by itself too")],
)
@_url
def migrate(url: str) -> None:
    """Bring a store's tables up to date."""
    from proctor.server.store import existing_store

    opened = existing_store(url)
    click.echo(f"the store is at version {opened.migrate()}")
    opened.close()


@click.command(
    name="export",
    cls=Command,
    examples=[
        Example("proctor store export -o traces.jsonl", "everything, nothing lost"),
        Example(
            "proctor store export --tool search --status error --format otlp-json -o failed.json",
            "only traces with a failed span that called search",
        ),
    ],
)
@_url
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; compressed where it ends in .gz or .zst.",
)
@click.option(
    "--format",
    "shape",
    type=click.Choice(("otlp-json", "otlp-proto", "openinference", "jsonl")),
    default="jsonl",
    show_default=True,
    help="As `trace convert`.",
)
@click.option("--text", default="", help="Words in name, query, answer or id.")
@click.option("--service", help="Only traces of this service.")
@click.option("--session", "session_id", help="Only traces of this session.")
@click.option("--user", "user_id", help="Only traces of this user.")
@click.option("--status", type=click.Choice(("ok", "error")), help="Without or with a failed span.")
@click.option("--tool", help="Only traces that called this tool.")
@click.option("--model", help="Only traces that asked this model.")
def export(url: str, *, output: Path, shape: str, **chosen: Any) -> None:
    """Write traces of a store to a file."""
    from proctor.server.store import existing_store
    from proctor.server.store.store import TraceFilter
    from proctor.spec import load_configuration
    from proctor.trace.export import save_traces

    opened = existing_store(url, prices=load_configuration().settings.price_table())
    ids = opened.ids(TraceFilter(**chosen))
    traces = (trace for each in ids if (trace := opened.trace(each)) is not None)
    count = save_traces(traces, output, shape)
    opened.close()
    click.echo(f"{plural(count, 'trace')} written to {output}")
