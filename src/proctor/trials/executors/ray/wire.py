"""What travels between the driver and a worker, and how it is written.

Promise: a trial that has travelled is written to the journal as it would have been at home: it
goes as the JSON the journal keeps, and its trace as the line a segment keeps.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proctor.runs.trial import PlannedTrial, Trial
from proctor.sanitize import json_bytes


class Done(msgspec.Struct, frozen=True, array_like=True):
    """A trial that has ended, as JSON, and its trace; no trial for one that was never begun."""

    key: str
    trial: bytes | None
    trace: bytes | None = None


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """What a worker wants of the driver; `number` is 0 where it waits for no answer."""

    number: int
    what: str
    arguments: tuple[Any, ...] = ()


class DriverReply(msgspec.Struct, frozen=True, array_like=True):
    """What the driver says to an `Ask`: a value, or what went wrong."""

    number: int
    value: Any = None
    error: str | None = None


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """What a worker has to tell: trials that ended, its wishes, and lines for the cassette."""

    done: tuple[Done, ...] = ()
    asks: tuple[Ask, ...] = ()
    recorded: bytes = b""


def pack(value: msgspec.Struct | list[PlannedTrial]) -> bytes:
    """As bytes."""
    return _packer.encode(value)


def orders_of(data: bytes) -> list[PlannedTrial]:
    """The trials a driver sent."""
    return _orders.decode(data)


def parcel_of(data: bytes) -> Parcel:
    """The parcel a worker sent."""
    return _parcel.decode(data)


def answer_of(data: bytes) -> DriverReply:
    """The answer a driver sent."""
    return _answer.decode(data)


def trial_as_json(trial: Trial) -> bytes:
    """A trial as the journal writes it."""
    return json_bytes(trial)


def trial_from_json(line: bytes) -> Trial:
    """A trial as the journal reads it."""
    return _trial.decode(line)


_packer = msgspec.msgpack.Encoder(enc_hook=str)
_orders = msgspec.msgpack.Decoder(list[PlannedTrial])
_parcel = msgspec.msgpack.Decoder(Parcel)
_answer = msgspec.msgpack.Decoder(DriverReply)
_trial = msgspec.json.Decoder(Trial)
