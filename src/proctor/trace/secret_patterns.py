"""Detect secrets in text by name (`password`, `OPENAI_API_KEY`) and by shape.

Guarantees: one rule for mapping keys, environment variables and `name=value` in text. Names are
classified by how they end, because a name ending in a secret word holds one (`db_password`), and
one that only contains it does not (`max_tokens`, `password_policy`, `secret_santa`).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

# Longer names are prose or data, never the name of a setting.
MAX_NAME = 80

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_ALONE = {
    "password": "password",
    "passwd": "password",
    "passphrase": "password",
    "passcode": "password",
    "pwd": "password",
    "pgpassword": "password",
    "secret": "secret",
    "apikey": "api_key",
    "apitoken": "token",
    "accesstoken": "token",
    "authtoken": "token",
    "secretkey": "secret",
    "privatekey": "private_key",
    "clientsecret": "secret",
    "credential": "credential",
    "authorization": "authorization",
    "cookie": "cookie",
}
"""Last words that are sufficient alone (plurals are the same name)."""

_PAIRS = {
    "key": {
        **dict.fromkeys(
            "api access account auth encryption master openai anthropic azure service signing "
            "storage subscription shared function".split(),
            "api_key",
        ),
        "secret": "secret",
        "private": "private_key",
        "ssh": "private_key",
    },
    "token": dict.fromkeys(
        "access account api app auth bearer bot client csrf deploy device github gitlab hf hub id "
        "identity login npm oauth personal private pypi refresh registry secret security "
        "service session slack telegram user vault webhook xsrf".split(),
        "token",
    ),
    "string": {"connection": "credential"},
    "signature": {"amz": "signature", "goog": "signature"},
    "pass": dict.fromkeys("db user smtp mysql postgres redis root admin ftp".split(), "password"),
}
"""Last words that need a certain word before them: `cache_key` and `pad_token` are no secrets."""

BARE_TOKEN = "bare_token"
"""The name `token` alone: a secret only when its value looks like one (models emit tokens too)."""


@lru_cache(maxsize=16_384)
def secret_kind(name: str) -> str | None:
    """Return the kind of secret a name holds; None when it holds none."""
    if not 3 <= len(name) <= MAX_NAME:
        return None
    words = [word.lower() for word in _WORDS.findall(name)]
    # `API_KEY_2` is an API key.
    while words and words[-1].isdigit():
        words.pop()
    if not words:
        return None
    last = words[-1]
    if last not in _ALONE and last not in _PAIRS and last.endswith("s"):
        last = last[:-1]
    if last in _ALONE:
        return _ALONE[last]
    if last == "token" and len(words) == 1:
        # `tokens` is a count or a list of words.
        return BARE_TOKEN if words[-1] == "token" else None
    before = words[-2] if len(words) > 1 else ""
    if last == "token" and words[-1] == "tokens" and before not in ("access", "api", "auth"):
        return None
    return _PAIRS.get(last, {}).get(before)


# Secrets recognised by their shape: provider keys, JWTs, key blocks, URLs. Every search is linear
# in the text: patterns start with a literal (a fast scan), repeat one character class, and run only
# where a run of that class begins. They work on UTF-8 bytes, where the scan is fastest and
# positions are the same after lower-casing.


class SecretMatch(NamedTuple):
    """A secret in a text: bytes `start` to `end`, its kind, and quotes its mark needs."""

    start: int
    end: int
    kind: str
    quote: bytes = b""


Finder = Callable[[bytes, bytes], Iterator[SecretMatch]]
"""Searches a text, given as it is and in lower case."""


_DASHED = re.compile(
    rb"-(?:(?<=[^A-Za-z0-9]sk-)|(?<=xox[a-z]-)|(?<=xapp-)|(?<=glpat-)|(?<=GOCSPX-)|(?<=pplx-)"
    rb"|(?<=[^A-Za-z0-9]xai-))[A-Za-z0-9_-]{10,}"
)
_UNDERSCORED = re.compile(
    rb"_(?:(?<=gh[pousr]_)|(?<=github_pat_)|(?<=[^A-Za-z0-9]hf_)|(?<=[^A-Za-z0-9]gsk_)"
    rb"|(?<=[^A-Za-z0-9]npm_)|(?<=[sr]k_live_)|(?<=[sr]k_test_)|(?<=lsv2_pt_)|(?<=lsv2_sk_)"
    rb"|(?<=[^A-Za-z0-9]r8_)|(?<=dop_v1_))[A-Za-z0-9_]{16,}"
)
# Letters before the separator (`-` or `_`); longest first, because `sk-` also ends others.
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


def dashed(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield `sk-…`, `xoxb-…`, `glpat-…` and similar keys."""
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
        yield SecretMatch(match.start() + 1 - len(prefix), match.end(), kind)


def underscored(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield `ghp_…`, `github_pat_…`, `hf_…` and similar keys."""
    del low
    for match in _UNDERSCORED.finditer(data):
        body = data[match.start() + 1 : match.end()]
        # Identifiers such as `hf_model_for_sequence_classification` are words, not keys.
        if not _looks_random(body):
            continue
        prefix, kind = _prefixed(data, match.start())
        yield SecretMatch(match.start() + 1 - len(prefix), match.end(), kind)


def _prefixed(data: bytes, mark: int) -> tuple[bytes, str]:
    # Long enough for the longest prefix, `github_pat_`.
    head = data[max(0, mark - 11) : mark + 1]
    for prefix, kind in _KIND_OF_PREFIX:
        if head.endswith(prefix):
            # Stripe's letter before `k_live_` is s or r; both belong to the key.
            return (head[-len(prefix) - 1 :], kind) if prefix.startswith(b"k_") else (prefix, kind)
    if head[-5:-2] == b"xox":
        return head[-5:], "slack_token"
    return head[-4:], "github_token"


def _looks_random(body: bytes) -> bool:
    """Return whether it is a key, and not words joined by hyphens or underscores."""
    return bool(_DIGIT.search(body) or _ALNUM_RUN.search(body))


_AWS_ID = re.compile(rb"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])")
_AWS_SECRET = re.compile(rb"(?<![A-Za-z0-9/+=])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")


def aws(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield AWS access key ids, and next to one also bare 40-character secrets."""
    del low
    found = False
    for match in _AWS_ID.finditer(data):
        if match.start() and data[match.start() - 1 : match.start()].isalnum():
            continue
        found = True
        yield SecretMatch(*match.span(), "aws_key")
    if found:
        for match in _AWS_SECRET.finditer(data):
            secret = match.group()
            # Hashes have one case only.
            if not (secret.islower() or secret.isupper()) and _DIGIT.search(secret):
                yield SecretMatch(*match.span(), "aws_secret")


_GOOGLE = re.compile(rb"AIza(?<![A-Za-z0-9_-]AIza)[A-Za-z0-9_-]{30,}")
# Signed or not.
_JWT = re.compile(
    rb"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?"
)


_BEARER = re.compile(rb"bearer(?<![a-z0-9]bearer)[ \t]{1,4}+([a-z0-9._~+/=-]{12,})")
_BASIC = re.compile(rb"basic(?<![a-z0-9]basic)[ \t]{1,4}+([a-z0-9+/]{6,}+={0,2})(?![a-z0-9+/=])")


def bearer(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield the token after `Bearer`."""
    for match in _BEARER.finditer(low):
        token = data[match.start(1) : match.end(1)]
        if _looks_random(token):
            yield SecretMatch(*match.span(1), "bearer_token")


def basic(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield the `user:password` after `Basic`; other words after "basic" are prose."""
    for match in _BASIC.finditer(low):
        encoded = data[match.start(1) : match.end(1)]
        try:
            plain = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
        except binascii.Error:
            continue
        if b":" in plain and plain.decode("latin-1").isprintable():
            yield SecretMatch(*match.span(1), "basic_auth")


_KEY_BLOCK = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
# Characters inside a block, in files, JSON strings and JSON inside JSON strings; no quotes, so that
# a block never extends past its string.
_KEY_REST = re.compile(
    rb"(?:[A-Za-z0-9+/=\s:,.]|-(?!----)|[\\]++[nr])*+-----END [A-Z0-9 ]{0,40}PRIVATE KEY"
    rb"(?: BLOCK)?-----"
)
_KEY_CUT_SHORT = re.compile(rb"(?:[A-Za-z0-9+/=]{20,}+|\s++|[\\]++[nr])*+")
# An RSA key of 16,384 bits takes 13 kB; anything longer is not one key.
_MAX_KEY_BLOCK = 32_768


def private_key(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield private key blocks; a truncated one extends as far as it goes."""
    del low
    position = 0
    while begin := _KEY_BLOCK.search(data, position):
        limit = begin.end() + _MAX_KEY_BLOCK
        rest = _KEY_REST.match(data, begin.end(), limit) or _KEY_CUT_SHORT.match(
            data, begin.end(), limit
        )
        position = rest.end() if rest else begin.end()
        yield SecretMatch(begin.start(), position, "private_key")


# Brackets and braces are percent-encoded in real URLs: `{password}` is a template, not a secret.
_USERINFO = re.compile(rb"://[^\s/?#@:\"'<>\\]{0,256}+:([^\s/?#\"'<>\\\[\]{}|)]{1,512})@")


def _matches(pattern: re.Pattern[bytes], kind: str) -> Finder:
    """Return a search for every match of a pattern; its group, if it has one, is the secret."""
    group = pattern.groups

    def find(data: bytes, low: bytes) -> Iterator[SecretMatch]:
        del low
        for match in pattern.finditer(data):
            yield SecretMatch(*match.span(group), kind)

    return find


class SecretPattern(NamedTuple):
    """A search, and lower-case texts of which one must occur for it to match."""

    needles: tuple[bytes, ...]
    find: Finder


_DASHED_PREFIXES = (b"sk-", b"xox", b"xapp-", b"glpat-", b"gocspx-", b"pplx-", b"xai-")
_UNDERSCORED_PREFIXES = (
    *(b"gh" + letter + b"_" for letter in (b"p", b"o", b"u", b"s", b"r")),
    *(b"github_pat_", b"hf_", b"gsk_", b"npm_", b"k_live_", b"k_test_", b"lsv2_", b"r8_"),
    b"dop_v1_",
)

DETECTORS = (
    SecretPattern((b"-----begin",), private_key),
    SecretPattern(_DASHED_PREFIXES, dashed),
    SecretPattern(_UNDERSCORED_PREFIXES, underscored),
    SecretPattern((b"akia", b"asia"), aws),
    SecretPattern((b"aiza",), _matches(_GOOGLE, "google_key")),
    SecretPattern((b".eyj",), _matches(_JWT, "jwt")),
    SecretPattern((b"bearer",), bearer),
    SecretPattern((b"basic",), basic),
    SecretPattern((b"://",), _matches(_USERINFO, "password")),
)


# Secrets recognised by their name, in text: `password=…`, `"api_key": "…"`, `Authorization: …`.
# Finds pairs in prose, code, headers, query strings, JSON, and JSON inside JSON strings (any number
# of backslashes), in linear time: every name searches a bounded distance to its left, and every
# checked value is skipped. Prose about passwords is left unchanged: a value after a bare name must
# look like a value.


# Every name `secret_kind` recognises ends in (the plural of) one of these; each is one fast scan.
STEMS = (
    b"pass",
    b"pwd",
    b"secret",
    b"key",
    b"token",
    b"credential",
    b"authorization",
    b"cookie",
    b"connection",
    b"signature",
)

# The rest of the name, an optional closing quote, then `:` or `=` (or `=>`, `:=`).
_AFTER_STEM = rb"[a-z0-9_-]{0,16}+([\\]{0,15}+[\"'`])?+\]?+[ \t]{0,8}+(?:=>|:=|[:=])(?![:=])"
_SEARCHES = [re.compile(re.escape(stem) + _AFTER_STEM) for stem in STEMS]
_SEARCH_OF: dict[bytes, re.Pattern[bytes]] = dict(zip(STEMS, _SEARCHES, strict=True))
_NAME = re.compile(r"[A-Za-z0-9_.\-]+\Z")
_NAME_END = re.compile(rb"[A-Za-z0-9_-]{0,16}+")

_OPENING = re.compile(rb"[ \t]{0,8}+([\\]{0,15}+)([\"'`])")
_BARE = re.compile(rb"[ \t]{0,8}+([^\s\"'`,;&<>(){}\[\]|\\]++)")
_SCHEME = re.compile(rb"[ \t]*+(?:bearer|basic|token|digest|apikey|negotiate)[ \t]+", re.IGNORECASE)
_COOKIES = re.compile(rb"[ \t]{0,8}+([^\r\n\"'`\\]{1,8192}+)")
_LINE_END = re.compile(rb"[ \t]*+(?:\r?\n|\Z|#)")
_LINE_START = re.compile(rb"[\n\r][ \t]*(?:- |export |set |\* )?[ \t]*\Z")

# An unclosed quote means truncated text; the value is then parsed like a bare one.
_MAX_QUOTED = 4096

_NOT_A_VALUE = re.compile(
    rb"(?i)(?:none|null|nil|undefined|true|false|str|string|int|bool|any|bytes|optional|required"
    rb"|secretstr|os\.environ.*|os\.getenv.*|getenv.*|process\.env.*|self\..*|config\..*"
    rb"|settings\..*|args\..*|env\..*|\$.*|%.*|\*+|\.+|x+|-+|_+|<.*|your[-_ ].*|\[redacted:.*)\Z"
)
_VALUE_SIGNS = re.compile(rb"[0-9!@#$%^*+=/~]|[a-z][A-Z]")
_AFTER_A_TEXT = tuple(bytes([sign]) for sign in b"])},;:+ \t\\")
_DIGITS = re.compile(rb"[0-9][0-9.,]*")
_SOME_LETTERS = re.compile(rb"[A-Za-z0-9][^A-Za-z0-9]*+[A-Za-z0-9][^A-Za-z0-9]*+[A-Za-z0-9]")
_RANDOM = re.compile(rb"(?=[^0-9]*+[0-9])(?=[^A-Za-z]*+[A-Za-z])[^\s]{12,}\Z")


class _Value(NamedTuple):
    start: int
    end: int
    quoted: bool


def pairs(data: bytes, low: bytes) -> Iterator[SecretMatch]:
    """Yield secret values after secret names; `low` is `data` in lower case."""
    for stem, search in zip(STEMS, _SEARCHES, strict=True):
        if stem not in low:
            continue
        position = 0
        while found := search.search(low, position):
            position = found.end()
            kind = _kind_at(data, found.start())
            if kind is None:
                continue
            value = _value_at(data, found.end(), kind)
            if value is None:
                continue
            # Skipping the value makes the search linear even when it contains names.
            position = max(position, value.end)
            if _is_secret(data, found, value, kind):
                kind = "token" if kind == BARE_TOKEN else kind
                # `"password": 1234`: a mark in place of a number needs the quotes of its name.
                quote = (found.group(1) or b"") if not value.quoted else b""
                yield SecretMatch(value.start, value.end, kind, quote)


def named_at(data: bytes, low: bytes, stem: bytes) -> Iterator[int]:
    """Yield positions of secret names with this stem before `:` or `=`, whatever follows."""
    for found in _SEARCH_OF[stem].finditer(low):
        if _kind_at(data, found.start()) is not None:
            yield found.start()


def _kind_at(data: bytes, stem: int) -> str | None:
    """Return the kind of the whole name around a stem."""
    end = _NAME_END.match(data, stem)
    stop = end.end() if end else stem
    left = data[max(0, stem - MAX_NAME) : stop].decode("latin-1")
    name = _NAME.search(left)
    return secret_kind(name.group()) if name else None


def _value_at(data: bytes, position: int, kind: str) -> _Value | None:
    if opening := _OPENING.match(data, position):
        end = _closing(data, opening.end(), opening.group(2), len(opening.group(1)))
        if end is not None:
            start = opening.end()
            if kind == "authorization" and (scheme := _SCHEME.match(data, start, end)):
                start = scheme.end()
            return _Value(start, end, True)
        position = opening.end()
    if kind == "authorization" and (scheme := _SCHEME.match(data, position)):
        position = scheme.end()
    pattern = _COOKIES if kind == "cookie" else _BARE
    bare = pattern.match(data, position)
    return _Value(*bare.span(1), False) if bare else None


def _closing(data: bytes, start: int, quote: bytes, level: int) -> int | None:
    """Return the end of a quoted value.

    A quote after `level` backslashes opens it. Inside, each backslash is written `level + 1` times,
    so the closing quote follows `level` plus an even number of those; a quote after fewer than
    `level` ends the enclosing text.
    """
    limit = min(len(data), start + _MAX_QUOTED)
    position = start
    while (found := data.find(quote, position, limit)) >= 0:
        text = data[start:found]
        behind = len(text) - len(text.rstrip(b"\\"))
        if behind < level or (behind - level) % (2 * (level + 1)) == 0:
            end = found - min(behind, level)
            return None if b"\n" in data[start:end] else end
        position = found + 1
    return None


def _is_secret(data: bytes, name: re.Match[bytes], value: _Value, kind: str) -> bool:
    text = data[value.start : value.end]
    if not text.strip() or _NOT_A_VALUE.match(text):
        return False
    if kind == BARE_TOKEN:
        return bool(_RANDOM.match(text))
    if kind != "password" and (_DIGITS.fullmatch(text) or not _SOME_LETTERS.search(text)):
        return False
    if kind == "cookie" and not name.group().endswith(b":"):
        return False  # code that handles cookies; a header has a colon
    if kind == "credential" and not (len(text) >= 8 and _VALUE_SIGNS.search(text)):
        return False  # `credentials: "include"`, `connection string: see below`
    if name.group(1):  # a quoted name: JSON, or code, where a bare word is a variable
        return value.quoted or bool(_DIGITS.fullmatch(text))
    if value.quoted:
        # In `"Enter password: "` and `["password="]` the quote ends the text around the name.
        return text[:1] not in _AFTER_A_TEXT
    if data[value.end : value.end + 1] in (b"(", b"["):
        return False  # a call or a lookup in code
    separator = name.group().rstrip(b"=>:")
    if name.group().endswith(b"=") and separator == separator.rstrip():
        # In code a variable is passed on: `api_key=api_key`, `password=db_password`.
        is_variable = secret_kind(text.decode("latin-1")) is not None
        return not is_variable or bool(_VALUE_SIGNS.search(text))
    if _VALUE_SIGNS.search(text):
        return True
    # A line of a settings file: only the name, the separator and the value.
    head = data[max(0, name.start() - MAX_NAME) : name.start()].rstrip(
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-\"'"
    )
    at_line_start = _LINE_START.search(b"\n" + head if len(head) < MAX_NAME else head)
    return bool(at_line_start and _LINE_END.match(data, value.end))
