"""Addresses of runs: `s3://bucket/prefix`, `gs://…`, `az://container/prefix`, `file:///folder`.

Promise: an address names a place and nothing else. Credentials come from the environment or from
what the provider has set up for the machine; one that stands in an address is refused, since
addresses are printed, kept and shared.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from urllib.parse import urlsplit

from proctor.errors import ProctorError, did_you_mean

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
