"""Checkpoints of an agent in a process of its own: it asks, the process that owns the trial keeps.

Promise: `save` in the child returns once the parent has the state safe, so the promise of
`checkpoint` holds there too, and the child needs no access to the run. Over a pair of sockets:

    child:   L or S, the length in 8 bytes, the state (of S)
    parent:  + (a state, or done), 0 (no state) or ! (why not, as text), the length, the content
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import AsyncGenerator

from proctor.agents.checkpoint import MOST_BYTES, Checkpoint, CheckpointError

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
