"""Write YAML with PyYAML, so that it is the same to the byte on every machine.

A built scenario is compared by its bytes, so the form is fixed here and not left to the defaults
of a library: block style, keys in the given order, a text in quotes whenever YAML 1.1 or 1.2 could
read it as something else.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
_WORDS = frozenset("y n yes no on off true false null inf nan".split())
# Characters that a reader may refuse, or take for the end of a line.
_ESCAPED = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def dump(value: Any) -> str:
    """Return a plain value as a YAML document."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31)
    # PyYAML puts an end mark after a document that is one bare value.
    return text if isinstance(value, dict | list) else text.removesuffix("...\n")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # a list is indented under its key

    def check_simple_key(self) -> bool:
        return True  # never `? key`, however long it is

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        # PyYAML would write emoji as numbers.
        quoted = _ESCAPED.sub(_escape, text.replace("\\", "\\\\").replace('"', '\\"'))
        self.write_indicator(f'"{quoted}"', True)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return _NAMED.get(match.group()) or (f"\\u{code:04X}" if code > 0xFF else f"\\x{code:02X}")


def _text(_: _Dumper, value: str) -> yaml.ScalarNode:
    lines = value.removesuffix("\n").split("\n")
    style = '"'
    if _PLAIN.fullmatch(value) and value.casefold() not in _WORDS and len(value) <= 200:
        style = ""
    elif (
        "\n" in value
        and not value[0].isspace()
        and lines[-1]
        and all(line == line.rstrip() and not _ESCAPED.search(line) for line in lines)
    ):
        style = "|"  # reads back as it is, and well
    return yaml.ScalarNode("tag:yaml.org,2002:str", value, style=style)


def _float(_: _Dumper, value: float) -> yaml.ScalarNode:
    # The shortest digits that give the number back; with a point, which YAML 1.1 insists on.
    mantissa, sign, exponent = repr(value).partition("e")
    if sign and "." not in mantissa:
        mantissa += ".0"
    if sign and exponent[0] not in "+-":
        exponent = f"+{exponent}"
    return yaml.ScalarNode("tag:yaml.org,2002:float", f"{mantissa}{sign}{exponent}")


_Dumper.add_representer(str, _text)
_Dumper.add_representer(float, _float)
