"""State an agent saves while a long trial goes on, and is given back when the trial is resumed.

    def agent(input, checkpoint):
        state = checkpoint.load() or {"step": 0}
        …
        checkpoint.save(state)

Promise: when `save` returns, the state outlives a `kill -9`; what `load` gives back was saved by
an earlier sitting of this very trial, never by another. The agent's side only: where states are
kept is the run's business (a `CheckpointStore`), so that it works on any machine.
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

MOST_BYTES = 64 << 20
"""Bytes of one state: what an agent needs to go on, not all it has seen. States are written whole
each time, and many trials may have one."""

_JSON, _BYTES = b"j", b"b"
"""The first byte of what a store holds: how the rest is read."""


class CheckpointError(ProctorError):
    """A state that cannot be saved; the one saved before stays."""


class CheckpointStore(Protocol):
    """Where states are kept, by the identity of their trial."""

    def load(self, key: str) -> bytes | None:
        """What was saved last; None when nothing was."""
        ...

    def save(self, key: str, content: bytes) -> None:
        """Keep a state in place of the one before, wholly or not at all."""
        ...

    def forget(self, key: str) -> None:
        """Keep nothing any more."""
        ...


class MemoryStore:
    """States of a trial that no run folder belongs to: kept while it lasts, and gone."""

    def __init__(self) -> None:
        self._states: dict[str, bytes] = {}

    def load(self, key: str) -> bytes | None:
        """What was saved last."""
        return self._states.get(key)

    def save(self, key: str, content: bytes) -> None:
        """Keep a state."""
        self._states[key] = content

    def forget(self, key: str) -> None:
        """Keep nothing any more."""
        self._states.pop(key, None)


class Checkpoint:
    """The state of one trial, in the hands of its agent. Any thread may use it."""

    __slots__ = ("_key", "_lock", "_store")

    def __init__(self, store: CheckpointStore, key: str) -> None:
        self._store = store
        self._key = key
        self._lock = threading.Lock()

    def load(self) -> Any:
        """The state saved last, bytes or as JSON has it; None when this trial begins afresh."""
        kept = self.load_encoded()
        if not kept:
            return None
        return kept[1:] if kept[:1] == _BYTES else msgspec.json.decode(kept[1:])

    def save(self, state: Any) -> None:
        """Keep a state: bytes, or anything that is JSON. When this returns, it is safe."""
        self.save_encoded(encoded(state))

    def load_encoded(self) -> bytes | None:
        """The state as a store holds it."""
        return self._store.load(self._key)

    def save_encoded(self, content: bytes) -> None:
        """Keep a state that is encoded already."""
        if len(content) > MOST_BYTES:
            raise CheckpointError(
                f"the state has {len(content):,} bytes, more than the {MOST_BYTES:,} kept",
                hint="save what is needed to go on, and where the rest is",
            )
        with self._lock:
            self._store.save(self._key, content)


def encoded(state: Any) -> bytes:
    """A state as a store holds it."""
    if isinstance(state, bytes | bytearray | memoryview):
        return _BYTES + bytes(cast("bytes", state))
    try:
        return _JSON + msgspec.json.encode(state)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the state is neither bytes nor JSON: {error}", hint="encode it yourself as bytes"
        ) from None


# Checkpoints of an agent in a process of its own: it asks, the process that owns the trial
# keeps.
#
# Promise: `save` in the child returns once the parent has the state safe, so the promise of
# `checkpoint` holds there too, and the child needs no access to the run. Over a pair of sockets:


_HEAD = struct.Struct(">cQ")


class LinkedStore:
    """The child's end: a store that is somewhere else."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._lock = threading.Lock()

    def load(self, key: str) -> bytes | None:
        """What the parent has."""
        del key  # the parent knows which trial this is
        return self._asked(b"L", b"")

    def save(self, key: str, content: bytes) -> None:
        """Hand a state over; raises when the parent could not keep it."""
        del key
        self._asked(b"S", content)

    def forget(self, key: str) -> None:
        """States are taken away by the parent, once the trial is finished."""

    def _asked(self, verb: bytes, content: bytes) -> bytes | None:
        with self._lock:
            try:
                self._socket.sendall(_HEAD.pack(verb, len(content)) + content)
                kind, size = _HEAD.unpack(self._read(_HEAD.size))
                answer = self._read(size)
            except OSError as error:
                raise CheckpointError(f"the run that started this trial is gone: {error}") from None
        if kind == b"!":
            raise CheckpointError(answer.decode())
        return answer if kind == b"+" else None

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            block = self._socket.recv(min(size - len(found), 1 << 20))
            if not block:
                raise ConnectionResetError("it closed the connection")
            found += block
        return bytes(found)


@contextlib.asynccontextmanager
async def linked(checkpoint: Checkpoint) -> AsyncGenerator[int | None]:
    """Answer a child meanwhile; the number of the socket to hand it, None where it cannot be."""
    if os.name == "nt":  # no socket can be handed to a child by its number
        yield None
        return
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
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
                return  # not one of ours: our end refuses before it sends
            content = await reader.readexactly(size)
            try:
                if verb == b"S":
                    await asyncio.to_thread(checkpoint.save_encoded, content)
                    answer, kind = b"", b"+"
                else:
                    found = await asyncio.to_thread(checkpoint.load_encoded)
                    answer, kind = found or b"", b"0" if found is None else b"+"
            except CheckpointError as error:
                answer, kind = str(error).encode(), b"!"
            writer.write(_HEAD.pack(kind, len(answer)) + answer)
            await writer.drain()
