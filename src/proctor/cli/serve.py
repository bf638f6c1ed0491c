"""`proctor serve` and `proctor view`: receive live traces, and show traces and runs."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor import api
from proctor.cli import _options
from proctor.cli._command import Command
from proctor.cli._options import option
from proctor.errors import ProctorError
from proctor.formatting import plural

if TYPE_CHECKING:
    from proctor.server.oidc import SignIn
    from proctor.server.store.store import SqlStore
    from proctor.server.watch import Watcher

DEFAULT_STORE = "sqlite:///proctor-traces.db"

DEFAULT_PORT = 4318
"""The standard port of OTLP over HTTP, so that exporters need no setting but the host."""

viewer_token_option = option(
    "--viewer-token", "A second token, for people who may only read.", envvar="PROCTOR_VIEWER_TOKEN"
)


@click.command(
    cls=Command,
    groups={
        "Common options": "host port url token results evaluate retention",
        "Evaluate traces": "quiet_after checks judge judge_share webhook langfuse langfuse_traces",
        "Access": "viewer_token ingest_token projects rate_limit public_url",
        "Sign-in (OpenID Connect)": "oidc oidc_client oidc_secret oidc_claim oidc_roles",
        "Operation": "readers log_file log_level",
    },
)
@_options.host_option
@option("--port", "The port; 0 picks a free one.", default=DEFAULT_PORT, type=_options.PORT)
@option(
    "--store",
    "url",
    "The trace store: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
    default=DEFAULT_STORE,
)
@option("--token", "Access token that clients must send.", envvar="PROCTOR_TOKEN")
@viewer_token_option
@option(
    "--ingest-token",
    "A token that may only send spans; without it, spans from this machine need none.",
    envvar="PROCTOR_INGEST_TOKEN",
)
@option(
    "--project NAME=STORE[,RESULTS]",
    "projects",
    "A project with a store and results of its own, for its tokens only; repeatable.",
    multiple=True,
)
@option(
    "--rate-limit",
    "Requests per second of each token, twice as many at once.",
    type=click.FloatRange(min=0, min_open=True),
    default=200.0,
)
@option(
    "--public-url",
    "The URL at which browsers reach this server, where a proxy is in front of it.",
)
@option("--oidc ISSUER", "oidc", "People sign in at this provider.", envvar="PROCTOR_OIDC")
@option("--oidc-client", "The client id at the provider.", envvar="PROCTOR_OIDC_CLIENT")
@option(
    "--oidc-secret",
    "The client's secret; without it, the client is a public one.",
    envvar="PROCTOR_OIDC_SECRET",
)
@option("--oidc-claim", "The claim with the values of --oidc-role.", default="groups")
@option(
    "--oidc-role ROLE[@PROJECT]=VALUE",
    "oidc_roles",
    "The role of people with this value; repeatable, the first that matches decides.  "
    "[default: values are the names of roles]",
    multiple=True,
)
@option("--evaluate", "Score and diagnose traces once they are quiet.", is_flag=True)
@option(
    "--quiet-after",
    "How long a trace must receive no spans before it is evaluated.",
    type=_options.DURATION,
    default="10s",
)
@option("--checks", "A suite with one case; its checks run on every trace.", type=_options.FILE)
@option("--judge", "PROVIDER:MODEL that judges the reasoning of a share of traces.")
@option("--judge-share", "The share of traces to judge.", type=click.FloatRange(0, 1), default=0.1)
@option("--alert", "webhook", "A URL to post alerts to, as JSON.")
@option("--langfuse", "A Langfuse server to push scores to.")
@option("--langfuse-traces", "Forward the traces to Langfuse as well.", is_flag=True)
@option("--results", "A results folder to show as well.", type=_options.FOLDER)
@option(
    "--readers",
    "Processes that decode spans.  [default: one per free processor, at most 4]",
    type=click.IntRange(0, 64),
)
@option(
    "--retention", "Delete traces that received no spans for this long.", type=_options.DURATION
)
@_options.log_options
def serve(
    host: str,
    port: int,
    url: str,
    token: str | None,
    viewer_token: str | None,
    ingest_token: str | None,
    **options: Any,
) -> None:
    """Receive, store and show live traces (OTLP).

    Requests are acknowledged only once on disk. Ctrl-C stops the server; everything received by
    then is written first.

    Examples:
      # then run agents with the line it prints
      proctor serve
      # score traces, delete old ones
      proctor serve --evaluate --retention 30d
      # for other machines; the token is PROCTOR_TOKEN, or a generated one that is printed
      proctor serve --host 0.0.0.0 --store postgresql://proctor@db/traces
      # a team: see `proctor store token add --help`
      proctor serve --host 0.0.0.0 --project web=sqlite:///web.db,results/web
      # people sign in at their identity provider
      proctor serve --oidc https://id.example.com --oidc-client proctor --oidc-role writer=ml-team
    """
    _options.require_server_extra()  # before the imports below, which would fail without a hint
    from proctor.server.decoder_process import started

    # Silently ignored, they would look as if traces were being scored.
    if not options["evaluate"]:
        evaluating = "quiet_after checks judge judge_share webhook langfuse"
        _options.refuse_unused(evaluating, "without --evaluate", "add --evaluate")
    if options["judge"] is None:
        _options.refuse_unused("judge_share", "without --judge", "name a model with --judge")
    if options["langfuse_traces"] and not options["langfuse"]:
        raise ProctorError("--langfuse-traces needs --langfuse URL")
    with started(options["readers"]) as readers:
        # These imports take a moment; the reader processes import the same in parallel.
        from proctor.server.app import Service, make_app, run_server
        from proctor.server.auth import LOOPBACK, check_tokens, generated_token
        from proctor.server.store import open_store

        check_tokens(token, viewer_token)
        places = _projects(url, options["results"], options["projects"])
        settings = api.settings().settings

        def receiving(address: str, results: Path | None, **more: Any) -> Service:
            store = open_store(address, prices=settings.price_table())
            return Service.receiving(
                store,
                patterns=settings.redaction.patterns,
                watcher=_watcher(store, options) if options["evaluate"] else None,
                retention_seconds=options["retention"],
                results=results,
                **more,
            )

        sign_in = _sign_in(options)
        if sign_in is not None and (unknown := sign_in.projects - set(places)):
            raise ProctorError(
                f"--oidc-role names the project {min(unknown)!r}, which this server does not have",
                hint="add it with --project",
            )
        service = receiving(url, options["results"], readers=readers)
        generated = None if sign_in else generated_token(host, token, service.store)
        open_ingest = host in LOOPBACK and not (token or ingest_token)
        app = make_app(
            service,
            token or generated,
            viewer_token,
            ingest_token=ingest_token,
            open_ingest=open_ingest,
            projects={
                name: receiving(address, results, suites=results)
                for name, (address, results) in places.items()
            },
            sign_in=sign_in,
            rate=options["rate_limit"],
        )
        run_server(
            app, host, port, lambda address: _announce(address, generated, open_ingest=open_ingest)
        )


def _sign_in(options: dict[str, Any]) -> SignIn | None:
    """Return the sign-in of the options; options without their provider are errors."""
    if not options["oidc"]:
        if options["oidc_client"] or options["oidc_secret"] or options["oidc_roles"]:
            raise ProctorError(
                "--oidc-client, --oidc-secret and --oidc-role have no effect without --oidc",
                hint="give the URL of the provider with --oidc",
            )
        return None
    if not options["oidc_client"]:
        raise ProctorError(
            "--oidc needs the id of this server at the provider",
            hint="register it there, with the redirect URI URL/oidc/callback, and give its id "
            "with --oidc-client",
        )
    from proctor.server.oidc import SAME_NAMES, SignIn, role_rule

    rules = [role_rule(each) for each in options["oidc_roles"]]
    return SignIn(
        options["oidc"],
        options["oidc_client"],
        options["oidc_secret"],
        claim=options["oidc_claim"],
        rules=rules or SAME_NAMES,
        public_url=options["public_url"],
    )


def _projects(
    url: str, results: Path | None, given: tuple[str, ...]
) -> dict[str, tuple[str, Path | None]]:
    """Return store and results folder of each project; no two may share a place."""
    found: dict[str, tuple[str, Path | None]] = {}
    for each in given:
        name, _, rest = each.partition("=")
        address, _, folder = rest.partition(",")
        if not name.strip() or "://" not in address or name in found:
            raise ProctorError(
                f"--project {each!r} is not a new project",
                hint="write NAME=STORE or NAME=STORE,RESULTS: web=sqlite:///web.db,results/web",
            )
        if folder and not Path(folder).is_dir():
            raise ProctorError(f"no results folder of project {name}", where=folder)
        found[name] = (address, Path(folder) if folder else None)
    every = [(url, results), *found.values()]
    # The same file by another path is the same store.
    stores = [Path(a[10:]).resolve() if a.startswith("sqlite:///") else a for a, _ in every]
    folders = [folder.resolve() for _, folder in every if folder is not None]
    nested = any(
        a.is_relative_to(b) for i, a in enumerate(folders) for j, b in enumerate(folders) if i != j
    )
    if nested or len(set(stores)) < len(stores):
        raise ProctorError(
            "two projects share a store or a results folder",
            hint="give each its own, none inside another: their tokens must not see the other's",
        )
    return found


def _watcher(store: SqlStore, options: dict[str, Any]) -> Watcher:
    from proctor.server.watch import (
        Langfuse,
        Watcher,
        WatchOptions,
        Webhook,
        log_alert,
        planned_checks,
    )

    judge = None
    if options["judge"] is not None:
        from proctor.checks.judge import Judge
        from proctor.llm import get_model

        judge = Judge(get_model(options["judge"]))
    # One case for all traces: live traces do not say which case they belong to.
    case, checks = planned_checks(options["checks"]) if options["checks"] else (None, ())
    how = WatchOptions(
        quiet_seconds=options["quiet_after"],
        judge=judge,
        judge_share=options["judge_share"],
        checks=checks,
        case=case,
    )
    push, forward = None, options["langfuse_traces"]
    if options["langfuse"]:
        push = Langfuse.from_environment(options["langfuse"], forward=forward).push
    alert = Webhook(options["webhook"]) if options["webhook"] else log_alert
    return Watcher(store, how, alert=alert, push=push)


def _announce(address: str, generated: str | None, *, open_ingest: bool) -> None:
    # To stderr and to the log file, which a service manager may be the only one to read.
    logging.getLogger("proctor.serve").info("receiving and showing traces at %s", address)
    click.echo(f"receiving and showing traces at {address}", err=True)
    sends = f"OTEL_EXPORTER_OTLP_ENDPOINT={address}"
    if generated:  # never to a log file: it is valid until the server ends
        click.echo(f"  open {address}/?token={generated}", err=True)
        if not open_ingest:
            sends += f' OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer {generated}"'
    click.echo(f"  {sends} python your_agent.py", err=True)
    click.echo("  Ctrl-C to stop", err=True)


@click.command(cls=Command)
@click.argument(
    "place", required=False, metavar="[RESULTS|TRACES]", type=click.Path(path_type=Path)
)
@option("--store", "url", "Show the traces of this store as well.")
@_options.host_option
@option("--port", "The port; 0 picks a free one.", default=0, type=_options.PORT)
@option("--token", "Access token.", envvar="PROCTOR_TOKEN")
@viewer_token_option
@option("--no-open", "Do not open the browser.", is_flag=True)
def view(
    place: Path | None,
    *,
    url: str | None,
    host: str,
    port: int,
    token: str | None,
    viewer_token: str | None,
    no_open: bool,
) -> None:
    """Browse runs in the browser, or a folder of traces.

    RESULTS is a results folder; by default the one in the settings. TRACES is a trace file of any
    format, or a folder of such files. Nothing leaves this machine, and only people change
    something: labels on the page Review, cases on the page of a failing trial.

    Examples:
      # the runs of this project
      proctor view
      # trace files
      proctor view traces/
      # the traces of a store, and runs where there is a results folder
      proctor view --store sqlite:///traces.db
      # serve only, on a fixed port
      proctor view results --no-open --port 8000
    """
    _options.require_server_extra()
    from proctor.runs.folder import all_runs
    from proctor.server.app import Service, make_app, run_server
    from proctor.server.auth import check_tokens, generated_token
    from proctor.server.store import existing_store, open_store

    root = place or api.results_root()
    only_store = url is not None and place is None and not root.exists()
    if not only_store and (not root.exists() or (url and root.is_file())):
        raise ProctorError(
            "no such results folder", where=str(root), hint="`proctor demo` creates a first run"
        )
    check_tokens(token, viewer_token)
    settings = api.settings().settings
    prices = settings.price_table()
    # With --store, the folder is one of runs, which may have none yet.
    shows_traces = place is not None and not url and (place.is_file() or not all_runs(place))
    with contextlib.ExitStack() as stack:
        if place is not None and shows_traces:
            from proctor.cli.trace import TraceFiles
            from proctor.server.ingest import add_traces

            loaded = TraceFiles((str(place),))
            if not loaded.begin():
                raise ProctorError("no run and no readable trace is here", where=str(place))
            # A store of its own: the files stay as they are, and nothing is left behind.
            aside = stack.enter_context(tempfile.TemporaryDirectory(prefix="proctor-view-"))
            store = open_store(f"sqlite:///{aside}/traces.db", prices=prices)
            service = Service(store=store, temporary=True)
            assert service.store is not None
            added = add_traces(loaded, service.store, settings.redactor())
            click.echo(f"read {plural(added.traces, 'trace')} of {place}", err=True)
        else:
            # An existing store only: a wrong name must not create an empty one.
            store = existing_store(url, prices=prices) if url else None
            service = Service(store=store, results=None if only_store else root)
        page = "traces" if shows_traces or only_store else "runs"
        what = "the trace store" if only_store else root
        generated = generated_token(host, token, service.store)

        def announce(address: str) -> None:
            # A token of the user is passed to the browser only and never printed.
            shown = f"{address}/{page}" + (f"?token={generated}" if generated else "")
            click.echo(f"showing {what} at {shown} (Ctrl-C to stop)", err=True)
            if not no_open:
                import webbrowser

                webbrowser.open(f"{address}/{page}?token={token}" if token else shown)

        run_server(make_app(service, token or generated, viewer_token), host, port, announce)
