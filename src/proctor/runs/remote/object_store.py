"""Access an object store with a few operations, and describe a run in it by a manifest.

Guarantees: an object appears under its key completely or not at all; a read returns one version of
the object; 5xx responses, timeouts and broken connections are retried with growing delays, and a
final failure is one error that names the object. Trade-off: an interrupted multipart upload leaves
invisible parts until the store's own clean-up rule removes them.

    {"format": 1, "run_id": "…", "name": "shop/2026-11-16_001", "state": "complete",
     "files": {"trials.jsonl": {"size": 812, "sha256": "…"}, …},
     "pieces": {"traces/000001.jsonl.zst": ["000000000000000-3f8a0b6c1d2e4f70", …]}}

The manifest is written last, so one with state `complete` lists files that are all present, each as
one object or as the named pieces; `running` means that more pieces follow, `replacing` that an
upload was not finished. Names in it are accepted only if they stay inside the run.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path, PurePosixPath
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from proctor.errors import ProctorError, did_you_mean, first_of
from proctor.formatting import plural
from proctor.imports import needs_extra
from proctor.llm.retry import retry_delay

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore


NAME = "_manifest_.json"
FORMAT = 2
"""Version of the manifest; a newer one is rejected. Without `pieces`, version 1 is written."""

SPEC, JOURNAL = "_spec_.yaml", "trials.jsonl"
ONLY_GROW = (JOURNAL, "notes.jsonl", "labels.jsonl")
"""Append-only files: an earlier state must not replace a later one."""

PIECES = "_pieces_"
"""Prefix of the pieces of files that were growing while they were uploaded."""

MAX_BYTES = 64 << 20
"""Maximum size of a manifest: enough for some 500,000 files."""

_BLOCK = 1 << 20
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\:]")

State = Literal["complete", "running", "replacing"]


class RemoteError(ProctorError):
    """A run in an object store cannot be read, written or trusted."""


class FileFacts(msgspec.Struct, frozen=True):
    """Expected size and checksum of a file."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A run in an object store."""

    format: int = 1
    run_id: str
    name: str
    state: State
    files: dict[str, FileFacts] = {}
    pieces: dict[str, list[str]] = {}
    """Files stored in pieces, with the names of the pieces in order."""

    def encode(self) -> bytes:
        """Encode the manifest for storage."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def decode(content: bytes, where: str) -> Manifest:
    """Return a validated manifest, or raise with the reason."""
    try:
        found = msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise RemoteError(f"the manifest cannot be read: {error}", where=where) from None
    if found.format > FORMAT:
        raise RemoteError(
            f"the manifest has format {found.format}, this version reads up to {FORMAT}",
            where=where,
            hint="upgrade proctor",
        )
    for name in (found.name, *found.files):
        if not is_inside(name):
            raise RemoteError(f"the manifest names a file outside the run: {name!r}", where=where)
    return found


def is_inside(name: str) -> bool:
    """Return whether a relative name stays below its folder, on every operating system."""
    # Hidden files (locks, the destination) are of one machine, and `..` starts with a dot too.
    plain = all(part and not part.startswith(".") for part in name.split("/"))
    return plain and not _UNSAFE.search(name) and not PurePosixPath(name).is_absolute()


def run_files(run: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a run to transfer: all but links and hidden files."""
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        # A folder that serves as a store (file:///) has these; they are not files of the run.
        ours = name == NAME or name.startswith(f"{PIECES}/")
        if is_inside(name) and not ours and path.is_file() and not path.is_symlink():
            yield name, path


def facts_of_bytes(content: bytes) -> FileFacts:
    """Return size and checksum of a content in memory."""
    return FileFacts(len(content), hashlib.sha256(content).hexdigest())


def facts_of(path: Path) -> FileFacts:
    """Return size and checksum of a file, read once."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return FileFacts(size, digest.hexdigest())


# Addresses of runs: `s3://bucket/prefix`, `gs://…`, `az://container/prefix`, `file:///folder`. An
# address is only a location. Credentials come from the environment or from the provider's
# configuration of the machine; credentials in an address are rejected, since addresses are printed,
# stored and shared.


SCHEMES = {"s3": "Amazon S3", "gs": "Google Cloud Storage", "az": "Azure Blobs", "file": "a folder"}

GOOGLE_EMULATOR = "STORAGE_EMULATOR_HOST"
"""The variable that points Google's own clients to another server, without credentials."""

ENDPOINTS = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURITE_BLOB_STORAGE_URL",
    GOOGLE_EMULATOR,
)
"""Variables that name a server other than the provider's own."""


def is_address(text: str) -> bool:
    """Return whether a text is an address rather than a path, even with a slash missing."""
    scheme, mark, _ = text.partition(":/")
    return "://" in text or (bool(mark) and scheme in SCHEMES)


def checked(text: str) -> str:
    """Return the address without a trailing slash, or raise with the reason."""
    parts = urlsplit(text)
    if "://" not in text:
        scheme, _, rest = text.partition(":")
        raise ProctorError(
            "an address has two slashes",
            where=text,
            hint=f"{scheme}://{rest.lstrip('/')}" if scheme != "file" else f"file://{rest}",
        )
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{name}:// ({what})" for name, what in SCHEMES.items())
        raise ProctorError(
            f"runs cannot be stored at {parts.scheme}://",
            where=shown(text),
            hint=did_you_mean(parts.scheme, SCHEMES) or f"there is {known}",
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ProctorError(
            "an address holds a bucket and a prefix, no credentials and no options",
            where=shown(text),
            hint="set credentials in the environment: AWS_ACCESS_KEY_ID and so on",
        )
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ProctorError("write file:///folder, with three slashes", where=text)
    elif not parts.netloc:
        raise ProctorError("the address names no bucket", where=text, hint="s3://bucket/prefix")
    # Stores take them literally, file systems do not: one address would be two places.
    if any(part in (".", "..") for part in parts.path.split("/")):
        raise ProctorError("an address has no . or .. in it", where=text)
    return text.rstrip("/")


def shown(text: str) -> str:
    """Return an address for display, without possible secrets."""
    parts = urlsplit(text)
    # User and password are before the @; options after the path may be signatures.
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}"


def joined(address: str, name: str) -> str:
    """Join an address and a relative name."""
    return f"{address.rstrip('/')}/{name}"


def of_folder(path: Path) -> str:
    """Return the address of a local folder."""
    return path.resolve().as_uri()


def may_use_http() -> bool:
    """Return whether the environment names a plain HTTP endpoint; it must be on this machine."""
    given = [os.environ[name] for name in ENDPOINTS if os.environ.get(name)]
    given = [url if is_address(url) else f"http://{url}" for url in given]
    if os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true"):
        # Azurite, at its default address on this machine unless a variable above is set.
        given.append("http://127.0.0.1:10000")
    plain = [url for url in given if url.startswith("http://")]
    for url in plain:
        if not _is_loopback(urlsplit(url).hostname or ""):
            raise ProctorError(
                "the endpoint is plain HTTP: keys and results could be read on the way",
                where=shown(url),
                hint="use https://, or add --allow-http",
            )
    return bool(plain)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


Item = TypeVar("Item")
Answer = TypeVar("Answer")

RANGE = 8 << 20
"""Bytes per read request: a broken connection costs at most these, and four fit in memory."""

SHA256 = "sha256"
"""Object metadata with the checksum of the uploaded content."""

REPEATS = 4
"""Retries of one request by obstore, with its own delays from 0.1 seconds up."""


_random = Random()  # noqa: S311 (spreads retries of many clients)


class StoreOptions(NamedTuple):
    """Settings for requests to a store."""

    at_once: int = 4
    """Concurrent transfers: enough to fill a line, few enough for a small server and its memory."""
    timeout: float = 30.0
    """Seconds without data after which a request is aborted and retried."""
    tries: int = 3
    """Attempts of a whole operation; each request within it is retried as well."""
    allow_http: bool = False


class Bucket:
    """The objects below an address."""

    def __init__(self, url: str, options: StoreOptions | None = None) -> None:
        self.url = checked(url)
        self.options = options or StoreOptions()
        self._store = _open_store(self.url, self.options)
        # A folder has no place for the metadata of its files.
        self._keeps_metadata = not self.url.startswith("file:")

    async def sizes(self) -> dict[str, int]:
        """Return every object with its size."""
        import obstore

        async def listed() -> dict[str, int]:
            stream = obstore.list(self._store, chunk_size=1000)  # pyright: ignore[reportUnknownMemberType]
            return {meta["path"]: meta["size"] async for chunk in stream for meta in chunk}

        return await self._retried(listed, "")

    async def read(self, key: str, limit: int) -> bytes | None:
        """Return a small object; None when it does not exist."""

        async def got() -> bytes | None:
            try:
                result = await self._get(key, {})
            except FileNotFoundError:
                return None
            if result.meta["size"] > limit:
                raise RemoteError(
                    f"the object has {result.meta['size']} bytes, more than the limit",
                    where=self.at(key),
                )
            return bytes(await result.bytes_async())

        return await self._retried(got, key)

    async def fetch(self, key: str, take: Callable[[bytes], object]) -> None:
        """Pass an object to `take` in chunks, all of one version."""
        meta = (await self._retried(lambda: self._get(key, {"head": True}), key)).meta
        for start in range(0, meta["size"], RANGE):
            options: GetOptions = {"range": (start, min(start + RANGE, meta["size"]))}
            if meta["e_tag"]:  # a chunk of a newer version must not follow those of an older one
                options["if_match"] = meta["e_tag"]

            async def got(options: GetOptions = options) -> bytes:
                return bytes(await (await self._get(key, options)).bytes_async())

            take(await self._retried(got, key))

    async def put(self, key: str, content: bytes | Path, sha256: str | None = None) -> None:
        """Write an object, replacing any previous one atomically.

        `sha256` is its checksum if known; a file needs it, since it may be too large to read twice.
        """
        import obstore

        if sha256 is None and isinstance(content, bytes):
            sha256 = facts_of_bytes(content).sha256
        metadata: Any = {SHA256: sha256} if self._keeps_metadata else None
        await self._retried(
            lambda: obstore.put_async(self._store, key, content, attributes=metadata), key
        )

    async def create(self, key: str, content: bytes) -> bool:
        """Write an object unless it exists; return false if it does."""
        import obstore

        async def created() -> bool:
            try:
                await obstore.put_async(self._store, key, content, mode="create")
            except (FileExistsError, obstore.exceptions.AlreadyExistsError):
                # It may be ours, from an attempt whose response was lost.
                return await self.read(key, MAX_BYTES) == content
            return True

        return await self._retried(created, key)

    async def sha256(self, key: str, *, by_content: bool = False) -> str:
        """Return the checksum of an object: from its metadata, or from its content."""
        if self._keeps_metadata and not by_content:
            result = await self._retried(lambda: self._get(key, {"head": True}), key)
            if stored := result.attributes.get(SHA256):
                return str(stored)
        digest = hashlib.sha256()
        await self.fetch(key, digest.update)
        return digest.hexdigest()

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""
        import obstore

        async def deleted(key: str) -> None:
            with suppress(FileNotFoundError):
                await obstore.delete_async(self._store, key)

        await self.each(lambda key: self._retried(lambda: deleted(key), key), keys)

    async def each(
        self, job: Callable[[Item], Awaitable[Answer]], items: Iterable[Item]
    ) -> list[Answer]:
        """Run a job for every item, a few at once; the first failure cancels the others."""
        room = asyncio.Semaphore(self.options.at_once)

        async def in_turn(item: Item) -> Answer:
            async with room:
                return await job(item)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(in_turn(item)) for item in items]
        except BaseExceptionGroup as errors:
            # One reason is enough; the other jobs were cancelled because of it.
            raise first_of(errors) from None
        return [task.result() for task in tasks]

    def at(self, key: str) -> str:
        """Return the address of an object for display."""
        return joined(self.url, key)

    async def _get(self, key: str, options: GetOptions) -> Any:
        import obstore

        return await obstore.get_async(self._store, key, options=options)

    async def _retried(self, request: Callable[[], Awaitable[Answer]], key: str) -> Answer:
        from obstore.exceptions import (
            BaseError,
            PermissionDeniedError,
            PreconditionError,
            UnauthenticatedError,
        )

        # obstore retries single requests, but not one whose connection breaks in the middle of a
        # body, and not a listing or an upload of several requests: those are restarted here.
        for attempt in range(self.options.tries):
            try:
                return await request()
            except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
                raise RemoteError(
                    f"the store denied access: {_first_line(error)}",
                    where=self.at(key),
                    hint="check the credentials in the environment and their permissions",
                ) from None
            except PreconditionError:
                raise RemoteError(
                    "the object changed while it was read",
                    where=self.at(key),
                    hint="another process is writing the run; sync again when it has finished",
                ) from None
            except FileNotFoundError:
                raise RemoteError(
                    "the object or the bucket does not exist",
                    where=self.at(key),
                    hint="create the bucket first",
                ) from None
            except (BaseError, OSError) as error:
                if attempt + 1 == self.options.tries:
                    raise RemoteError(
                        f"gave up after {plural(self.options.tries, 'time')}: {_first_line(error)}",
                        where=self.at(key),
                        hint="check the address and the network; transferred files are kept, and "
                        "the same command continues from there",
                    ) from None
            await asyncio.sleep(retry_delay(attempt, None, _random))
        raise AssertionError("an attempt either returns or raises")


def _open_store(url: str, options: StoreOptions) -> ObjectStore:
    needs_extra("obstore", "cloud")
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    if url.startswith("file:"):
        return LocalStore(unquote(urlsplit(url).path), mkdir=True)
    allow_http = options.allow_http or may_use_http()
    timeout = timedelta(seconds=options.timeout)
    emulator: dict[str, Any] = _google_emulator() if url.startswith("gs:") else {}
    try:
        return from_url(
            url,
            **emulator,
            client_options={
                "allow_http": allow_http,
                "connect_timeout": timeout,
                "read_timeout": timeout,
                # Timeout of a whole request: a part of 5 MB on a line of 0.2 Mbit/s.
                "timeout": max(timedelta(minutes=4), timeout),
            },
            # Retries per request, so that a large upload repeats the failed part, not all parts.
            retry_config={"max_retries": REPEATS, "retry_timeout": 2.5 * timeout},
        )
    except (BaseError, ValueError) as error:
        raise RemoteError(f"cannot use this address: {_first_line(error)}", where=url) from None


def _google_emulator() -> dict[str, Any]:
    """Return the settings for a replacement of Google's server, which obstore does not read."""
    server = os.environ.get(GOOGLE_EMULATOR)
    if not server:
        return {}
    if not is_address(server):
        server = f"http://{server}"
    # obstore accepts another server for Google only as a key that names it.
    key = {"gcs_base_url": server.rstrip("/"), "disable_oauth": True}
    empty = {"client_email": "", "private_key": "", "private_key_id": ""}
    return {"service_account_key": msgspec.json.encode({**key, **empty}).decode()}


def _first_line(error: Exception) -> str:
    # A store's error can span pages: headers, XML, the chain of causes.
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 300 else f"{line[:297]}..."
