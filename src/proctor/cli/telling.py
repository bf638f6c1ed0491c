"""Around a command that runs: whoever asked is told how each run ended, or why none began.

The wait for slow services comes last, after everything is printed and kept.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from proctor.errors import ProctorError
from proctor.sanitize import printable

if TYPE_CHECKING:
    from proctor.cli.carrying import Carried
    from proctor.ops.notify import Notifier, NotifyRequest


class Telling:
    """A block in which runs are carried out and told of; not where nothing is to be run."""

    def __init__(self, wish: NotifyRequest, name: str, *, dry_run: bool = False) -> None:
        self._name = name
        self._notifier: Notifier | None = None
        self._hurried = False
        if wish.to:
            from proctor.ops.notify import Notifier

            notifier = Notifier(wish, _say)
            self._notifier = None if dry_run else notifier

    def ended(self, carried: Carried) -> None:
        """A run has ended; begin to tell of it."""
        if self._notifier is None:
            return
        from proctor.ops.notify import of_run
        from proctor.runs.audit import root_of

        interrupted = carried.signal is not None
        self._hurried = self._hurried or interrupted
        worse = None
        if self._notifier.wants_regressions and not interrupted:
            worse = self._notifier.regression(carried.run, root_of(carried.run.path))
        self._notifier.send(
            of_run(carried.run, carried.exit_code, interrupted=interrupted, regression=worse)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._notifier is None:
            return
        from proctor.ops.notify import HURRY, PATIENCE, of_failed_start

        if isinstance(error, ProctorError):
            self._notifier.send(of_failed_start(self._name, error, error.exit_code))
        self._notifier.close(HURRY if self._hurried else PATIENCE)


def _say(problem: str) -> None:
    click.echo(f"warning: notification: {printable(problem)}", err=True)
