"""A process that makes rows of request bodies for a server, so that this takes another processor.

    python -m proctor.server.reader

Bodies come on standard input and rows go to standard output, one after the other; it ends when
its input does, and so never outlives the server, however that ends.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
from typing import BinaryIO

from proctor.server.made import Made, encode, make
from proctor.server.readers import LENGTH, READY, REQUEST

COLLECT_AFTER = 100_000
"""Objects after which rings of them are looked for: a request makes thousands, which go by
themselves, and going through them again and again would be a tenth of the work."""


def main() -> None:
    """Read, make, write, until nothing more comes."""
    from proctor.llm.prices import PriceTable, warm_up
    from proctor.trace.redact import default_redactor

    # Ctrl-C goes to every process of a terminal; the server decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # a stray print must not stand among the rows
    redactor = default_redactor()
    # Prices take a moment to read, and the first spans need not wait for them.
    threading.Thread(target=warm_up, daemon=True).start()
    gc.freeze()  # what is there now stays
    gc.set_threshold(COLLECT_AFTER)
    outgoing.write(READY)
    outgoing.flush()
    head = incoming.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return  # the server ended before it sent anything
    prices = PriceTable(json.loads(incoming.read(LENGTH.unpack(head)[0])))
    while len(head := incoming.read(REQUEST.size)) == REQUEST.size:
        header_size, size = REQUEST.unpack(head)
        kind, _, what = incoming.read(header_size).decode().partition("\0")
        body = incoming.read(size)
        if len(body) < size:
            return
        _reply(outgoing, make(body, kind, what, redactor, prices))


def _reply(outgoing: BinaryIO, made: Made) -> None:
    try:
        encoded = encode(made)
    except (UnicodeError, OverflowError, TypeError, ValueError):
        encoded = encode(Made(0, "cannot be kept: text that is no Unicode", refused=400))
    outgoing.write(LENGTH.pack(len(encoded)))
    outgoing.write(encoded)
    outgoing.flush()


if __name__ == "__main__":
    main()
