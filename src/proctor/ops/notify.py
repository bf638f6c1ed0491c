"""Notifications through apprise: sent while the work goes on, waited for only so long.

Promise: addresses are checked before anything is spent; a service that is slow or down never fails
a run and delays its end by `PATIENCE` at most; addresses hold secrets, so none is ever shown, only
its kind (`slack://…`). What was not delivered is told, not tried again: apprise does that where an
address asks for it (`?retry=`).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from proctor.errors import ProctorError, did_you_mean
from proctor.imports import needs_extra
from proctor.ops.notice import Event, Notice, filled, read_template
from proctor.trace.text import safe

if TYPE_CHECKING:
    from proctor.runs.run import Run
    from proctor.spec import Configuration

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


class Wish(NamedTuple):
    """Whom to tell, of what, in which words; as a user gave it."""

    to: tuple[str, ...]
    on: frozenset[Event]
    template: str
    baseline: str = BASELINE


def wish_for(
    configuration: Configuration,
    to: Sequence[str] = (),
    on: Sequence[str] = (),
    template: str | None = None,
    baseline: str | None = None,
) -> Wish:
    """What is asked for: options win over the settings, each by itself."""
    settings = configuration.settings.notify
    kept = settings.to.split() if isinstance(settings.to, str) else settings.to
    events = on or settings.on
    text = (
        read_template(settings.template, "notify.template", configuration.folder)
        if template is None
        else read_template(template, "--notify-template")
    )
    return Wish(
        to=tuple(to or kept),
        on=frozenset(Event(each) for each in events),
        template=text,
        baseline=baseline or settings.baseline,
    )


def shown(address: str) -> str:
    """An address as it may be shown: its kind and nothing else."""
    scheme = _SCHEME.match(address.strip())
    return f"{scheme.group().lower()}://…" if scheme else "an address without a kind"


class Notifier:
    """Sends notices to the addresses of a wish. Use `close` at the end; it waits for a while."""

    def __init__(self, wish: Wish, tell: Callable[[str], None]) -> None:
        self._wish = wish
        self._tell = tell
        self._services = [_service(address) for address in wish.to]
        self._under_way: list[_Sending] = []

    @property
    def wants_regressions(self) -> bool:
        """Whether a run has to be held against its baseline."""
        return bool(self._services) and Event.REGRESSION in self._wish.on

    def regression(self, run: Run, root: Path) -> str | None:
        """What the gate says where a run is worse than its baseline; else None."""
        from proctor.results.gating import judge_runs
        from proctor.runs.find import find_run
        from proctor.runs.run import Run

        try:
            facts = judge_runs(run, Run(find_run(self._wish.baseline, root)))
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

        bad = self._notice.events & {Event.FAILURE, Event.REGRESSION, Event.BUDGET}
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
    return safe(text, 200)
