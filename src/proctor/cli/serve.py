"""`proctor serve`: receive live traces, keep, evaluate and show them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import Duration, host_option, log_options, require_server_extra

if TYPE_CHECKING:
    from proctor.server.app import Service
    from proctor.server.store.store import SqlStore
    from proctor.server.watch import Watcher

DEFAULT_STORE = "sqlite:///proctor-traces.db"
DEFAULT_PORT = 4318
"""OTLP over HTTP has this port everywhere, so exporters need no setting but the host."""


@click.command(
    cls=Command,
    examples=[
        Example("proctor serve", "then run agents with the line it prints"),
        Example("proctor serve --evaluate --retention 30d", "look at every trace, forget old ones"),
        Example(
            "proctor serve --host 0.0.0.0 --store postgresql://proctor@db/traces",
            "for other machines; the token comes from PROCTOR_TOKEN",
        ),
    ],
)
@host_option
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port; that of OTLP when absent, 0 takes any free one.",
)
@click.option(
    "--store",
    "url",
    default=DEFAULT_STORE,
    show_default=True,
    help="Where traces are kept: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
)
@click.option("--token", envvar="PROCTOR_TOKEN", help="What clients must bring.")
@click.option("--evaluate", is_flag=True, help="Score and diagnose traces once they are quiet.")
@click.option(
    "--quiet-after",
    type=Duration(),
    default="10s",
    show_default=True,
    help="How long nothing must be added to a trace before it is evaluated.",
)
@click.option(
    "--checks",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A suite with one case, whose checks are run on every trace.",
)
@click.option("--judge", help="PROVIDER:MODEL that judges the reasoning of a share of traces.")
@click.option(
    "--judge-share",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Which share that is.",
)
@click.option("--alert", "webhook", help="An address that alerts are posted to, as JSON.")
@click.option("--langfuse", help="A Langfuse server that scores are pushed to.")
@click.option(
    "--results", type=click.Path(path_type=Path, file_okay=False), help="A folder of runs to show."
)
@click.option(
    "--readers",
    type=click.IntRange(0, 64),
    help="Processes that read spans for the one that writes them. "
    "[default: one for each free processor, at most 4]",
)
@click.option(
    "--retention", type=Duration(), help="Forget traces this long after the last addition."
)
@log_options
def serve(host: str, port: int, url: str, token: str | None, **options: Any) -> None:
    """Receive live traces over OTLP, keep and show them.

    Every trace is answered for only after it is on disk. Ctrl-C ends it; what was taken in by
    then is written first.
    """
    require_server_extra()
    from proctor.server.auth import check_host
    from proctor.server.decoder_process import started

    check_host(host, token)
    _check_evaluation(options)
    with started(options["readers"]) as readers:
        # What follows takes a moment to import: meanwhile the readers do the same.
        _serve(host, port, url, token, {**options, "readers": readers})


def _serve(host: str, port: int, url: str, token: str | None, options: dict[str, Any]) -> None:
    from proctor.server.app import make_app, serve_until_told
    from proctor.server.store import open_store
    from proctor.spec import load_configuration

    store = open_store(url, prices=load_configuration().settings.price_table())
    service = _service(store, options)
    serve_until_told(make_app(service, token), host, port, _welcome)


def _check_evaluation(options: dict[str, Any]) -> None:
    """Refuse what would have no effect."""
    from proctor.errors import ProctorError

    names = {
        "checks": "--checks",
        "judge": "--judge",
        "webhook": "--alert",
        "langfuse": "--langfuse",
    }
    given = [flag for name, flag in names.items() if options[name] is not None]
    if given and not options["evaluate"]:
        raise ProctorError(
            f"{' and '.join(given)} without --evaluate would do nothing", hint="add --evaluate"
        )


def _service(store: SqlStore, options: dict[str, Any]) -> Service:
    from proctor.server.app import Service

    watcher = _watcher(store, options) if options["evaluate"] else None
    return Service.receiving(
        store,
        readers=options["readers"],
        watcher=watcher,
        retention_seconds=options["retention"],
        results=options["results"],
    )


def _watcher(store: SqlStore, options: dict[str, Any]) -> Watcher:
    from proctor.server.langfuse_scores import Langfuse
    from proctor.server.watch import Watcher, WatchOptions, Webhook, log_alert, planned_checks

    judge = None
    if options["judge"] is not None:
        from proctor.checks.judge import Judge
        from proctor.llm import get_model

        judge = Judge(get_model(options["judge"]))
    case, checks = planned_checks(options["checks"]) if options["checks"] else (None, ())
    how = WatchOptions(
        quiet_seconds=options["quiet_after"],
        judge=judge,
        judge_share=options["judge_share"],
        checks=checks,
        case=case,
    )
    push = Langfuse.from_environment(options["langfuse"]).push if options["langfuse"] else None
    alert = Webhook(options["webhook"]) if options["webhook"] else log_alert
    return Watcher(store, how, alert=alert, push=push)


def _welcome(address: str) -> None:
    logging.getLogger("proctor.serve").info("receiving and showing traces at %s", address)
    click.echo(f"receiving and showing traces at {address}", err=True)
    click.echo(f"  OTEL_EXPORTER_OTLP_ENDPOINT={address} python your_agent.py", err=True)
    click.echo("  Ctrl-C to stop", err=True)
