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

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import AsyncGenerator
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


# Checkpoints of an agent in its own process: the parent process stores the state.  Guarantee:
# `save` in the child returns once the parent has stored the state, so the guarantee of `Checkpoint`
# holds there too, and the child needs no access to the run folder. Protocol over a socket pair:


_HEAD = struct.Struct(">cQ")


class LinkedStore:
    """Store of the child process: forwards to the parent."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._lock = threading.Lock()

    def load(self, key: str) -> bytes | None:
        """Load the state from the parent."""
        del key  # the parent knows which trial this is
        return self._call_parent(b"L", b"")

    def save(self, key: str, content: bytes) -> None:
        """Send a state to the parent; raise if it could not be stored."""
        del key
        self._call_parent(b"S", content)

    def forget(self, key: str) -> None:
        """Do nothing: the parent deletes the state once the trial is finished."""

    def _call_parent(self, verb: bytes, content: bytes) -> bytes | None:
        with self._lock:
            try:
                # One request at a time: replies carry no id.
                self._socket.sendall(_HEAD.pack(verb, len(content)) + content)
                kind, size = _HEAD.unpack(self._read(_HEAD.size))
                answer = self._read(size)
            except OSError as error:
                raise CheckpointError(
                    f"the parent process of this trial is gone: {error}"
                ) from None
        if kind == b"!":
            raise CheckpointError(answer.decode())
        return answer if kind == b"+" else None

    def _read(self, size: int) -> bytes:
        content_received = bytearray()
        while len(content_received) < size:
            block = self._socket.recv(min(size - len(content_received), 1 << 20))
            if not block:
                raise ConnectionResetError("it closed the connection")
            content_received += block
        return bytes(content_received)


@contextlib.asynccontextmanager
async def linked(checkpoint: Checkpoint) -> AsyncGenerator[int | None]:
    """Serve a child's requests; yield the socket number for it, or None where unsupported."""
    if os.name == "nt":  # Windows cannot pass a socket to a child by its number
        yield None
        return
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    # The child's requests are served while the trial waits for the child.
    answering = asyncio.ensure_future(_answer(reader, writer, checkpoint))
    try:
        with theirs:
            yield theirs.fileno()
    finally:
        answering.cancel()
        writer.close()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, checkpoint: Checkpoint
) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            verb, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
            if size > MOST_BYTES + 1:
                return  # not from our client, which checks the size before it sends
            content = await reader.readexactly(size)
            try:
                if verb == b"S":
                    await asyncio.to_thread(checkpoint.save_encoded, content)
                    answer, kind = b"", b"+"
                else:
                    content_received = await asyncio.to_thread(checkpoint.load_encoded)
                    answer, kind = (
                        content_received or b"",
                        b"0" if content_received is None else b"+",
                    )
            except CheckpointError as error:
                # Reported to the agent, which may save less and go on.
                answer, kind = str(error).encode(), b"!"
            writer.write(_HEAD.pack(kind, len(answer)) + answer)
            await writer.drain()
