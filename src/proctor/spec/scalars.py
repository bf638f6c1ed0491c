"""What a YAML scalar means, and environment variables inside it.

Scalars follow the YAML 1.2 core schema, as editors do: `no`, `on` and `12:30` are text, dates are
text, and every value has a JSON type. Variables stand only where written `${NAME}`; what they hold
is always text, so that no variable can change the shape of a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from proctor.spec.tree import Scalar

_NULL = re.compile(r"(?:null|Null|NULL|~|)")
_TRUE = re.compile(r"(?:true|True|TRUE)")
_FALSE = re.compile(r"(?:false|False|FALSE)")
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)")
_NAN = re.compile(r"\.(?:nan|NaN|NAN)")

_MEANINGS: tuple[tuple[str, re.Pattern[str], Callable[[str], Scalar]], ...] = (
    ("null", _NULL, lambda text: None),
    ("bool", _TRUE, lambda text: True),
    ("bool", _FALSE, lambda text: False),
    ("int", _INT, int),
    ("int", _OCTAL, lambda text: int(text[2:], 8)),
    ("int", _HEX, lambda text: int(text[2:], 16)),
    ("float", _FLOAT, float),
    ("float", _INFINITE, lambda text: float(text.replace(".", "", 1))),
    ("float", _NAN, lambda text: float("nan")),
)

LONGEST_NUMBER = 1_000
"""Digits in a number. Nobody counts that far, and Python itself refuses a little later."""


def meaning(text: str) -> Scalar:
    """The value of an unquoted scalar."""
    if len(text) > LONGEST_NUMBER:
        return text
    for _, pattern, read in _MEANINGS:
        if pattern.fullmatch(text):
            return read(text)
    return text


def tagged(text: str, kind: str) -> Scalar:
    """The value of a scalar with an explicit tag (`!!int "3"`); ValueError when it is not one."""
    if kind == "str":
        return text
    for name, pattern, read in _MEANINGS:
        # An integer is written like a float more often than not: `!!float 3`.
        if name == kind and len(text) <= LONGEST_NUMBER and pattern.fullmatch(text):
            return read(text)
    raise ValueError(f"{text[:40]!r} is not a value of type !!{kind}")


_REFERENCE = re.compile(
    r"""(?P<escape>\$\$\{)
      | \$\{ (?P<name>[A-Za-z_][A-Za-z0-9_]*) (?: :- (?P<default>[^}]*) )? \}
      | (?P<malformed>\$\{ [^}]{0,40} \}?)""",
    re.VERBOSE,
)


class Substituted(NamedTuple):
    """A text with its variables put in: what came from where, and what could not be put in."""

    text: str
    secrets: tuple[tuple[str, str], ...] = ()
    problems: tuple[tuple[str, str], ...] = ()


def substitute(text: str, environ: Mapping[str, str]) -> Substituted:
    """Put environment variables where `${NAME}` or `${NAME:-default}` stands; `$${` is `${`.

    `secrets` pairs what a variable held with the reference that stands for it, `problems` pairs a
    message with a hint. Defaults stand in the file and are no secrets.
    """
    if "${" not in text:
        return Substituted(text)
    secrets: list[tuple[str, str]] = []
    problems: list[tuple[str, str]] = []

    def put(match: re.Match[str]) -> str:
        if match["escape"]:
            return "${"
        if match["malformed"]:
            problems.append(
                (
                    f"{match.group()!r} is not a reference to an environment variable",
                    "write ${NAME} or ${NAME:-default}; for a literal ${ write $${",
                )
            )
            return match.group()
        name, held = match["name"], environ.get(match["name"])
        # As in a shell, an empty variable takes the default too.
        if match["default"] is not None and not held:
            return match["default"]
        if held is None:
            problems.append(
                (
                    f"the environment variable {name} is not set",
                    f"set it, or give a default: ${{{name}:-...}}",
                )
            )
            return ""
        if held:
            secrets.append((held, "${" + name + "}"))
        return held

    result = _REFERENCE.sub(put, text)
    return Substituted(result, tuple(secrets), tuple(problems))
