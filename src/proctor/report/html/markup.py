"""HTML from values, where text can only ever be text.

Promise: whatever is not `Html` is escaped, so nothing an agent said becomes markup. Characters
that a reader cannot see, or that would turn the text around them, are shown by name.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from proctor.report.text import whole_text

VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})

# C0 and C1 controls but tab and line breaks; bidirectional and zero-width marks; tag characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_PICTURES = 0x2400
"""Where Unicode keeps a picture for each C0 control: U+2400 shows NUL."""


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | int | float | None
"""What may stand inside an element; None is nothing, and only `Html` is not escaped."""


def visible(text: str) -> str:
    """A text in which every character can be seen: controls as pictures or as [U+202E]."""
    return _UNSEEN.sub(_shown, whole_text(text))


def _shown(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code < 0x20:
        return chr(_PICTURES + code)
    return f"[U+{code:04X}]"


def escape(value: Child) -> str:
    """A value as it may stand in an element or in a quoted attribute."""
    if value is None:
        return ""
    if isinstance(value, Html):
        return value
    return html.escape(visible(str(value)), quote=True)


def tag(name: str, *children: Child, **attributes: Child | bool) -> Html:
    """An element. `class_`, `for_` lose their underscore; other underscores become hyphens."""
    shown = "".join(_attribute(key, value) for key, value in attributes.items())
    opened = f"<{name}{shown}>"
    if name in VOID:
        return Html(opened)
    return Html(f"{opened}{''.join(map(escape, children))}</{name}>")


def _attribute(key: str, value: Child | bool) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value)}"'


def join(parts: Iterable[Child], between: str = "") -> Html:
    """Parts one after the other."""
    return Html(escape(between).join(escape(part) for part in parts if part is not None))


def table(
    caption: str,
    head: Iterable[Child],
    rows: Iterable[Iterable[Child]],
    *,
    numeric: Iterable[int] = (),
    class_: str = "",
) -> Html:
    """A table with a caption, column headings, and the first cell of a row as its heading."""
    right = frozenset(numeric)

    def cell(name: str, at: int, content: Child, scope: str | None = None) -> Html:
        return tag(name, content, scope=scope, class_="n" if at in right else None)

    top = tag("tr", *(cell("th", at, text, "col") for at, text in enumerate(head)))
    body = [
        tag(
            "tr",
            *(
                cell("th", at, text, "row") if at == 0 else cell("td", at, text)
                for at, text in enumerate(row)
            ),
        )
        for row in rows
    ]
    inner = tag(
        "table",
        tag("caption", caption, class_="sr"),
        tag("thead", top),
        tag("tbody", join(body)),
        class_=class_ or None,
    )
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def bar(share: float | None, tone: str = "") -> Html:
    """A share from 0 to 1 as a bar. Its figure stands beside it, so readers skip the picture."""
    if share is None:
        return Html("")
    width = f"{max(0.0, min(1.0, share)) * 100:.1f}".rstrip("0").rstrip(".")
    drawn = tag("rect", width=width, height="8", rx="1", class_=f"fill {tone}".strip())
    ground = tag("rect", width="100", height="8", rx="1", class_="ground")
    return _svg(join([ground, drawn]))


def whisker(value: float | None, low: float | None, high: float | None) -> Html:
    """A share with its interval, on a scale from 0 to 1."""
    if value is None:
        return Html("")
    parts = [tag("rect", y="3.25", width="100", height="1.5", class_="ground")]
    if low is not None and high is not None:
        wide = f"{max(0.5, (high - low) * 100):.1f}"
        parts.append(
            tag("rect", x=f"{low * 100:.1f}", y="1", width=wide, height="6", class_="range")
        )
    at = f"{min(98.0, max(0.0, value * 100 - 1)):.1f}"
    parts.append(tag("rect", x=at, width="2", height="8", class_="point"))
    return _svg(join(parts))


def _svg(inner: Html) -> Html:
    return tag(
        "svg",
        inner,
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        class_="bar",
        aria_hidden="true",
        focusable="false",
    )
