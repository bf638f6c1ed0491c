"""`proctor store add`: traces of files into the store of live traces, the way live ones take."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import click

from proctor.cli._command import Command, Example
from proctor.cli.serve import DEFAULT_STORE
from proctor.cli.trace_files import Loaded, files_argument, redaction_option
from proctor.errors import EXIT_CANNOT_JUDGE
from proctor.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proctor.llm.prices import PriceTable
    from proctor.server.decoder_process import DecodedRows
    from proctor.trace import Trace
    from proctor.trace.redact import Redactor


@click.command(
    name="add",
    cls=Command,
    examples=[
        Example("proctor store add runs/", "then look at them: `proctor serve`"),
        Example("proctor store add run.json --store sqlite:///old.db", "another store"),
    ],
)
@files_argument
@click.option("--store", "url", default=DEFAULT_STORE, show_default=True, help="Which store.")
@redaction_option
def add(files: tuple[str, ...], url: str, no_redact: bool) -> None:
    """Add traces of files to a store of live traces.

    Files of any format, folders, globs, or - for standard input. The store is made when there is
    none. What is there already is not doubled: a span counts once, however often it is added.
    """
    from proctor.server.store import open_store
    from proctor.server.store.rows import Batch
    from proctor.spec import load_configuration
    from proctor.trace.redact import redactor_for

    loaded = Loaded(files)
    if not loaded.begin():
        loaded.leave()
    store = open_store(url, prices=load_configuration().settings.price_table())
    spans, touched, refused = 0, set[str](), 0
    try:
        for together in _together(_made(loaded, redactor_for(not no_redact), store.prices)):
            batch = Batch()
            for each in together:
                batch.extend(each.batch())
                refused += bool(each.refused)
            store.write(batch)
            spans += len(batch.spans)
            touched |= batch.touched
    finally:
        store.close()
    click.echo(f"{plural(spans, 'span')} of {plural(len(touched), 'trace')} added to {url}")
    loaded.leave(EXIT_CANNOT_JUDGE if refused else 0)


def _made(
    traces: Iterable[Trace], redactor: Redactor | None, prices: PriceTable | None
) -> Iterator[DecodedRows]:
    """The rows of each trace, made as the server makes those of a request."""
    from proctor.sanitize import line
    from proctor.server.decoder_process import make
    from proctor.server.wire import PROTOBUF, SPANS
    from proctor.trace.export import write_traces

    for trace in traces:
        body = BytesIO()
        write_traces([trace], body, "otlp-proto", redact=redactor or False)
        made = make(body.getvalue(), PROTOBUF, SPANS, None, prices)
        if made.message:
            level = "error" if made.refused else "warning"
            click.echo(f"{level}: trace {line(trace.trace_id, 80)}: {made.message}", err=True)
        yield made


def _together(every: Iterable[DecodedRows]) -> Iterator[list[DecodedRows]]:
    """Rows that go into one transaction: as many as the server would take at once."""
    from proctor.server.ingest import MAX_TOGETHER

    together: list[DecodedRows] = []
    size = 0
    for made in every:
        together.append(made)
        size += sum(len(chunk) for _, chunk, _ in made.chunks)
        if size >= MAX_TOGETHER:
            yield together
            together, size = [], 0
    if together:
        yield together
