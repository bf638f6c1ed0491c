"""Notifications through Apprise, sent in the background.

Guarantees: URLs are checked before anything is run; a service that is slow or down never fails a
run and delays its end by at most `MAX_WAIT`; URLs contain secrets, so only their scheme is ever
shown (`slack://…`). A failed delivery is reported and not retried: Apprise retries if the URL says
so (`?retry=`).

A template contains `{field}` for the names in `FIELDS`, without attributes, indices or formats, so
that it can do nothing but insert text. An unknown field is an error before the run. Every value is
one line of plain text without control characters, secrets or mentions, whatever an agent wrote.
"""

from __future__ import annotations

import logging
import re
import socket
import string
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args
from urllib.parse import unquote

from proctor.errors import ProctorError, did_you_mean, hint_among
from proctor.formatting import money
from proctor.imports import needs_extra
from proctor.report.figures import sentence
from proctor.runs.run import Run
from proctor.sanitize import line
from proctor.spec.config import NotifyOn
from proctor.trace.redact import default_redactor

if TYPE_CHECKING:
    from proctor.spec import Configuration


FIELDS: Mapping[str, str] = {
    "name": "the name of the experiment",
    "outcome": "passed, failed, not judged, stopped, interrupted, or did not start",
    "events": "which of end, failure, regression, budget happened",
    "summary": "how many cells and trials passed, with denominators",
    "passed": "trials that passed",
    "judged": "trials that were judged",
    "trials": "trials that finished, judged or not",
    "errors": "trials that could not be judged",
    "cost": "the cost of the agents' model calls, as far as prices are known",
    "stopped": "why the run ended before its plan did",
    "failures": "the three checks that failed most, with counts",
    "regression": "the result of the gate against the baseline, if it is a regression",
    "exit_code": "the exit code of the command",
    "run_id": "the id of the run",
    "path": "the run folder",
    "host": "the machine it ran on",
    "details": "summary, failures, regression, stopped, cost and path, one line each if not empty",
}
"""The fields of a template and their meaning; a field without a value is empty."""

DEFAULT_TEMPLATE = "{name}: {outcome}\n{details}"

MAX_FAILURES = 3
"""Checks named in a message: it is read on a phone, and the report has the rest."""

MAX_VALUE = 300
MAX_TEMPLATE = 4_000
"""Characters; services cut or refuse longer messages."""

_DETAILS = ("summary", "failures", "regression", "stopped", "cost", "path")

# Several chat services alert people for `@name` and Slack's `<!channel>`, wherever they occur.
_MENTION = re.compile(r"@(?=\w)|<(?=[!@#])")

_LIMITS = ("trial limit", "time limit", "token limit", "cost limit", "no known price")
"""How `proctor.trials.options.RunBudget` describes a limit that stopped a run."""


class Notice(NamedTuple):
    """A message to send: the events it is about, and the values of all fields."""

    events: frozenset[NotifyOn]
    fields: Mapping[str, str]

    @property
    def title(self) -> str:
        """Return the subject, for services that have one."""
        return f"proctor: {self.fields['name']} {self.fields['outcome']}"


def checked_template(text: str, where: str) -> str:
    """Return a template that `render` accepts; raise an error for any other."""
    if len(text) > MAX_TEMPLATE:
        raise ProctorError(
            f"the template has {len(text):,} characters; at most {MAX_TEMPLATE:,} are allowed",
            where=where,
        )
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ProctorError(
            f"not a template: {error}", where=where, hint="write {{ and }} for braces"
        ) from None
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if name not in FIELDS:
            hint = hint_among(name, FIELDS)
            raise ProctorError(f"no field {name!r}", where=where, hint=hint)
        if spec or conversion:
            raise ProctorError(
                f"the field {name!r} has a format", where=where, hint=f"write just {{{name}}}"
            )
    return text


def read_template(given: str | None, where: str, folder: Path | None = None) -> str:
    """Return the given template, that of `@FILE`, or the default."""
    if given is None:
        return DEFAULT_TEMPLATE
    if not given.startswith("@"):
        # A shell passes `\n` as two characters, which stand for a line break.
        return checked_template(given.replace("\\n", "\n"), where)
    path = (folder or Path()) / Path(given[1:]).expanduser()
    try:
        return checked_template(path.read_text(encoding="utf-8").rstrip("\n"), str(path))
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ProctorError(f"cannot read the template: {reason}", where=str(path)) from None


def render(template: str, notice: Notice) -> str:
    """Return the message of a notice."""
    return template.format_map(notice.fields).strip()


def plain_line(value: object, limit: int = MAX_VALUE) -> str:
    """Return a value as one line without control characters, secrets and mentions."""
    # A zero-width space after the mark disables a mention; the text reads the same.
    return _MENTION.sub(
        lambda m: m.group() + "\u200b", line(default_redactor().text(str(value)), limit)
    )


def run_notice(
    run: Run, exit_code: int, *, interrupted: bool, regression: str | None = None
) -> Notice:
    """Describe a run that has ended; `regression` is the result of the gate, if it found one."""
    totals = run.totals
    at_limit = run.stopped is not None and any(limit in run.stopped for limit in _LIMITS)
    happened: dict[NotifyOn, bool] = {
        "end": True,
        "failure": exit_code != 0,
        "regression": regression is not None,
        "budget": at_limit,
    }
    # In order of precedence: a failed check counts more than a stop, as in the exit code.
    outcome = "passed" if exit_code == 0 else "not judged"
    if interrupted:
        outcome = "interrupted"
    elif exit_code == 1:
        outcome = "failed"
    elif run.stopped:
        outcome = "stopped"
    failures = [f"{f.check_id} {f.count} of {f.of}" for f in run.failures[:MAX_FAILURES]]
    return notice(
        (event for event, did in happened.items() if did),
        name=run.path.parent.name,
        outcome=outcome,
        summary=sentence(run.cells, totals),
        passed=totals.passed,
        judged=totals.judged,
        trials=totals.trials,
        errors=totals.unjudged,
        cost=money(totals.cost_usd, totals.unpriced_calls),
        stopped=run.stopped or "",
        failures=f"failed: {', '.join(failures)}" if failures else "",
        regression=regression or "",
        exit_code=exit_code,
        run_id=run.run_id,
        path=run.path,
    )


def failed_start_notice(name: str, error: ProctorError) -> Notice:
    """Describe a run that could not start."""
    return notice(
        ("end", "failure"),
        name=name,
        outcome="did not start",
        stopped=error,
        exit_code=error.exit_code,
    )


def notice(events: Iterable[NotifyOn], **values: object) -> Notice:
    """Build a notice: every field has a value, sanitised.

    A run that fails, regresses or hits a limit has also ended: it is about several events.
    """
    happened = frozenset(events)
    names = [event for event in get_args(NotifyOn) if event in happened]
    values = {"host": socket.gethostname(), "events": ", ".join(names), **values}
    fields = {name: plain_line(values.get(name, "")) for name in FIELDS}
    details = [fields[name] for name in _DETAILS if fields[name]]
    return Notice(happened, {**fields, "details": "\n".join(details)})


MAX_WAIT = 10.0
"""Seconds that a command waits for its notifications: Apprise gives a service 4 to answer."""

INTERRUPTED_WAIT = 2.0
"""Seconds to wait after Ctrl-C: the command promises to end within 5."""

BASELINE = "baseline"
"""The default tag of the run that the event `regression` compares with."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")
_SEPARATORS = re.compile(r"[/:@?&=#,]+")

# Shorter parts of a URL (`en`, `80`) are not secret, and an error message may need them.
_MIN_SECRET = 4


class NotifyRequest(NamedTuple):
    """Where to send notifications, about which events, with which template."""

    to: tuple[str, ...]
    on: frozenset[NotifyOn]
    template: str
    baseline: str = BASELINE


def notify_request(
    configuration: Configuration,
    to: Sequence[str] = (),
    on: Sequence[str] = (),
    template: str | None = None,
    baseline: str | None = None,
) -> NotifyRequest:
    """Combine options and settings; each option overrides its own setting only."""
    settings = configuration.settings.notify
    configured = settings.to.split() if isinstance(settings.to, str) else settings.to
    # A path in the settings is relative to their file, one on the command line to this folder.
    text = (
        read_template(settings.template, "notify.template", configuration.folder)
        if template is None
        else read_template(template, "--notify-template")
    )
    return NotifyRequest(
        to=tuple(to or configured),
        on=frozenset(cast("Sequence[NotifyOn]", on) or settings.on),
        template=text,
        baseline=baseline or settings.baseline,
    )


def masked(address: str) -> str:
    """Return what may be shown of a URL: its scheme."""
    scheme = _SCHEME.match(address.strip())
    return f"{scheme.group().lower()}://…" if scheme else "a URL without a scheme"


class Notifier:
    """Sends notices; call `close` at the end. Problems are passed to `warn`."""

    def __init__(self, request: NotifyRequest, warn: Callable[[str], None]) -> None:
        self._request = request
        self._warn = warn
        self._services = [_service(address) for address in request.to]
        self._deliveries: list[_Delivery] = []

    @property
    def wants_regressions(self) -> bool:
        """Return whether a run must be compared with its baseline."""
        return bool(self._services) and "regression" in self._request.on

    def regression(self, run: Run, root: Path) -> str | None:
        """Return the result of the gate if a run is worse than its baseline, else None."""
        from proctor import api

        try:
            facts = api.gate(run, against=self._request.baseline, results=root)
        except ProctorError as error:
            self._warn(f"not compared with {self._request.baseline!r}: {error}")
            return None
        if facts.verdict != "REGRESSION":
            return None
        return f"{facts.verdict} against {self._request.baseline}: {facts.reason}"

    def send(self, notice: Notice) -> bool:
        """Start to send a notice to all URLs, if it is about a requested event."""
        if not self._services or not notice.events & self._request.on:
            return False
        message = render(self._request.template, notice)
        for address, service in zip(self._request.to, self._services, strict=True):
            self._deliveries.append(_Delivery(address, service, notice, message))
        return True

    def close(self, max_wait: float = MAX_WAIT) -> None:
        """Wait for all deliveries, and report those that failed."""
        deadline = time.monotonic() + max_wait  # one deadline for all: they run in parallel
        for delivery in self._deliveries:
            delivery.thread.join(max(0.0, deadline - time.monotonic()))
            if delivery.thread.is_alive():
                self._warn(f"{masked(delivery.address)} did not answer within {max_wait:g} s")
            elif delivery.problem is not None:
                self._warn(f"{masked(delivery.address)} was not notified: {delivery.problem}")
        self._deliveries = []


class _Delivery:
    """Sends one notice to one URL, in a thread that does not delay the end of the process."""

    def __init__(self, address: str, service: Any, notice: Notice, message: str) -> None:
        self.address = address
        self.problem: str | None = None
        self._service = service
        self._notice = notice
        self._message = message
        self.thread = threading.Thread(target=self._send, name="proctor-notify", daemon=True)
        self.thread.start()

    def _send(self) -> None:
        import apprise

        # Services show the two in different colours.
        bad = self._notice.events - {"end"}
        kind = apprise.NotifyType.FAILURE if bad else apprise.NotifyType.SUCCESS
        try:
            sender: Any = apprise.Apprise(asset=_asset())
            sender.add(self._service)
            delivered = sender.notify(
                body=self._message,
                title=self._notice.title,
                notify_type=kind,
                body_format=apprise.NotifyFormat.TEXT,
                interpret_escapes=False,
            )
        except Exception as error:  # noqa: BLE001  hundreds of services, each with its own errors
            self.problem = without_address(f"{type(error).__name__}: {error}", self.address)
            return
        if not delivered:
            # Older versions of Apprise have no `logs`: they do not say why.
            logs: Any = getattr(delivered, "logs", list)
            messages = [str(getattr(entry, "message", "")) for entry in logs()]
            reason = next((text for text in reversed(messages) if text), "no reason was given")
            self.problem = without_address(reason, self.address)


def _service(address: str) -> Any:
    """Return the service of a URL, or raise an error for a bad one. Nothing is sent."""
    needs_extra("apprise", "notify")
    import apprise

    # Its log messages may contain parts of URLs, which are secret.
    logging.getLogger("apprise").addHandler(logging.NullHandler())
    logging.getLogger("apprise").propagate = False
    services: Any = apprise.Apprise
    found: Any = services.instantiate(address, asset=_asset())
    if found is not None:
        return found
    scheme = _SCHEME.match(address.strip())
    if scheme is None:
        hint = "use an Apprise URL, such as slack://… or mailto://…"
        raise ProctorError("this URL has no scheme", where="--notify", hint=hint)
    name = scheme.group().lower()
    details: Mapping[str, Any] = apprise.Apprise().details()
    known = {
        each
        for service in details["schemas"]
        for key in ("protocols", "secure_protocols")
        for each in service[key] or ()
    }
    if name not in known:
        hint = did_you_mean(name, known) or "https://appriseit.com lists the services"
        raise ProctorError(f"no service is called {name!r}", where="--notify", hint=hint)
    raise ProctorError(
        f"an incomplete or malformed {name}:// URL",
        where="--notify",
        hint="https://appriseit.com documents the URL of each service",
    )


def _asset() -> Any:
    import apprise

    # Messages name Proctor as the sender; text of a run is never read as escapes or emoji.
    return apprise.AppriseAsset(
        app_id="Proctor", app_desc="Proctor", secure_logging=True, interpret_emojis=False
    )


def without_address(text: str, address: str) -> str:
    """Remove all parts of a URL from a message about it."""
    # Services also report parts of their URL, decoded or not; the longest are replaced first.
    rest = address.partition("://")[2]
    parts = {part for each in (rest, unquote(rest)) for part in _SEPARATORS.split(each)}
    for part in sorted({rest, address, *parts}, key=len, reverse=True):
        if len(part) >= _MIN_SECRET:
            text = text.replace(part, "…")
    return line(text, 200)
