"""Secrets that give themselves away by their shape: provider keys, JWTs, key blocks, URLs.

Promise: every search is linear in the text, whatever it holds: patterns start with a literal (a
fast scan), repeat one character class, and are tried only where a run of that class begins.
They work on UTF-8 bytes, where the scan is fastest and positions are the same after lower-casing.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Hit(NamedTuple):
    """A secret in a text: bytes `start` to `end`, what it is, and quotes its mark needs."""

    start: int
    end: int
    kind: str
    quote: bytes = b""


_DASHED = re.compile(
    rb"-(?:(?<=[^A-Za-z0-9]sk-)|(?<=xox[a-z]-)|(?<=xapp-)|(?<=glpat-)|(?<=GOCSPX-)|(?<=pplx-)"
    rb"|(?<=[^A-Za-z0-9]xai-))[A-Za-z0-9_-]{10,}"
)
_UNDERSCORED = re.compile(
    rb"_(?:(?<=gh[pousr]_)|(?<=github_pat_)|(?<=[^A-Za-z0-9]hf_)|(?<=[^A-Za-z0-9]gsk_)"
    rb"|(?<=[^A-Za-z0-9]npm_)|(?<=[sr]k_live_)|(?<=[sr]k_test_)|(?<=lsv2_pt_)|(?<=lsv2_sk_)"
    rb"|(?<=[^A-Za-z0-9]r8_)|(?<=dop_v1_))[A-Za-z0-9_]{16,}"
)
# Before the mark (`-` or `_`) stand these letters; longest first, because `sk-` also ends others.
_KIND_OF_PREFIX = [
    (b"github_pat_", "github_token"),
    (b"lsv2_pt_", "langsmith_key"),
    (b"lsv2_sk_", "langsmith_key"),
    (b"k_live_", "stripe_key"),
    (b"k_test_", "stripe_key"),
    (b"dop_v1_", "digitalocean_token"),
    (b"GOCSPX-", "google_secret"),
    (b"glpat-", "gitlab_token"),
    (b"xapp-", "slack_token"),
    (b"pplx-", "perplexity_key"),
    (b"gsk_", "groq_key"),
    (b"npm_", "npm_token"),
    (b"xai-", "xai_key"),
    (b"hf_", "huggingface_token"),
    (b"r8_", "replicate_token"),
    (b"sk-", "openai_key"),
]
_KIND_AFTER_SK = {
    b"ant-": "anthropic_key",
    b"or-": "openrouter_key",
    b"lf-": "langfuse_key",
}

_ALNUM_RUN = re.compile(rb"[A-Za-z0-9]{20}")
_DIGIT = re.compile(rb"[0-9]")

# Shorter ones are words: `sk-learn`, `xox-games`.
_MIN_SK = 20


def dashed(data: bytes, low: bytes) -> Iterator[Hit]:
    """`sk-…`, `xoxb-…`, `glpat-…` and their like."""
    del low
    for match in _DASHED.finditer(data):
        body = data[match.start() + 1 : match.end()]
        prefix, kind = _prefixed(data, match.start())
        if prefix == b"sk-":
            if len(body) < _MIN_SK or not _looks_random(body):
                continue
            kind = next((k for head, k in _KIND_AFTER_SK.items() if body.startswith(head)), kind)
        elif not _DIGIT.search(body):
            continue
        yield Hit(match.start() + 1 - len(prefix), match.end(), kind)


def underscored(data: bytes, low: bytes) -> Iterator[Hit]:
    """`ghp_…`, `github_pat_…`, `hf_…` and their like."""
    del low
    for match in _UNDERSCORED.finditer(data):
        body = data[match.start() + 1 : match.end()]
        # Identifiers such as `hf_model_for_sequence_classification` are words, not keys.
        if not _looks_random(body):
            continue
        prefix, kind = _prefixed(data, match.start())
        yield Hit(match.start() + 1 - len(prefix), match.end(), kind)


def _prefixed(data: bytes, mark: int) -> tuple[bytes, str]:
    head = data[max(0, mark - 11) : mark + 1]
    for prefix, kind in _KIND_OF_PREFIX:
        if head.endswith(prefix):
            # Stripe's letter before `k_live_` is s or r; both belong to the key.
            return (head[-len(prefix) - 1 :], kind) if prefix.startswith(b"k_") else (prefix, kind)
    if head[-5:-2] == b"xox":
        return head[-5:], "slack_token"
    return head[-4:], "github_token"


def _looks_random(body: bytes) -> bool:
    """A key, and not words joined by hyphens or underscores."""
    return bool(_DIGIT.search(body) or _ALNUM_RUN.search(body))


_AWS_ID = re.compile(rb"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])")
_AWS_SECRET = re.compile(rb"(?<![A-Za-z0-9/+=])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")


def aws(data: bytes, low: bytes) -> Iterator[Hit]:
    """AWS access key ids, and beside one also bare 40-character secrets."""
    del low
    found = False
    for match in _AWS_ID.finditer(data):
        if match.start() and data[match.start() - 1 : match.start()].isalnum():
            continue
        found = True
        yield Hit(*match.span(), "aws_key")
    if found:
        for match in _AWS_SECRET.finditer(data):
            secret = match.group()
            # Hashes have one case only.
            if not (secret.islower() or secret.isupper()) and _DIGIT.search(secret):
                yield Hit(*match.span(), "aws_secret")


_GOOGLE = re.compile(rb"AIza(?<![A-Za-z0-9_-]AIza)[A-Za-z0-9_-]{30,}")


def google(data: bytes, low: bytes) -> Iterator[Hit]:
    """Google API keys."""
    del low
    for match in _GOOGLE.finditer(data):
        yield Hit(*match.span(), "google_key")


_JWT = re.compile(
    rb"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?"
)


def jwt(data: bytes, low: bytes) -> Iterator[Hit]:
    """JSON web tokens, signed or not."""
    del low
    for match in _JWT.finditer(data):
        yield Hit(*match.span(), "jwt")


_BEARER = re.compile(rb"bearer(?<![a-z0-9]bearer)[ \t]{1,4}+([a-z0-9._~+/=-]{12,})")
_BASIC = re.compile(rb"basic(?<![a-z0-9]basic)[ \t]{1,4}+([a-z0-9+/]{6,}+={0,2})(?![a-z0-9+/=])")


def bearer(data: bytes, low: bytes) -> Iterator[Hit]:
    """The token after `Bearer`."""
    for match in _BEARER.finditer(low):
        token = data[match.start(1) : match.end(1)]
        if _looks_random(token):
            yield Hit(*match.span(1), "bearer_token")


def basic(data: bytes, low: bytes) -> Iterator[Hit]:
    """The `user:password` after `Basic`; other words after "basic" are prose."""
    for match in _BASIC.finditer(low):
        if _is_basic_credential(data[match.start(1) : match.end(1)]):
            yield Hit(*match.span(1), "basic_auth")


def _is_basic_credential(encoded: bytes) -> bool:
    try:
        plain = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except binascii.Error:
        return False
    return b":" in plain and plain.decode("latin-1").isprintable()


_KEY_BLOCK = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
# What stands inside a block, in files, JSON strings and JSON inside JSON strings; no quotes, so
# that a block never reaches out of the string it stands in.
_KEY_REST = re.compile(
    rb"(?:[A-Za-z0-9+/=\s:,.]|-(?!----)|[\\]++[nr])*+-----END [A-Z0-9 ]{0,40}PRIVATE KEY"
    rb"(?: BLOCK)?-----"
)
_KEY_CUT_SHORT = re.compile(rb"(?:[A-Za-z0-9+/=]{20,}+|\s++|[\\]++[nr])*+")
# An RSA key of 16,384 bits takes 13 kB; more than this is not one key.
_MAX_KEY_BLOCK = 32_768


def private_key(data: bytes, low: bytes) -> Iterator[Hit]:
    """Private key blocks; one that was cut short is taken as far as it goes."""
    del low
    position = 0
    while begin := _KEY_BLOCK.search(data, position):
        limit = begin.end() + _MAX_KEY_BLOCK
        rest = _KEY_REST.match(data, begin.end(), limit) or _KEY_CUT_SHORT.match(
            data, begin.end(), limit
        )
        position = rest.end() if rest else begin.end()
        yield Hit(begin.start(), position, "private_key")


# Brackets and braces are percent-encoded in real URLs: `{password}` is a template, not a secret.
_USERINFO = re.compile(rb"://([^\s/?#@:\"'<>\\]{0,256}+):([^\s/?#\"'<>\\\[\]{}|)]{1,512})@")


def url_password(data: bytes, low: bytes) -> Iterator[Hit]:
    """The password in `scheme://user:password@host`."""
    del low
    for match in _USERINFO.finditer(data):
        yield Hit(*match.span(2), "password")


class Detector(NamedTuple):
    """A search, and lower-case texts without one of which it finds nothing."""

    needles: tuple[bytes, ...]
    find: Callable[[bytes, bytes], Iterator[Hit]]


_DASHED_PREFIXES = (b"sk-", b"xox", b"xapp-", b"glpat-", b"gocspx-", b"pplx-", b"xai-")
_UNDERSCORED_PREFIXES = (
    *(b"gh" + letter + b"_" for letter in (b"p", b"o", b"u", b"s", b"r")),
    *(b"github_pat_", b"hf_", b"gsk_", b"npm_", b"k_live_", b"k_test_", b"lsv2_", b"r8_"),
    b"dop_v1_",
)

DETECTORS = (
    Detector((b"-----begin",), private_key),
    Detector(_DASHED_PREFIXES, dashed),
    Detector(_UNDERSCORED_PREFIXES, underscored),
    Detector((b"akia", b"asia"), aws),
    Detector((b"aiza",), google),
    Detector((b".eyj",), jwt),
    Detector((b"bearer",), bearer),
    Detector((b"basic",), basic),
    Detector((b"://",), url_password),
)
