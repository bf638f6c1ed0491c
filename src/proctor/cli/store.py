"""`proctor store`: the store of live traces."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from proctor import api
from proctor.cli._command import CommandGroup
from proctor.cli._options import DURATION, FILE, json_option, option
from proctor.cli.serve import DEFAULT_STORE
from proctor.cli.trace import TraceFiles, files_argument, redaction_option
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.formatting import byte_size, dollars, percent, plural
from proctor.sanitize import line


@click.group(
    cls=CommandGroup,
    moved={
        "keep": "is now `proctor scenario store`",
        "migrate": "is no longer needed: a store is migrated when it is opened",
    },
)
def store() -> None:
    """Manage the trace store.

    Examples:
      # how many traces, how large, since when
      proctor store stats
      # add trace files to the live traces
      proctor store add runs/
      # delete old traces
      proctor store prune --older-than 30d
      # let a colleague read
      proctor store token add ann --role viewer
    """


store_option = option("--store", "url", "The trace store.", default=DEFAULT_STORE)


@store.command()
@store_option
@option("--by", "Add error rate and percentiles over time.", choices=("hour", "day"))
@json_option
def stats(url: str, *, by: str | None, as_json: bool) -> None:
    """Show how many traces a store holds, and their totals.

    Examples:
      # error rate, p50, p95 and p99 of the last days
      proctor store stats --by day
      # the store in this folder
      proctor store stats
      # another
      proctor store stats --store postgresql://proctor@db/traces --json
    """

    from proctor.server.store import existing_store
    from proctor.server.store.store import PageRequest

    with closing(existing_store(url)) as opened:
        figures, size = opened.figures(), opened.size()
        # One row from each end, which the index answers at once, however many traces there are.
        ends = [opened.traces(page=PageRequest(1, 0, sort)) for sort in ("started", "newest")]
        periods = opened.over_time(by=by) if by else []
    first, last = (moment(rows[0].started_ns) if rows else None for rows in ends)
    record = {**figures._asdict(), "bytes": size, "first": first, "last": last}
    record["error_rate"] = figures.error_rate
    if as_json:
        if by:
            record["over_time"] = [
                {**each._asdict(), "start": moment(each.start_ns), "error_rate": each.error_rate}
                for each in periods
            ]
        click.echo(json.dumps(record))
        return
    for name, value in record.items():
        click.echo(f"{name:<10} {_text(name, value)}")
    for each in periods:
        times = [_text("ms", value) for value in (each.p50_ms, each.p95_ms, each.p99_ms)]
        click.echo(
            f"{moment(each.start_ns)}  {plural(each.traces, 'trace'):>14}  "
            f"{percent(each.error_rate):>6} failed  "
            f"p50 {times[0]} ms  p95 {times[1]} ms  p99 {times[2]} ms"
        )


def moment(nanoseconds: int) -> str:
    """Return a time of the store for people."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="seconds")


def _text(name: str, value: Any) -> str:
    """Format a figure for people; --json has all digits."""
    if value is None:
        return "unknown" if name == "cost_usd" else "–"
    if name == "error_rate":
        return percent(value)
    if name == "bytes":
        return byte_size(value)
    if name == "cost_usd":
        return dollars(value)
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@store.command()
@files_argument
@store_option
@redaction_option
def add(files: tuple[str, ...], url: str, no_redact: bool) -> None:
    """Add traces from files.

    Takes files of any format, folders, globs, or - for standard input. The store is created if it
    does not exist. A span counts once, however often it is added.

    Examples:
      # then look at them: `proctor serve`
      proctor store add runs/
      # another store
      proctor store add run.json --store sqlite:///old.db
    """
    from proctor.server.ingest import add_traces
    from proctor.server.store import open_store

    loaded = TraceFiles(files)
    # Nothing readable: no empty store is created.
    if not loaded.begin():
        loaded.exit()
    settings = api.settings().settings
    redactor = None if no_redact else settings.redactor()
    with closing(open_store(url, prices=settings.price_table())) as opened:
        added = add_traces(loaded, opened, redactor)
    for level, trace_id, message in added.problems:
        click.echo(f"{level}: trace {line(trace_id, 80)}: {message}", err=True)
    click.echo(f"{plural(added.spans, 'span')} of {plural(added.traces, 'trace')} added to {url}")
    refused = any(level == "error" for level, _, _ in added.problems)
    loaded.exit(EXIT_CANNOT_JUDGE if refused else 0)


@store.command()
@store_option
@option(
    "--older-than",
    "Delete traces that received no spans for this long.",
    type=DURATION,
    required=True,
)
def prune(url: str, older_than: float) -> None:
    """Delete old traces.

    Examples:
      # keep one month
      proctor store prune --older-than 30d
    """
    from proctor.server.store import existing_store

    with closing(existing_store(url)) as opened:
        gone = opened.prune(time.time_ns() - int(older_than * 1e9))
        opened.compact()  # deleting alone does not shrink the file
    click.echo(f"{plural(gone, 'trace')} deleted")


@store.command()
@store_option
@option(
    "-o",
    "--output",
    "The file to write; compressed if it ends in .gz or .zst.",
    required=True,
    type=FILE,
)
@option(
    "--format",
    "shape",
    "Output format, as in `trace convert`.",
    choices=("otlp-json", "otlp-proto", "openinference", "jsonl"),
    default="jsonl",
)
@option(
    "--text",
    "Only traces with these words in name, query, answer, id.",
    default="",
    show_default=False,
)
@option("--service", "Only traces of this service.")
@option("--session", "session_id", "Only traces of this session.")
@option("--user", "user_id", "Only traces of this user.")
@option("--status", "Only traces without or with failed spans.", choices=("ok", "error"))
@option("--tool", "Only traces that called this tool.")
@option("--model", "Only traces that called this model.")
def export(url: str, *, output: Path, shape: str, **chosen: Any) -> None:
    """Write traces to a file.

    Examples:
      # everything, without loss
      proctor store export -o traces.jsonl
      # only traces with a failed span that called search
      proctor store export --tool search --status error --format otlp-json -o failed.json
    """
    from proctor.server.store import existing_store
    from proctor.server.store.store import TraceFilter
    from proctor.trace.export import save_traces

    with closing(existing_store(url, prices=api.settings().settings.price_table())) as opened:
        # Ids first, then one trace at a time: the store may be larger than memory.
        ids = opened.ids(TraceFilter(**chosen))
        traces = (trace for each in ids if (trace := opened.trace(each)) is not None)
        count = save_traces(traces, output, shape)
    click.echo(f"{plural(count, 'trace')} written to {output}")


# -- access ----------------------------------------------------------------------------------------

access_option = option(
    "--store",
    "url",
    "The server's store, or http(s)://HOST of the server with an admin's PROCTOR_TOKEN.",
    default=DEFAULT_STORE,
)


@store.group(cls=CommandGroup)
def token() -> None:
    """Manage who may use the server.

    Examples:
      # a token for a colleague, printed once
      proctor store token add ann --role writer
      # who has one
      proctor store token list
      # refused within seconds
      proctor store token revoke ann
    """


@token.command(name="add")
@click.argument("name")
@option(
    "--role",
    "viewer reads, writer also labels, promotes and sends spans, admin also manages tokens.",
    choices=("viewer", "writer", "admin"),
    required=True,
)
@option("--project", "A project of `serve --project`, instead of the server's own store.")
@access_option
def add_token(name: str, role: Any, project: str | None, url: str) -> None:
    """Create a token and print it, once.

    The store has its hash only. Once a store has a token, its server needs one from everyone,
    except for spans from its own machine (see `serve --ingest-token`).

    Examples:
      # may label and send spans
      proctor store token add ann --role writer
      # reads one project, nothing of another
      proctor store token add web-viewer --role viewer --project web
    """
    from proctor.runs.provenance import who
    from proctor.server.store import open_store

    if _is_server(url):
        form = {"name": name, "role": role, **({"project": project} if project else {})}
        click.echo(_of_server(url, "/api/tokens", form)["token"])
        return
    with closing(open_store(url)) as opened:
        click.echo(opened.add_token(name, role, project, who=who()))


@token.command(name="list")
@access_option
@json_option
def list_tokens(url: str, as_json: bool) -> None:
    """List tokens with role and project, revoked ones included.

    Examples:
      # of the store in this folder
      proctor store token list
    """
    from proctor.server.store import existing_store

    if _is_server(url):
        rows = _of_server(url, "/api/tokens")["tokens"]
    else:
        with closing(existing_store(url)) as opened:
            rows = [row._asdict() for row in opened.tokens()]
    for row in rows:
        row.pop("hash", None)  # of no use to a reader
    if as_json:
        click.echo(json.dumps({"tokens": rows}))
        return
    for row in rows:
        state = f"revoked {moment(row['revoked_ns'])}" if row["revoked_ns"] else "valid"
        place = f"project {row['project']}" if row["project"] else "server"
        created = moment(row["created_ns"])
        click.echo(f"{row['name']:<20} {row['role']:<7} {place:<20} {created}  {state}")


@token.command()
@click.argument("name")
@access_option
def revoke(name: str, url: str) -> None:
    """Revoke a token; servers refuse it within seconds.

    Examples:
      # at once, also for open pages
      proctor store token revoke ann
    """
    from proctor.runs.provenance import who
    from proctor.server.store import existing_store

    if _is_server(url):
        from urllib.parse import quote

        _of_server(url, f"/api/tokens/{quote(name, safe='')}/revoke", {})
    else:
        with closing(existing_store(url)) as opened:
            opened.revoke_token(name, who=who())
    click.echo(f"{line(name, 100)} is revoked")


@store.command()
@access_option
@option("--limit", "How many changes, the latest.", type=click.IntRange(1, 1000), default=100)
@json_option
def audit(url: str, *, limit: int, as_json: bool) -> None:
    """Show who labelled, promoted, or changed tokens, newest first.

    Examples:
      # the last changes
      proctor store audit --limit 20
    """
    from proctor.server.store import existing_store

    if _is_server(url):
        rows = _of_server(url, f"/api/audit?limit={limit}")["audit"]
    else:
        with closing(existing_store(url)) as opened:
            rows = [row._asdict() for row in opened.audit(limit)]
    if as_json:
        click.echo(json.dumps({"audit": rows}))
        return
    for row in rows:
        who, action, detail = (line(row[key], 300) for key in ("who", "action", "detail"))
        click.echo(f"{moment(row['at_ns'])}  {who:<20} {action:<12} {detail}")


def _is_server(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _of_server(url: str, path: str, form: dict[str, str] | None = None) -> Any:
    """Return the answer of a server to an admin's request; a form is a change."""
    import httpx

    headers = {"authorization": f"Bearer {os.environ.get('PROCTOR_TOKEN', '')}"}
    method = "GET" if form is None else "POST"
    try:
        reply = httpx.request(
            method, url.rstrip("/") + path, headers=headers, data=form, timeout=60
        )
        if reply.is_success:
            return reply.json()
        is_json = reply.headers.get("content-type", "").startswith("application/json")
        said = reply.json() if is_json else {"error": reply.text}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ProctorError(f"no answer of a Proctor server: {error}", where=url) from None
    hint = said.get("hint") or (
        "give an admin's token in PROCTOR_TOKEN" if reply.status_code in (401, 403) else None
    )
    raise ProctorError(line(str(said.get("error")), 300), where=url, hint=hint)
