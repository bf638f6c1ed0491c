"""Intercept every httpx request of this process, for cassettes.

Guarantees: while patched, a request is replayed from the active cassette or its response is
recorded, plain or streamed, sync or async. The patched method is the one used by every client
library, proxy and transport of httpx, so existing clients are covered as well.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from proctor.llm.cassette import Cassette, RecordedResponse


# Both packages are patched: client libraries moved from the first to the second.
_LIBRARIES = ("httpx", "httpx2")

MISS_STATUS = 400
"""Status returned on a miss: one that no client library retries."""


class ReceivedResponse(NamedTuple):
    """A response as received."""

    status: int
    content_type: str
    content: bytes


InUse = Callable[[], "Cassette | None"]

_originals: list[tuple[Any, Any]] = []


def patch(in_use: InUse) -> None:
    """Patch the method that all requests pass through."""
    for name in _LIBRARIES:
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        _originals.extend((c, c.send) for c in (library.Client, library.AsyncClient))
        library.Client.send = _plain_send(library, library.Client.send, in_use)
        library.AsyncClient.send = _async_send(library, library.AsyncClient.send, in_use)


def unpatch() -> None:
    """Restore the original methods."""
    while _originals:
        client, send = _originals.pop()
        client.send = send


def _plain_send(library: Any, original: Any, in_use: InUse) -> Any:
    def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
        cassette = in_use()
        if cassette is None:
            return original(self, request, stream=stream, **options)
        recorded = cassette.request(request.method, str(request.url), request.read())
        if cassette.mode == "replay":
            return _response(library, request, cassette.play(recorded), stream)
        response = original(self, request, stream=stream, **options)
        _listen(library, cassette.listener(recorded), response, stream)
        return response

    return send


def _async_send(library: Any, original: Any, in_use: InUse) -> Any:
    async def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
        cassette = in_use()
        if cassette is None:
            return await original(self, request, stream=stream, **options)
        recorded = cassette.request(request.method, str(request.url), await request.aread())
        if cassette.mode == "replay":
            return _response(library, request, cassette.play(recorded), stream)
        response = await original(self, request, stream=stream, **options)
        _listen(library, cassette.listener(recorded), response, stream)
        return response

    return send


def _response(library: Any, request: Any, recorded: RecordedResponse, stream: bool) -> Any:
    headers = {"content-type": recorded.content_type} if recorded.content_type else {}
    if recorded.status == MISS_STATUS:
        # The OpenAI and Anthropic clients obey this header; a retry would only miss again.
        headers["x-should-retry"] = "false"
    response = library.Response(
        recorded.status,
        headers=headers,
        stream=library.ByteStream(recorded.content),
        request=request,
    )
    # httpx sets it when a response is closed; instrumentations read it.
    response.elapsed = timedelta()
    if not stream:
        response.read()
    return response


def _listen(
    library: Any, keep: Callable[[ReceivedResponse], None], response: Any, stream: bool
) -> None:
    """Record a response: immediately if it has been read, else when its stream ends."""
    status, headers = response.status_code, response.headers
    content_type = headers.get("content-type", "")
    if not stream:
        keep(ReceivedResponse(status, content_type, response.content))
        return

    def ended(raw: bytes) -> None:
        # The stream may be compressed; httpx decodes it.
        copy = library.Response(status, headers=headers, content=raw)
        keep(ReceivedResponse(status, content_type, copy.content))

    response.stream = _tee(library)(response.stream, ended)


def _tee(library: Any) -> Any:
    """Return a stream class that passes data on and reports all of it at the end.

    Clients may stop reading at the last event and close; the part they read is then the answer. A
    stream that failed is not recorded.
    """

    class Tee(library.SyncByteStream, library.AsyncByteStream):
        def __init__(self, stream: Any, ended: Callable[[bytes], None]) -> None:
            self._stream = stream
            self._ended: Callable[[bytes], None] | None = ended
            self._seen = bytearray()

        def __iter__(self) -> Any:
            with self._unless_broken():
                for chunk in self._stream:
                    self._seen += chunk
                    yield chunk
            self._end()

        async def __aiter__(self) -> Any:
            with self._unless_broken():
                async for chunk in self._stream:
                    self._seen += chunk
                    yield chunk
            self._end()

        @contextmanager
        def _unless_broken(self) -> Generator[None]:
            try:
                yield
            # The client stopped reading: what it read is the answer.
            except GeneratorExit:
                raise
            except BaseException:
                self._ended = None
                raise

        def _end(self) -> None:
            # Once only: a stream may be both exhausted and closed.
            ended, self._ended = self._ended, None
            if ended is not None:
                ended(bytes(self._seen))

        def close(self) -> None:
            self._stream.close()
            self._end()

        async def aclose(self) -> None:
            await self._stream.aclose()
            self._end()

    return Tee
