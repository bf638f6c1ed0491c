"""Intercept the HTTP requests of this process: cassettes replay and record them, others look.

Guarantees: while an interceptor is installed, it sees every request of httpx, httpx2, requests,
aiohttp and botocore, plain or streamed, sync or async, also of clients that exist already and of
libraries that are imported later. The bytes that a client sends and receives are not changed. A
request that no interceptor wants passes through at the cost of a function call. Threads that a
trial starts, and what it gives to a pool of threads, send their requests as this trial.

The patched methods are those that every client of a library passes through. Trade-offs: a program
that sends requests by other means (`http.client`, gRPC, another process) is not seen; the model
gateway is for those. A thread that one trial starts to serve other trials, too, through a queue
of its own, counts as the first one's.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import inspect
import io
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from datetime import timedelta
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from proctor.llm.cassette import RecordedResponse

MISS_STATUS = 400
"""Status returned on a miss: one that no client library retries."""


class InterceptedRequest(Protocol):
    """One request, as an interceptor follows it."""

    def replay(self) -> RecordedResponse | None:
        """Return the response to use instead of sending the request; None sends it."""
        ...

    def ended(self, status: int, content_type: str, content: bytes) -> None:
        """Take the complete response, sent or replayed, decompressed."""
        ...

    def failed(self, error: BaseException) -> None:
        """Take the error of a request without a response, or of a broken stream."""
        ...


Interceptor = Callable[[str, str], "Callable[[bytes], InterceptedRequest] | None"]
"""Takes method and URL; returns what takes the body, or None if it does not want the request."""

_interceptors: list[Interceptor] = []
_uses: Counter[Interceptor] = Counter()
_switch = threading.Lock()
_originals: list[tuple[Any, str, Any, Any]] = []
_patched: set[str] = set()
# A library may send one request through two patched methods (a redirect): only the outer counts.
_inside: ContextVar[bool] = ContextVar("proctor_http_hook", default=False)


Redirect = Callable[[str, str, bytes], "RecordedResponse | bytes | None"]

redirect: ContextVar[Redirect | None] = ContextVar("proctor_redirect", default=None)
"""Takes method, URL and body of a request: its response, another body to send, or neither."""


def bypass() -> None:
    """Leave the requests of the current context alone: those of the gateway, which records them."""
    _inside.set(True)


def install(interceptor: Interceptor) -> None:
    """Start to intercept requests; as often as this is called, `uninstall` must be."""
    with _switch:
        _uses[interceptor] += 1
        if _uses[interceptor] > 1:
            return
        _interceptors.append(interceptor)
        if len(_interceptors) > 1:
            return
        sys.meta_path.insert(0, _finder)
        _patch_threads()
        for name in _PATCHES:
            if name in sys.modules:
                # Not from `sys.modules`: another thread may be in the middle of the import.
                _patch(name, importlib.import_module(name))


def uninstall(interceptor: Interceptor) -> None:
    """Stop; the last one restores the original methods."""
    with _switch:
        _uses[interceptor] -= 1
        if _uses[interceptor]:
            return
        _interceptors.remove(interceptor)
        if _interceptors:
            return
        with contextlib.suppress(ValueError):  # code of an agent has cleared the list
            sys.meta_path.remove(_finder)
        while _originals:
            owner, name, original, wrapped = _originals.pop()
            # Another library may have wrapped it since: that stays, and ours passes requests on.
            if getattr(owner, name) is wrapped:
                setattr(owner, name, original)
        _patched.clear()


def _patch(name: str, module: ModuleType) -> None:
    # No lock: the thread that imports a library holds its import lock, which `install` waits for.
    if name not in _patched:
        _patched.add(name)
        _PATCHES[name](module)


class _Finder(importlib.abc.MetaPathFinder):
    """Patches a library when it is imported after `install`: importing it here would be slow."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _PATCHES:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if _interceptors:
                _patch(fullname, module)

        spec.loader.exec_module = exec_module
        return spec


_finder = _Finder()


def _replace(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    wrapped = wrapper(original)
    _originals.append((owner, name, original, wrapped))
    setattr(owner, name, wrapped)


class _Exchanges:
    """One request for all interceptors that want it."""

    def __init__(self, exchanges: list[InterceptedRequest]) -> None:
        self._exchanges = exchanges
        self._open = True

    def replay(self) -> RecordedResponse | None:
        for exchange in self._exchanges:
            if (recorded := exchange.replay()) is not None:
                self.ended(recorded.status, recorded.content_type, recorded.content)
                return recorded
        return None

    def ended(self, status: int, content_type: str, content: bytes) -> None:
        # Once only: a stream may be both exhausted and closed.
        if self._open:
            self._open = False
            for exchange in self._exchanges:
                exchange.ended(status, content_type, content)

    @contextmanager
    def sending(self) -> Generator[None]:
        """Send the request inside the block; an error in it ends the exchange."""
        token = _inside.set(True)
        try:
            with self.reading():
                yield
        finally:
            _inside.reset(token)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Read a stream inside the block; an error in it ends the exchange."""
        try:
            yield
        # The client stopped reading: what it read is the answer.
        except GeneratorExit:
            raise
        except BaseException as error:
            if self._open:
                self._open = False
                for exchange in self._exchanges:
                    exchange.failed(error)
            raise


_Takers = list[Callable[[bytes], InterceptedRequest]]


def _wanted(method: str, url: str) -> _Takers:
    if _inside.get():
        return []
    takers = (interceptor(method, url) for interceptor in _interceptors)
    return [taker for taker in takers if taker is not None]


def _begin(
    takers: _Takers, method: str, url: str, body: bytes
) -> tuple[_Exchanges, RecordedResponse | None, bytes]:
    """Return the exchanges of a request, its response if it is not sent, and the body to send."""
    changed = None if (hook := redirect.get()) is None else hook(method, url, body)
    if isinstance(changed, bytes):
        body = changed
    exchanges = _Exchanges([take(body) for take in takers])
    if changed is None or isinstance(changed, bytes):
        return exchanges, exchanges.replay(), body
    exchanges.ended(changed.status, changed.content_type, changed.content)
    return exchanges, changed, body


def _bytes(body: Any) -> bytes | None:
    """Return the body of a request; None for one that can be read only once (a file)."""
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    return bytes(body) if isinstance(body, bytes | bytearray) else None


# -- httpx and httpx2 --------------------------------------------------------------------------


def _patch_httpx(library: Any) -> None:
    """Patch both packages of this design: client libraries moved from the first to the second."""

    def begin(takers: _Takers, request: Any, body: bytes, stream: bool) -> tuple[_Exchanges, Any]:
        """Return the exchanges of a request, and its response if it is not sent."""
        exchanges, recorded, sent = _begin(takers, request.method, str(request.url), body)
        if sent is not body:
            request.stream = library.ByteStream(sent)
            request.headers["content-length"] = str(len(sent))
        if recorded is None:
            return exchanges, None
        return exchanges, _httpx_response(library, request, recorded, stream)

    def plain(original: Any) -> Any:
        def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
            takers = _wanted(request.method, str(request.url))
            if not takers:
                return original(self, request, stream=stream, **options)
            exchanges, response = begin(takers, request, request.read(), stream)
            if response is None:
                with exchanges.sending():
                    response = original(self, request, stream=stream, **options)
                _httpx_listen(library, exchanges, response, stream)
            return response

        return send

    def asynchronous(original: Any) -> Any:
        async def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
            takers = _wanted(request.method, str(request.url))
            if not takers:
                return await original(self, request, stream=stream, **options)
            exchanges, response = begin(takers, request, await request.aread(), stream)
            if response is None:
                with exchanges.sending():
                    response = await original(self, request, stream=stream, **options)
                _httpx_listen(library, exchanges, response, stream)
            return response

        return send

    _replace(library.Client, "send", plain)
    _replace(library.AsyncClient, "send", asynchronous)


def _headers_of(recorded: RecordedResponse) -> dict[str, str]:
    headers = {"content-type": recorded.content_type} if recorded.content_type else {}
    if recorded.status == MISS_STATUS:
        # The OpenAI and Anthropic clients obey this header; a retry would only miss again.
        headers["x-should-retry"] = "false"
    return headers


def _httpx_response(library: Any, request: Any, recorded: RecordedResponse, stream: bool) -> Any:
    response = library.Response(
        recorded.status,
        headers=_headers_of(recorded),
        stream=library.ByteStream(recorded.content),
        request=request,
    )
    # httpx sets it when a response is closed; instrumentations read it.
    response.elapsed = timedelta()
    if not stream:
        response.read()
    return response


def _httpx_listen(library: Any, exchanges: _Exchanges, response: Any, stream: bool) -> None:
    """Report a response: immediately if it has been read, else when its stream ends."""
    status, headers = response.status_code, response.headers
    content_type = headers.get("content-type", "")
    if not stream:
        exchanges.ended(status, content_type, response.content)
        return
    seen = bytearray()

    def end() -> None:
        # The stream may be compressed; httpx decodes it. A client may stop reading at the last
        # event and close: the part it read is then the answer.
        content = bytes(seen)
        if headers.get("content-encoding"):
            content = library.Response(status, headers=headers, content=content).content
        exchanges.ended(status, content_type, content)

    response.stream = _tee_class(library)(response.stream, seen, exchanges, end)


@functools.cache
def _tee_class(library: Any) -> Any:
    """Return the class of streams that copy what is read; made once, which is slow."""

    class Tee(library.SyncByteStream, library.AsyncByteStream):
        def __init__(
            self, inner: Any, seen: bytearray, exchanges: _Exchanges, end: Callable[[], None]
        ) -> None:
            self._inner, self._seen, self._exchanges, self._end = inner, seen, exchanges, end

        def __iter__(self) -> Any:
            with self._exchanges.reading():
                for chunk in self._inner:
                    self._seen.extend(chunk)
                    yield chunk
            self._end()

        async def __aiter__(self) -> Any:
            with self._exchanges.reading():
                async for chunk in self._inner:
                    self._seen.extend(chunk)
                    yield chunk
            self._end()

        def close(self) -> None:
            self._inner.close()
            self._end()

        async def aclose(self) -> None:
            await self._inner.aclose()
            self._end()

    return Tee


# -- requests and botocore: both read from urllib3 ---------------------------------------------


def _patch_urllib3(
    owner: Any, streams: Callable[[Any, Any], Any], made: Callable[[Any, RecordedResponse], Any]
) -> None:
    """Patch a `send`; `streams` says whether its caller reads the response, `made` makes one."""

    def wrap(original: Any) -> Any:
        def send(self: Any, request: Any, **options: Any) -> Any:
            method, url = request.method or "", request.url or ""
            takers = _wanted(method, url)
            body = _bytes(request.body)
            if not takers or body is None:
                return original(self, request, **options)
            exchanges, recorded, sent = _begin(takers, method, url, body)
            if recorded is not None:
                return made(request, recorded)
            # Requests of botocore are signed, so they cannot be changed; they can be answered.
            if sent is not body and not hasattr(request, "stream_output"):
                request.body = sent
                request.headers["Content-Length"] = str(len(sent))
            with exchanges.sending():
                response = original(self, request, **options)
            status, kind = response.status_code, response.headers.get("content-type", "")
            if streams(request, options):
                _tee_urllib3(response.raw, lambda seen: exchanges.ended(status, kind, seen))
            else:
                exchanges.ended(status, kind, response.content)
            return response

        return send

    _replace(owner, "send", wrap)


def _patch_requests(library: Any) -> None:
    def made(request: Any, recorded: RecordedResponse) -> Any:
        response = library.Response()
        response.status_code, response.url = recorded.status, request.url
        response.headers.update(_headers_of(recorded))
        response.request, response.raw = request, io.BytesIO(recorded.content)
        return response

    _patch_urllib3(library.Session, lambda _request, options: options.get("stream"), made)


def _patch_botocore(library: Any) -> None:
    def made(request: Any, recorded: RecordedResponse) -> Any:
        import urllib3
        from botocore.awsrequest import AWSResponse  # pyright: ignore[reportMissingTypeStubs]

        headers = _headers_of(recorded)
        raw = urllib3.HTTPResponse(
            io.BytesIO(recorded.content), headers, recorded.status, preload_content=False
        )
        return AWSResponse(request.url, recorded.status, headers, raw)

    _patch_urllib3(library.URLLib3Session, lambda request, _options: request.stream_output, made)


def _tee_urllib3(raw: Any, ended: Callable[[bytes], None]) -> None:
    """Copy what is read from a response of urllib3, and report it at its end."""
    seen = bytearray()
    read, stream, close, release = raw.read, raw.stream, raw.close, raw.release_conn
    nested = [False]  # `stream` calls `read`

    def read_and_copy(*args: Any, **options: Any) -> Any:
        data = read(*args, **options)
        if not nested[0]:
            seen.extend(data)
            if not data:
                ended(bytes(seen))
        return data

    def stream_and_copy(*args: Any, **options: Any) -> Any:
        nested[0] = True
        for chunk in stream(*args, **options):
            seen.extend(chunk)
            yield chunk
        ended(bytes(seen))

    def close_and_end() -> None:
        close()
        ended(bytes(seen))

    def release_and_end() -> None:
        release()
        # Reading the last byte releases the connection before that byte is returned.
        if raw.closed:
            ended(bytes(seen))

    raw.read, raw.stream, raw.close = read_and_copy, stream_and_copy, close_and_end
    raw.release_conn = release_and_end


# -- aiohttp -----------------------------------------------------------------------------------


def _patch_aiohttp(library: Any) -> None:
    def wrap(original: Any) -> Any:
        async def _request(self: Any, method: str, url: Any, **options: Any) -> Any:
            address = str(self._build_url(url))
            takers = _wanted(method, address)
            given = options.get("data")
            if given is None and options.get("json") is not None:
                given = self._json_serialize(options["json"])
            body = _bytes(given)
            if not takers or body is None:
                return await original(self, method, url, **options)
            exchanges, recorded, sent = _begin(takers, method, address, body)
            if recorded is not None:
                return _aiohttp_response(library, self, method, address, recorded)
            if sent is not body:
                if options.pop("json", None) is not None:
                    headers: dict[str, Any] = {**(options.get("headers") or {})}
                    options["headers"] = {"Content-Type": "application/json", **headers}
                options["data"] = sent
            with exchanges.sending():
                response = await original(self, method, url, **options)
            kind = response.headers.get("content-type", "")
            response.content = _TeeReader(
                response.content, lambda seen: exchanges.ended(response.status, kind, seen)
            )
            return response

        return _request

    _replace(library.ClientSession, "_request", wrap)


def _aiohttp_response(
    library: Any, session: Any, method: str, url: str, recorded: RecordedResponse
) -> Any:
    import asyncio

    from multidict import CIMultiDict, CIMultiDictProxy
    from yarl import URL

    loop = asyncio.get_running_loop()
    headers = CIMultiDictProxy(CIMultiDict(_headers_of(recorded)))
    about = library.RequestInfo(URL(url), method, headers, URL(url))
    options: dict[str, Any] = {
        "writer": None,
        "continue100": None,
        "timer": library.helpers.TimerNoop(),
        "request_info": about,
        "traces": [],
        "loop": loop,
        "session": session,
        # Versions differ in whether they want these.
        "request_headers": headers,
        "original_url": URL(url),
        "stream_writer": SimpleNamespace(output_size=0),
    }
    wanted = inspect.signature(library.ClientResponse).parameters
    response = library.ClientResponse(
        method, URL(url), **{name: value for name, value in options.items() if name in wanted}
    )
    response.status, response.reason = recorded.status, ""
    response._headers, response._raw_headers = headers, ()  # noqa: SLF001 (what `start` sets)
    reader = library.StreamReader(
        library.base_protocol.BaseProtocol(loop), max(len(recorded.content), 1), loop=loop
    )
    reader.feed_data(recorded.content)
    reader.feed_eof()
    response.content = reader
    return response


class _TeeReader:
    """A stream of aiohttp that copies what is read, and reports it at the end."""

    def __init__(self, reader: Any, ended: Callable[[bytes], None]) -> None:
        self._reader = reader
        self._ended = ended
        self._seen = bytearray()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._reader, name)
        if name in ("read", "readany", "readexactly", "readline", "readuntil", "readchunk"):

            async def read(*args: Any, **options: Any) -> Any:
                return self._copied(await found(*args, **options))

            return read
        if name == "read_nowait":
            return lambda size=-1: self._copied(found(size))  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType]
        return found

    def _copied(self, data: Any) -> Any:
        piece: bytes = data if isinstance(data, bytes) else data[0]  # `readchunk` returns a pair
        self._seen += piece
        if self._reader.at_eof():
            self._ended(bytes(self._seen))
        return data

    async def __aiter__(self) -> Any:
        while line := await self.readline():
            yield line

    async def iter_any(self) -> Any:
        """Yield data as it arrives."""
        while data := await self.readany():
            yield data

    async def iter_chunked(self, n: int) -> Any:
        """Yield at most `n` bytes at a time."""
        while data := await self.read(n):
            yield data

    async def iter_chunks(self) -> Any:
        """Yield data as it was sent, with the end of each chunk."""
        while (chunk := await self.readchunk()) != (b"", False):
            yield chunk


# -- threads -----------------------------------------------------------------------------------

OURS = "proctor_"
"""How the names of our context variables begin: the others stay as the program expects them."""

_POOLS = ("concurrent.futures.thread", "proctor.background")
"""Modules whose threads run what other threads give them, each in its own context."""


def _context_of_trial() -> Context | None:
    """Return a context with our variables alone; None outside of trials."""
    context, current = Context(), copy_context()
    for variable in current:
        if variable.name.startswith(OURS) and variable is not _inside:
            context.run(variable.set, current[variable])
    return context if len(context) else None


def _patch_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    thread, pool = threading.Thread, ThreadPoolExecutor
    start_alone, submit_alone = thread.start, pool.submit

    @functools.wraps(start_alone)
    def start(self: Any) -> None:
        target = getattr(self, "_target", None)
        if getattr(target, "__module__", None) not in _POOLS:
            context, run = _context_of_trial(), self.run
            if context is not None:

                def run_in_trial() -> None:
                    del self.run  # it refers to the thread
                    context.run(run)

                self.run = run_in_trial
        start_alone(self)

    @functools.wraps(submit_alone)
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        context = _context_of_trial()
        if context is None:
            return submit_alone(self, fn, *args, **kwargs)
        return submit_alone(self, context.run, fn, *args, **kwargs)

    for owner, name, wrapped in ((thread, "start", start), (pool, "submit", submit)):
        _originals.append((owner, name, getattr(owner, name), wrapped))
        setattr(owner, name, wrapped)


_PATCHES: dict[str, Callable[[Any], None]] = {
    "httpx": _patch_httpx,
    "httpx2": _patch_httpx,
    "requests": _patch_requests,
    "aiohttp": _patch_aiohttp,
    "botocore.httpsession": _patch_botocore,
}
