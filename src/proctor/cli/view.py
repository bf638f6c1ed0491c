"""`proctor view`: look at runs in the browser."""

from __future__ import annotations

from pathlib import Path

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import host_option, require_server_extra


@click.command(
    cls=Command,
    examples=[
        Example("proctor view", "the runs of this project"),
        Example("proctor view results --no-open --port 8000", "only serve, at a port of your own"),
    ],
)
@click.argument("results", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--store", "url", help="Show the traces of a store as well.")
@host_option
@click.option(
    "--port", default=0, type=click.IntRange(0, 65535), help="The port; 0 takes any free one."
)
@click.option("--token", envvar="PROCTOR_TOKEN", help="What the browser must bring.")
@click.option("--no-open", is_flag=True, help="Do not open the browser.")
def view(
    results: Path | None, *, url: str | None, host: str, port: int, token: str | None, no_open: bool
) -> None:
    """Look at runs in the browser.

    RESULTS is a folder of runs; that of the settings when absent. Nothing is changed, and nothing
    leaves this machine.
    """
    require_server_extra()
    from proctor import api
    from proctor.errors import ProctorError
    from proctor.server.app import Service, make_app, serve_until_told
    from proctor.server.auth import check_host
    from proctor.server.store import existing_store

    root = results or api.results_root()
    if not root.is_dir():
        raise ProctorError(
            "no such folder of runs", where=str(root), hint="`proctor demo` makes a first run"
        )
    check_host(host, token)
    prices = api.settings().settings.price_table()
    service = Service(store=existing_store(url, prices=prices) if url else None, results=root)

    def ready(address: str) -> None:
        place = f"{address}/runs" + (f"?token={token}" if token else "")
        click.echo(f"showing {root} at {address}/runs (Ctrl-C to stop)", err=True)
        if not no_open:
            import webbrowser

            webbrowser.open(place)

    serve_until_told(make_app(service, token), host, port, ready)
