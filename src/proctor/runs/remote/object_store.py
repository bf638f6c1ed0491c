"""An object store as this package needs it: a few verbs, patient with servers and networks.

Promise: an object appears under its key whole or not at all; what is read is of one version of
the object; 5xx answers, silence and cut connections are tried again with growing pauses, and what
still fails is one error that names the object. The price: a multipart upload that was cut leaves
parts the store keeps, unseen, until its own clean-up rule removes them.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from proctor.errors import ProctorError, did_you_mean, first_of
from proctor.formatting import plural
from proctor.imports import needs_extra
from proctor.llm.retry import retry_delay
from proctor.runs.remote.manifest import MOST_BYTES, RemoteError

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore


# Addresses of runs: `s3://bucket/prefix`, `gs://…`, `az://container/prefix`, `file:///folder`.
#
# Promise: an address names a place and nothing else. Credentials come from the environment or
# from what the provider has set up for the machine; one that stands in an address is refused,
# since addresses are printed, kept and shared.


SCHEMES = {"s3": "Amazon S3", "gs": "Google Cloud Storage", "az": "Azure Blobs", "file": "a folder"}

GOOGLE_EMULATOR = "STORAGE_EMULATOR_HOST"
"""The variable by which Google's own clients are sent to another server, without credentials."""

ENDPOINTS = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURITE_BLOB_STORAGE_URL",
    GOOGLE_EMULATOR,
)
"""Variables that name another server than the provider's own."""


def is_address(text: str) -> bool:
    """Whether a text is meant as an address rather than a path: also one with a slash missing."""
    scheme, mark, _ = text.partition(":/")
    return "://" in text or (bool(mark) and scheme in SCHEMES)


def checked(text: str) -> str:
    """The address without a slash at its end, or an error that says what is wrong with it."""
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
            f"runs cannot be kept at {parts.scheme}://",
            where=shown(text),
            hint=did_you_mean(parts.scheme, SCHEMES) or f"there is {known}",
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ProctorError(
            "an address holds a bucket and a prefix, no credentials and no options",
            where=shown(text),
            hint="credentials come from the environment: AWS_ACCESS_KEY_ID and its like",
        )
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ProctorError("write file:///folder, with three slashes", where=text)
    elif not parts.netloc:
        raise ProctorError("the address names no bucket", where=text, hint="s3://bucket/prefix")
    if any(part in (".", "..") for part in parts.path.split("/")):
        raise ProctorError("an address has no . or .. in it", where=text)
    return text.rstrip("/")


def shown(text: str) -> str:
    """An address as it may be printed: without what may be a secret."""
    parts = urlsplit(text)
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}"


def joined(address: str, name: str) -> str:
    """The address of something below another."""
    return f"{address.rstrip('/')}/{name}"


def of_folder(path: Path) -> str:
    """The address of a local folder."""
    return path.resolve().as_uri()


def may_use_http(*, asked: bool) -> bool:
    """Whether plain HTTP is in order: it was asked for, or does not leave this machine."""
    if asked:
        return True
    given = [os.environ[name] for name in ENDPOINTS if os.environ.get(name)]
    given = [url if is_address(url) else f"http://{url}" for url in given]
    if os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true"):
        # Azurite, at its usual place on this machine unless a variable above says otherwise.
        given.append("http://127.0.0.1:10000")
    plain = [url for url in given if url.startswith("http://")]
    for url in plain:
        if not _is_loopback(urlsplit(url).hostname or ""):
            raise ProctorError(
                "the endpoint is plain HTTP: keys and results could be read on the way",
                where=shown(url),
                hint="use https://, or say --allow-http",
            )
    return bool(plain)


def google_emulator() -> str | None:
    """The server that stands in for Google's, if the environment names one."""
    url = os.environ.get(GOOGLE_EMULATOR)
    return None if not url else url if is_address(url) else f"http://{url}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


Answer = TypeVar("Answer")

RANGE = 8 << 20
"""Bytes asked for at a time: a cut connection costs no more than these, and four fit in memory."""

SHA256 = "sha256"
"""The metadata of an object that says what was sent."""

REPEATS = 4
"""Repetitions of one request, by obstore, with pauses of its own from 0.1 seconds up."""


_random = Random()  # noqa: S311 (spreads retries of many clients)


class Patience(NamedTuple):
    """How a store is spoken to."""

    at_once: int = 4
    """Files under way: enough to fill a line, few enough for a small server and its memory."""
    timeout: float = 30.0
    """Seconds of silence after which a request is given up and tried again."""
    tries: int = 3
    """Times that what was asked is begun anew; each request within it is repeated as well."""
    allow_http: bool = False


class Bucket:
    """The objects below an address."""

    def __init__(self, url: str, patience: Patience | None = None) -> None:
        self.url = checked(url)
        self.patience = patience or Patience()
        self._store = _opened(self.url, self.patience)
        self._keeps_metadata = not self.url.startswith("file:")

    async def sizes(self, below: str = "") -> dict[str, int]:
        """Every object below, with its size."""
        import obstore

        async def listed() -> dict[str, int]:
            stream = obstore.list(  # pyright: ignore[reportUnknownMemberType]
                self._store, prefix=below or None, chunk_size=1000
            )
            return {meta["path"]: meta["size"] async for chunk in stream for meta in chunk}

        return await self._patiently(listed, below)

    async def read(self, key: str, most: int) -> bytes | None:
        """A small object whole; None when it is not there."""

        async def got() -> bytes | None:
            try:
                result = await self._get(key, {})
            except FileNotFoundError:
                return None
            if result.meta["size"] > most:
                raise RemoteError(
                    f"the object has {result.meta['size']} bytes, more than can be one of ours",
                    where=self.at(key),
                )
            return bytes(await result.bytes_async())

        return await self._patiently(got, key)

    async def fetch(self, key: str, take: Callable[[bytes], object]) -> None:
        """Hand over an object, piece by piece, all of one version."""
        meta = (await self._patiently(lambda: self._get(key, {"head": True}), key)).meta
        for start in range(0, meta["size"], RANGE):
            options: GetOptions = {"range": (start, min(start + RANGE, meta["size"]))}
            if meta["e_tag"]:
                options["if_match"] = meta["e_tag"]

            async def got(options: GetOptions = options) -> bytes:
                return bytes(await (await self._get(key, options)).bytes_async())

            take(await self._patiently(got, key))

    async def put(self, key: str, content: bytes | Path, sha256: str) -> None:
        """Write an object; what had the key is replaced at once, or stays."""
        import obstore

        marks: Any = {SHA256: sha256} if self._keeps_metadata else None
        await self._patiently(
            lambda: obstore.put_async(self._store, key, content, attributes=marks), key
        )

    async def claim(self, key: str, content: bytes) -> bool:
        """Write an object unless there is one; false when there is."""
        import obstore

        async def created() -> bool:
            try:
                await obstore.put_async(self._store, key, content, mode="create")
            except (FileExistsError, obstore.exceptions.AlreadyExistsError):
                # It may be ours, from a try whose answer was lost.
                return await self.read(key, MOST_BYTES) == content
            return True

        return await self._patiently(created, key)

    async def sha256(self, key: str, *, by_content: bool = False) -> str:
        """The checksum of an object: as its sender said, or from its content."""
        if self._keeps_metadata and not by_content:
            result = await self._patiently(lambda: self._get(key, {"head": True}), key)
            if said := result.attributes.get(SHA256):
                return str(said)
        digest = hashlib.sha256()
        await self.fetch(key, digest.update)
        return digest.hexdigest()

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are gone already are no error."""
        import obstore

        async def deleted(key: str) -> None:
            try:
                await obstore.delete_async(self._store, key)
            except FileNotFoundError:
                return

        await self.each([lambda k=key: self._patiently(lambda: deleted(k), k) for key in keys])

    async def each(self, jobs: Sequence[Callable[[], Awaitable[Answer]]]) -> list[Answer]:
        """Do all jobs, a few at once; the first that fails ends the others."""
        room = asyncio.Semaphore(self.patience.at_once)

        async def in_turn(job: Callable[[], Awaitable[Answer]]) -> Answer:
            async with room:
                return await job()

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(in_turn(job)) for job in jobs]
        except BaseExceptionGroup as errors:
            # One reason is enough; the others ended because of it.
            raise first_of(errors) from None
        return [task.result() for task in tasks]

    def at(self, key: str) -> str:
        """The address of an object, to be shown."""
        return joined(self.url, key)

    async def _get(self, key: str, options: GetOptions) -> Any:
        import obstore

        return await obstore.get_async(self._store, key, options=options)

    async def _patiently(self, ask: Callable[[], Awaitable[Answer]], key: str) -> Answer:
        from obstore.exceptions import (
            BaseError,
            PermissionDeniedError,
            PreconditionError,
            UnauthenticatedError,
        )

        # obstore repeats single requests, but not one whose connection is cut in the middle of a
        # body, and not a listing or an upload of several requests: those begin again here.
        for attempt in range(self.patience.tries):
            try:
                return await ask()
            except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
                raise self._refused(key, error) from None
            except PreconditionError:
                raise RemoteError(
                    "the object changed while it was read",
                    where=self.at(key),
                    hint="somebody is writing the run; sync again when they are done",
                ) from None
            except FileNotFoundError:
                raise RemoteError(
                    "there is no such object, or no such bucket",
                    where=self.at(key),
                    hint="a bucket must be there before runs are kept in it",
                ) from None
            except (BaseError, OSError) as error:
                if attempt + 1 == self.patience.tries:
                    raise self._given_up(key, error) from None
            await asyncio.sleep(retry_delay(attempt, None, _random))
        raise AssertionError("a try either answers or raises")

    def _refused(self, key: str, error: Exception) -> RemoteError:
        return RemoteError(
            f"the store refuses: {_brief(error)}",
            where=self.at(key),
            hint="check the credentials in the environment and what they may do",
        )

    def _given_up(self, key: str, error: Exception) -> RemoteError:
        return RemoteError(
            f"gave up after {plural(self.patience.tries, 'time')}: {_brief(error)}",
            where=self.at(key),
            hint="check the address and the network; what was transferred is kept, and the same "
            "command goes on from there",
        )


def _opened(url: str, patience: Patience) -> ObjectStore:
    needs_extra("obstore", "cloud")
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    if url.startswith("file:"):
        from urllib.parse import unquote, urlsplit

        return LocalStore(unquote(urlsplit(url).path), mkdir=True)
    allow_http = may_use_http(asked=patience.allow_http)
    try:
        return from_url(
            url,
            **_instead(url),
            client_options={
                "allow_http": allow_http,
                "connect_timeout": timedelta(seconds=patience.timeout),
                "read_timeout": timedelta(seconds=patience.timeout),
                # Of a whole request: a part of 5 MB on a line of 0.2 Mbit/s.
                "timeout": timedelta(seconds=max(240.0, patience.timeout)),
            },
            # Of each request, so that a large upload repeats the part that failed, not all parts.
            retry_config={
                "max_retries": REPEATS,
                "retry_timeout": timedelta(seconds=2.5 * patience.timeout),
            },
        )
    except (BaseError, ValueError) as error:
        raise RemoteError(f"cannot use this address: {_brief(error)}", where=url) from None


def _instead(url: str) -> dict[str, Any]:
    """Where the environment sends us instead of the provider, as far as obstore does not look."""
    server = google_emulator() if url.startswith("gs:") else None
    if server is None:
        return {}
    # The form in which obstore takes another server of Google's: a key that names it.
    key = {"gcs_base_url": server.rstrip("/"), "disable_oauth": True}
    empty = {"client_email": "", "private_key": "", "private_key_id": ""}
    return {"service_account_key": msgspec.json.encode({**key, **empty}).decode()}


def _brief(error: Exception) -> str:
    """The first line of what a store says, which goes on for pages."""
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0]
    return line if len(line) <= 300 else f"{line[:297]}..."
