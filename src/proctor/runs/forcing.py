"""Force a file to the platter while other work goes on.

Promise: one at a time, and none fails in silence: the next call raises what went wrong. In a
thread, since a slow disk takes from milliseconds to seconds, and agents that share the event loop
with the writer would all wait for it.
"""

from __future__ import annotations

import os
import threading


class Forcing:
    """Forces out what was written to one file so far; `finish` before the file is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def begin(self) -> None:
        """Begin to force it out, unless that is still under way."""
        if self._thread is not None and self._thread.is_alive():
            return
        self.finish()
        self._thread = threading.Thread(target=self._force, name="fsync", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for what is under way."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _force(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            self._error = error
