"""Which names say that their value is a secret: `password`, `OPENAI_API_KEY`, `client-secret`.

Promise: one answer for mapping keys, environment variables and `name=value` in text. Names are
judged by how they end, because what ends in a secret word holds one (`db_password`), and what
merely contains it does not (`max_tokens`, `password_policy`, `secret_santa`).
"""

from __future__ import annotations

import re
from functools import lru_cache

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
"""Last words that are enough by themselves (plurals are the same name)."""

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
    """What kind of secret a name holds; None when it holds none."""
    if not 3 <= len(name) <= MAX_NAME:
        return None
    words = [word.lower() for word in _WORDS.findall(name)]
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
