"""State that an agent saves during a long trial and gets back when the trial is resumed.

    def agent(input, checkpoint):
        state = checkpoint.load() or {"step": 0}
        …
        checkpoint.save(state)

Guarantees: when `save` returns, the state survives a `kill -9`; `load` returns only state saved by
an earlier session of the same trial. This is the agent's side only: the run provides the storage (a
`CheckpointStore`), so that it works on any machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Generator
from typing import Any, Protocol, cast

import msgspec

from proctor.errors import ProctorError

# Maximum bytes of one state. A state is rewritten whole on every save, and many trials may have
# one, so it should hold what is needed to resume, not the full history.
MOST_BYTES = 64 << 20

# First byte of a stored state: the encoding of the rest.
_JSON, _BYTES = b"j", b"b"


class CheckpointError(ProctorError):
    """Raised for a state that cannot be saved; the previous state is left in place."""


class CheckpointStore(Protocol):
    """Storage of states by trial key."""

    def load(self, key: str) -> bytes | None:
        """Return the last saved state, or None."""
        ...

    def save(self, key: str, content: bytes) -> None:
        """Replace the stored state atomically."""
        ...

    def forget(self, key: str) -> None:
        """Delete the state."""
        ...


class MemoryStore:
    """Storage in memory, for trials outside a run folder."""

    def __init__(self) -> None:
        self._states: dict[str, bytes] = {}

    def load(self, key: str) -> bytes | None:
        """Return the last saved state."""
        return self._states.get(key)

    def save(self, key: str, content: bytes) -> None:
        """Store a state."""
        self._states[key] = content

    def forget(self, key: str) -> None:
        """Delete the state."""
        self._states.pop(key, None)


class Checkpoint:
    """State of one trial, as the agent sees it. Thread-safe."""

    __slots__ = ("_key", "_lock", "_store")

    def __init__(self, store: CheckpointStore, key: str) -> None:
        self._store = store
        self._key = key
        self._lock = threading.Lock()

    def load(self) -> Any:
        """Return the last saved state (bytes or JSON value), or None on a fresh start."""
        encoded = self.load_encoded()
        if not encoded:
            return None
        return encoded[1:] if encoded[:1] == _BYTES else msgspec.json.decode(encoded[1:])

    def save(self, state: Any) -> None:
        """Save a state (bytes or a JSON value). It is durable when this returns."""
        self.save_encoded(encoded(state))

    def load_encoded(self) -> bytes | None:
        """Return the state as stored."""
        return self._store.load(self._key)

    def save_encoded(self, content: bytes) -> None:
        """Save a state that is already encoded."""
        if len(content) > MOST_BYTES:
            raise CheckpointError(
                f"the state has {len(content):,} bytes, more than the limit of {MOST_BYTES:,}",
                hint="save only what is needed to resume, and the path of the rest",
            )
        with self._lock:
            self._store.save(self._key, content)


def encoded(state: Any) -> bytes:
    """Return a state encoded for storage."""
    if isinstance(state, bytes | bytearray | memoryview):
        return _BYTES + bytes(cast("bytes", state))
    try:
        return _JSON + msgspec.json.encode(state)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the state is neither bytes nor JSON: {error}", hint="encode it yourself as bytes"
        ) from None


# -- agents in a process of their own -------------------------------------------------------------
# The parent process stores the state. `save` in the child returns once the parent has stored it, so
# the guarantee of `Checkpoint` holds there too, and the child needs no access to the run folder. A
# request is L, or S and the state; an answer is + and the state, 0 for none, or ! and an error.


class LinkedStore:
    """Store of the child process: forwards to the parent, which knows which trial this is."""

    def __init__(self, number: int) -> None:
        from multiprocessing.connection import Connection  # here: most trials need none

        self._parent = Connection(number)
        self._lock = threading.Lock()

    def load(self, key: str) -> bytes | None:
        """Load the state from the parent."""
        return self._call_parent(b"L")

    def save(self, key: str, content: bytes) -> None:
        """Send a state to the parent; raise if it could not be stored."""
        self._call_parent(b"S" + content)

    def forget(self, key: str) -> None:
        """Do nothing: the parent deletes the state once the trial is finished."""

    def _call_parent(self, request: bytes) -> bytes | None:
        with self._lock:  # one request at a time: answers carry no id
            try:
                self._parent.send_bytes(request)
                answer = self._parent.recv_bytes()
            except (OSError, EOFError) as error:
                message = f"the parent process of this trial is gone: {error}".rstrip(": ")
                raise CheckpointError(message) from None
        if answer[:1] == b"!":
            raise CheckpointError(answer[1:].decode())
        return answer[1:] if answer[:1] == b"+" else None


@contextlib.contextmanager
def linked(checkpoint: Checkpoint) -> Generator[int | None]:
    """Serve a child's requests; yield the socket number for it, or None where unsupported."""
    if os.name == "nt":  # Windows cannot pass a socket to a child by its number
        yield None
        return
    ours, theirs = socket.socketpair()
    # In a thread, since the trial waits for the child.
    threading.Thread(target=_serve, args=(os.dup(ours.fileno()), checkpoint), daemon=True).start()
    try:
        with theirs:
            yield theirs.fileno()
    finally:
        with ours, contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)  # ends the thread, also if others hold the other end


def _serve(number: int, checkpoint: Checkpoint) -> None:
    from multiprocessing.connection import Connection

    with Connection(number) as child, contextlib.suppress(OSError, EOFError):
        while True:
            # A longer request is not from our client, which checks the size before it sends.
            request = child.recv_bytes(MOST_BYTES + 1)
            try:
                if request[:1] == b"S":
                    checkpoint.save_encoded(request[1:])
                    answer = b"+"
                else:
                    state = checkpoint.load_encoded()
                    answer = b"0" if state is None else b"+" + state
            except CheckpointError as error:
                # Reported to the agent, which may save less and go on.
                answer = b"!" + str(error).encode()
            child.send_bytes(answer)
