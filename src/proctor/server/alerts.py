"""Alerts about live traces: a line on standard error, or a JSON document to an address.

An alert that cannot be delivered is said on standard error and never stops the watch.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import httpx

from proctor.errors import ProctorError
from proctor.trace.text import safe

if TYPE_CHECKING:
    from proctor.server.watch import Alert

TIMEOUT = 10.0
"""Seconds a receiver of alerts may take."""


def log_alert(alert: Alert) -> None:
    """Say it on standard error."""
    words = f"alert: {alert.name} {alert.figure:.2f} in trace {safe(alert.trace_id, 64)}"
    if alert.words:
        words += f": {safe(alert.words, 200)}"
    logging.getLogger("proctor.serve").info("%s", words)
    sys.stderr.write(f"{words}\n")


class Webhook:
    """Posts alerts as JSON: trace_id, name, figure, words."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ProctorError(f"{url!r} is not an address alerts can be posted to")
        self._url = url

    def __call__(self, alert: Alert) -> None:
        """Post one alert."""
        try:
            reply = httpx.post(self._url, json=alert._asdict(), timeout=TIMEOUT)
            reply.raise_for_status()
        except httpx.HTTPError as error:
            log_alert(alert)
            sys.stderr.write(f"warning: the alert was not delivered: {safe(str(error), 200)}\n")
