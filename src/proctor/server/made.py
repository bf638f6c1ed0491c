"""From the body of a request to rows, in this process or in another: the same bytes, the same rows.

Promise: `make` is all that is done with a body before it is written, and it needs nothing but the
body and the settings: so it can be done wherever there is a free processor.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proctor.llm.prices import PriceTable
from proctor.server.store.rows import Batch, TraceFacts, batch_of
from proctor.server.wire import Refused, received
from proctor.trace.redact import Redactor


class Made(msgspec.Struct, array_like=True):
    """The rows of one request; how many of its spans were not kept, and what was odd.

    `refused` is the HTTP status of a request that is not taken; `message` says why.
    """

    rejected: int
    message: str
    spans: list[tuple[Any, ...]] = []
    chunks: list[tuple[str, bytes, int]] = []
    facts: list[TraceFacts] = []
    touched: list[str] = []
    refused: int = 0

    def batch(self) -> Batch:
        """The rows, to be written."""
        return Batch(self.spans, self.chunks, self.facts, set(self.touched))


def make(
    body: bytes,
    content_type: str,
    what: str,
    redactor: Redactor | None,
    prices: PriceTable | None = None,
) -> Made:
    """The rows of a body; whatever is wrong with it is said, never raised."""
    try:
        found = received(body, content_type, what)
        batch = batch_of(found.collected, redactor, prices)
    except Refused as refusal:
        return Made(0, refusal.reason, refused=refusal.status)
    except Exception as error:  # noqa: BLE001 (one odd request must not end the server)
        return Made(0, f"cannot be read: {type(error).__name__}", refused=400)
    rows = (batch.spans, batch.chunks, batch.facts, sorted(batch.touched))
    return Made(found.rejected, found.message, *rows)


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Made).decode
