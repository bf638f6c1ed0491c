"""Notifications through apprise: sent while the work goes on, waited for only so long.

Promise: addresses are checked before anything is spent; a service that is slow or down never fails
a run and delays its end by `PATIENCE` at most; addresses hold secrets, so none is ever shown, only
its kind (`slack://…`). What was not delivered is told, not tried again: apprise does that where an
address asks for it (`?retry=`).
"""

from __future__ import annotations

import logging
import re
import string
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError, did_you_mean, hint_among
from proctor.formatting import money
from proctor.imports import needs_extra
from proctor.report.figures import sentence
from proctor.runs.provenance import host
from proctor.runs.run import Run
from proctor.sanitize import line
from proctor.trace.redact import default_redactor

if TYPE_CHECKING:
    from proctor.spec import Configuration


# What a notification says: events, named fields, and a template that can do nothing but name
# them.
#
# Promise: a template holds `{field}` for fields of a fixed set and no attribute, index or
# format; an unknown one is an error before the run. Every value is one line of plain text
# without control characters, secrets or mentions, whatever an agent wrote.


class NotifyEvent(StrEnum):
    """What can be worth a message. The last three are among the ways a run ends."""

    END = "end"
    FAILURE = "failure"
    REGRESSION = "regression"
    BUDGET = "budget"


FIELDS: Mapping[str, str] = {
    "name": "what the run is kept under",
    "outcome": "passed, failed, not judged, stopped, interrupted, or did not start",
    "events": "which of end, failure, regression, budget happened",
    "summary": "how many cells and trials passed, with denominators",
    "passed": "trials that passed",
    "judged": "trials that were judged",
    "trials": "trials that finished, judged or not",
    "errors": "trials that could not be judged",
    "cost": "what the agents' model calls cost, as far as prices are known",
    "stopped": "why the run ended before its plan did",
    "failures": "the three checks that failed most, with counts",
    "regression": "what the gate says against the baseline, when it was asked",
    "exit_code": "the exit code of the command",
    "run_id": "the id of the run",
    "path": "the run folder",
    "host": "the machine it ran on",
    "details": "of the fields above, one line for each that has something to say",
}
"""Every field of a template and what it holds; a field with nothing to say is empty."""

DEFAULT_TEMPLATE = "{name}: {outcome}\n{details}"

MOST_FAILURES = 3
"""Checks named in a message: it is read on a telephone, the report has the rest."""

LONGEST_VALUE = 300
LONGEST_TEMPLATE = 4_000
"""Characters; services cut or refuse longer messages."""

_DETAILS = ("summary", "failures", "regression", "stopped", "cost", "path")

# `@name` and Slack's `<!channel>` call people in several chat services, whoever wrote them.
_MENTION = re.compile(r"@(?=\w)|<(?=[!@#])")

_LIMITS = ("trial limit", "time limit", "token limit", "cost limit", "no known price")
"""What `proctor.trials.options.RunBudget` says when a cap ended a run."""


class Notice(NamedTuple):
    """Something to be told: what happened, and the values of every field."""

    events: frozenset[NotifyEvent]
    fields: Mapping[str, str]

    @property
    def title(self) -> str:
        """One line for services that have a subject."""
        return f"proctor: {self.fields['name']} {self.fields['outcome']}"


def checked_template(text: str, where: str) -> str:
    """A template that `filled` can fill, or what is wrong with it."""
    if len(text) > LONGEST_TEMPLATE:
        raise ProctorError(
            f"the template has {len(text):,} characters, and {LONGEST_TEMPLATE:,} at most",
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
                f"the field {name!r} has a format", where=where, hint=f"write {{{name}}} alone"
            )
    return text


def read_template(given: str | None, where: str, folder: Path | None = None) -> str:
    """The template as text, `@FILE` for one in a file, or the default."""
    if given is None:
        return DEFAULT_TEMPLATE
    if not given.startswith("@"):
        # A shell passes `\n` as two characters, and nobody means those.
        return checked_template(given.replace("\\n", "\n"), where)
    path = (folder or Path()) / Path(given[1:]).expanduser()
    try:
        return checked_template(path.read_text(encoding="utf-8").rstrip("\n"), str(path))
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ProctorError(f"cannot read the template: {reason}", where=str(path)) from None


def filled(template: str, notice: Notice) -> str:
    """The message of a notice."""
    return template.format_map(notice.fields).strip()


def harmless(value: object, limit: int = LONGEST_VALUE) -> str:
    """A value as one line that calls nobody and holds no secret."""
    # A zero-width space parts the mark from the name; the text reads the same.
    return _MENTION.sub(
        lambda m: m.group() + "\u200b", line(default_redactor().text(str(value)), limit)
    )


def of_run(run: Run, exit_code: int, *, interrupted: bool, regression: str | None = None) -> Notice:
    """What a run that has ended has to tell. `regression` is the gate's word when it found one."""
    totals = run.totals
    at_limit = run.stopped is not None and any(words in run.stopped for words in _LIMITS)
    happened = {
        NotifyEvent.END: True,
        NotifyEvent.FAILURE: exit_code != 0,
        NotifyEvent.REGRESSION: regression is not None,
        NotifyEvent.BUDGET: at_limit,
    }
    failures = [f"{f.check_id} {f.count} of {f.of}" for f in run.failures[:MOST_FAILURES]]
    return notice(
        (event for event, did in happened.items() if did),
        name=run.path.parent.name,
        outcome=_outcome(run, exit_code, interrupted),
        summary=sentence(run.cells, totals),
        passed=totals.passed,
        judged=totals.judged,
        trials=totals.trials,
        errors=totals.infra_error,
        cost=money(totals.cost_usd, totals.unpriced_calls),
        stopped=run.stopped or "",
        failures=f"failed: {', '.join(failures)}" if failures else "",
        regression=regression or "",
        exit_code=exit_code,
        run_id=run.run_id,
        path=run.path,
    )


def of_failed_start(name: str, error: Exception, exit_code: int = EXIT_CANNOT_JUDGE) -> Notice:
    """What there is to tell of a run that could not begin, or whose process died."""
    return notice(
        (NotifyEvent.END, NotifyEvent.FAILURE),
        name=name,
        outcome="did not start",
        stopped=error,
        exit_code=exit_code,
    )


def notice(events: Iterable[NotifyEvent], **values: object) -> Notice:
    """A notice whose fields are all there and all harmless."""
    happened = frozenset(events)
    told = [str(event) for event in NotifyEvent if event in happened]
    values = {"host": host(), "events": ", ".join(told), **values}
    fields = {name: harmless(values.get(name, "")) for name in FIELDS}
    details = [fields[name] for name in _DETAILS if fields[name]]
    return Notice(happened, {**fields, "details": "\n".join(details)})


def _outcome(run: Run, exit_code: int, interrupted: bool) -> str:
    if interrupted:
        return "interrupted"
    if exit_code == 1:
        return "failed"
    if run.stopped:
        return "stopped"
    return "passed" if exit_code == 0 else "not judged"


PATIENCE = 10.0
"""Seconds a command waits for its notifications: apprise gives a service 4 to answer."""

HURRY = 2.0
"""Seconds after Ctrl-C: a person is promised an end within 5."""

BASELINE = "baseline"
"""The tag of the run that the event `regression` is about, unless another is named."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")
_SEPARATORS = re.compile(r"[/:@?&=#,]+")
# Shorter parts of an address (`en`, `80`) are words a reason may need.
_SHORTEST_SECRET = 4


class NotifyRequest(NamedTuple):
    """Whom to tell, of what, in which words; as a user gave it."""

    to: tuple[str, ...]
    on: frozenset[NotifyEvent]
    template: str
    baseline: str = BASELINE


def wish_for(
    configuration: Configuration,
    to: Sequence[str] = (),
    on: Sequence[str] = (),
    template: str | None = None,
    baseline: str | None = None,
) -> NotifyRequest:
    """What is asked for: options win over the settings, each by itself."""
    settings = configuration.settings.notify
    kept = settings.to.split() if isinstance(settings.to, str) else settings.to
    events = on or settings.on
    text = (
        read_template(settings.template, "notify.template", configuration.folder)
        if template is None
        else read_template(template, "--notify-template")
    )
    return NotifyRequest(
        to=tuple(to or kept),
        on=frozenset(NotifyEvent(each) for each in events),
        template=text,
        baseline=baseline or settings.baseline,
    )


def shown(address: str) -> str:
    """An address as it may be shown: its kind and nothing else."""
    scheme = _SCHEME.match(address.strip())
    return f"{scheme.group().lower()}://…" if scheme else "an address without a kind"


class Notifier:
    """Sends notices to the addresses of a wish. Use `close` at the end; it waits for a while."""

    def __init__(self, wish: NotifyRequest, tell: Callable[[str], None]) -> None:
        self._wish = wish
        self._tell = tell
        self._services = [_service(address) for address in wish.to]
        self._under_way: list[_Sending] = []

    @property
    def wants_regressions(self) -> bool:
        """Whether a run has to be held against its baseline."""
        return bool(self._services) and NotifyEvent.REGRESSION in self._wish.on

    def regression(self, run: Run, root: Path) -> str | None:
        """What the gate says where a run is worse than its baseline; else None."""
        from proctor import api

        try:
            facts = api.gate(run, against=self._wish.baseline, results=root)
        except ProctorError as error:
            self._tell(f"not held against {self._wish.baseline!r}: {error}")
            return None
        if facts.verdict != "REGRESSION":
            return None
        return f"{facts.verdict} against {self._wish.baseline}: {facts.reason}"

    def send(self, notice: Notice) -> bool:
        """Begin to tell everybody, if it is about something they asked for."""
        if not self._services or not notice.events & self._wish.on:
            return False
        message = filled(self._wish.template, notice)
        for address, service in zip(self._wish.to, self._services, strict=True):
            self._under_way.append(_Sending(address, service, notice, message))
        return True

    def close(self, patience: float = PATIENCE) -> None:
        """Wait for what is under way, and tell what did not arrive."""
        deadline = time.monotonic() + patience
        for sending in self._under_way:
            sending.thread.join(max(0.0, deadline - time.monotonic()))
            if sending.thread.is_alive():
                self._tell(f"{shown(sending.address)} did not answer within {patience:g} s")
            elif sending.problem is not None:
                self._tell(f"{shown(sending.address)} was not told: {sending.problem}")
        self._under_way = []


class _Sending:
    """One notice on its way to one address, in a thread that no exit waits for."""

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

        bad = self._notice.events & {
            NotifyEvent.FAILURE,
            NotifyEvent.REGRESSION,
            NotifyEvent.BUDGET,
        }
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
            self.problem = without_address(_reason(delivered), self.address)


def _reason(result: Any) -> str:
    """Why something was not delivered; older versions of apprise say only that it was not."""
    logs: Any = getattr(result, "logs", list)
    said = [str(getattr(entry, "message", "")) for entry in logs()]
    return next((text for text in reversed(said) if text), "no reason was given")


def _service(address: str) -> Any:
    """The service of an address, or what is wrong with it. Nothing is sent."""
    needs_extra("apprise", "notify")
    import apprise

    # What it logs may hold parts of addresses.
    logging.getLogger("apprise").addHandler(logging.NullHandler())
    logging.getLogger("apprise").propagate = False
    services: Any = apprise.Apprise
    found: Any = services.instantiate(address, asset=_asset())
    if found is not None:
        return found
    scheme = _SCHEME.match(address.strip())
    known = _schemes()
    if scheme is None:
        hint = "write an address of apprise, such as slack://… or mailto://…"
        raise ProctorError("not an address to notify: it has no kind", hint=hint)
    name = scheme.group().lower()
    if name not in known:
        hint = did_you_mean(name, known) or "https://appriseit.com lists the services"
        raise ProctorError(f"no service is called {name!r}", where="--notify", hint=hint)
    raise ProctorError(
        f"an address of {name}:// that is not complete, or not of its form",
        where="--notify",
        hint="https://appriseit.com tells the form for each service",
    )


def _schemes() -> set[str]:
    import apprise

    details: Mapping[str, Any] = apprise.Apprise().details()
    return {
        scheme
        for service in details["schemas"]
        for key in ("protocols", "secure_protocols")
        for scheme in service[key] or ()
    }


def _asset() -> Any:
    import apprise

    # What is sent says who sends it; a run's own text is never read as escapes or emoji.
    return apprise.AppriseAsset(
        app_id="Proctor", app_desc="Proctor", secure_logging=True, interpret_emojis=False
    )


def without_address(text: str, address: str) -> str:
    """A reason without any part of the address it is about."""
    rest = address.partition("://")[2]
    parts = {part for each in (rest, unquote(rest)) for part in _SEPARATORS.split(each)}
    for part in sorted({rest, address, *parts}, key=len, reverse=True):
        if len(part) >= _SHORTEST_SECRET:
            text = text.replace(part, "…")
    return line(text, 200)
