"""Tables for the terminal, for notebooks, as data frames, CSV, LaTeX and charts.

Results that are tables derive from `Tabular`.

On a terminal a table fits the window, laid out by rich: names are cut in the middle, which keeps
the ends that distinguish similar names, and figures wrap after commas but are never cut. Where
even that is too wide, each row is a block: its names, then its figures with their heads. Files
and other programs get every text whole, one row a line; that path does not import rich's tables,
which take 30 ms to import and 0.5 ms a row.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from proctor.errors import ProctorError
from proctor.sanitize import escape_formula

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

NAME_HEADS = frozenset({"case", "agent", "run"})
"""Heads of the columns that hold names. Only names are cut: half a figure is misleading."""

_NO_BREAK = "\ue000"
"""A space at which rich must not break a line; U+00A0 does not help, rich breaks there too."""

MAX_HTML_ROWS = 100
"""Rows of a table in a notebook: more would bury the cells around it."""

MAX_HTML_CHARS = 20_000
"""Characters of one text in a notebook: a notebook keeps its output in its file."""

MIN_NAME = 12
"""Columns that a name keeps however narrow the terminal is: less is unreadable."""


class Tabular:
    """A result that is a table; `records` are its rows, by default one with all fields.

    run.to_pandas(), comparison.to_latex(), results.group_by("agent").plot()
    """

    __slots__ = ()

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as mappings with the same keys."""
        names: Iterable[str] = getattr(self, "__struct_fields__", None) or getattr(
            self, "__dataclass_fields__", ()
        )
        return [{name: getattr(self, name) for name in names}]

    def to_pandas(self) -> Any:
        """Return the table as a `pandas.DataFrame`."""
        need("pandas")
        return import_module("pandas").DataFrame(self._cells())

    def to_polars(self) -> pl.DataFrame:
        """Return the table as a `polars.DataFrame`."""
        need("polars")
        import polars as pl

        return pl.DataFrame(self._cells(), infer_schema_length=None)

    def to_csv(self) -> str:
        """Return the table as CSV; a spreadsheet takes no text in it for a formula."""
        import csv
        from io import StringIO

        rows, out = self._cells(), StringIO()
        writer = csv.writer(out)
        writer.writerow(rows[0] if rows else ())
        for row in rows:
            writer.writerow([escape_formula(v) if isinstance(v, str) else v for v in row.values()])
        return out.getvalue()

    def to_latex(self) -> str:
        """Return the table as a `tabular` of LaTeX; floats have four digits."""
        rows = self._cells()
        head = list(rows[0]) if rows else []
        right = [all(isinstance(row[name], int | float | None) for row in rows) for name in head]
        lines = [
            " & ".join(latex_text(cell_text(value)) for value in values) + r" \\"
            for values in [head, *(row.values() for row in rows)]
        ]
        columns = "".join("r" if each else "l" for each in right)
        body = [lines[0], r"\hline", *lines[1:]]
        return "\n".join(
            [rf"\begin{{tabular}}{{{columns}}}", r"\hline", *body, r"\hline", r"\end{tabular}", ""]
        )

    def plot(self) -> Any:
        """Return the table as an Altair chart."""
        need("altair", "charts")
        return import_module("altair").Chart.from_dict(self._chart())

    def _chart(self) -> dict[str, Any]:
        """Return the Vega-Lite spec of the chart, with its data."""
        raise ProctorError(f"a {type(self).__name__} has no chart", hint="use to_pandas()")

    def _cells(self) -> list[dict[str, Any]]:
        """Return the records with numbers and text only, which every program can hold."""
        return [
            {
                name: value if isinstance(value, int | float | None) else str(value)
                for name, value in row.items()
            }
            for row in self.records()
        ]

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        rows = self._cells()
        shown = [[cell_text(value) for value in row.values()] for row in rows]
        return html_table(self._heading(), list(rows[0]) if rows else (), shown)

    def _heading(self) -> str:
        return type(self).__name__


def need(package: str, extra: str = "frames") -> None:
    """Raise with the command that installs a missing package."""
    if find_spec(package) is None:
        raise ProctorError(f"{package} is not installed", hint=f"pip install 'proctor[{extra}]'")


def cell_text(value: object) -> str:
    """Return a cell for people: floats with four digits, nothing for None."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


_TEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "–": "--",
        "−": "$-$",
        "±": r"$\pm$",
        "≥": r"$\geq$",
        "×": r"$\times$",
        "·": r"$\cdot$",
        "…": r"\ldots{}",
        "µ": r"\textmu{}",
    }
)


def latex_text(text: str) -> str:
    """Return text for LaTeX, on one line; `inTex` of the report (core.js) writes the same."""
    from proctor.sanitize import visible

    return " ".join(visible(text).split()).translate(_TEX)


def interval_chart(rows: Iterable[Mapping[str, Any]], title: str, *, zero: bool = True) -> Any:
    """Return the Vega-Lite spec of values with their intervals.

    `rows` have a `name`, a `value` and, where known, `low` and `high`.
    """
    x = {"field": "value", "type": "quantitative", "title": title, "scale": {"zero": zero}}
    return {
        "data": {"values": [row for row in rows if row["value"] is not None]},
        "encoding": {"y": {"field": "name", "type": "nominal", "sort": None, "title": None}},
        "layer": [
            {"mark": {"type": "bar", "opacity": 0.35}, "encoding": {"x": x}},
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {
                    "x": {"field": "low", "type": "quantitative", "title": ""},
                    "x2": {"field": "high"},
                },
            },
            {"mark": {"type": "point", "filled": True}, "encoding": {"x": {**x, "title": ""}}},
        ],
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Return the lines of a table; none where there are no rows. Cells may have ANSI styles.

    >>> table(("case", "passed"), [("a", "3/3")])
    ['  case  passed', '  a     3/3']
    """
    from click import unstyle
    from rich.cells import cell_len

    if not rows:
        return []
    every = [head, *rows]
    widths = [
        max(cell_len(unstyle(text)) for text in column) for column in zip(*every, strict=True)
    ]
    room = shutil.get_terminal_size().columns - len(indent)
    if sys.stdout.isatty() and sum(widths) + 2 * (len(widths) - 1) > room:
        lines = _fitted(head, rows, widths, room)
    else:
        lines = [
            "  ".join(
                text + " " * (width - cell_len(unstyle(text)))
                for text, width in zip(row, widths, strict=True)
            )
            for row in every
        ]
    return [(indent + text).rstrip() for text in lines]


def html_table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()
) -> str:
    """Return a small HTML table for a notebook, with everything in it escaped.

    >>> html_table("Run x", ("case",), [("<b>",)])
    '<p><strong>Run x</strong></p><table><tr><th>case</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    shown = [f"<p><strong>{html_text(title)}</strong></p>"]
    if rows:
        lines = ["".join(f"<th>{html_text(name)}</th>" for name in head)]
        lines += [
            "".join(f"<td>{html_text(cell)}</td>" for cell in row) for row in rows[:MAX_HTML_ROWS]
        ]
        shown.append(f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>")
    if len(rows) > MAX_HTML_ROWS:
        notes = (f"{len(rows) - MAX_HTML_ROWS} more rows", *notes)
    return "".join([*shown, *(f"<p>{html_text(note)}</p>" for note in notes)])


def html_text(value: object) -> str:
    """Return a value as HTML text: no markup, invisible characters shown, long text cut."""
    from html import escape

    from proctor.sanitize import visible

    text = "" if value is None else str(value)
    cut = text if len(text) <= MAX_HTML_CHARS else f"{text[:MAX_HTML_CHARS]}…"
    return escape(visible(cut))


def _fitted(
    head: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], room: int
) -> list[str]:
    """Return the lines of a table that is `room` columns wide, or as narrow as its words allow."""
    from io import StringIO

    from click import unstyle
    from rich.cells import cell_len
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    class Name:
        """A text that is cut in the middle to the width of its column."""

        def __init__(self, text: str) -> None:
            self._text = text

        def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
            length = cell_len(self._text)
            return Measurement(min(length, MIN_NAME), length)

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Text(_without_middle(self._text, options.max_width), no_wrap=True)

    # Names give way first; only if that is not enough do figures wrap.
    is_name = [text in NAME_HEADS for text in head]
    kept = sum(min(w, MIN_NAME) if name else w for w, name in zip(widths, is_name, strict=True))
    wrap = kept + 2 * (len(widths) - 1) > room
    least: list[int] = []
    for at, (title, name) in enumerate(zip(head, is_name, strict=True)):
        parts = [
            *title.split(" "),
            *(part for row in rows for part in unstyle(row[at]).split(", ")),
        ]
        longest = max(cell_len(part) for part in parts) + 1  # the comma
        least.append(min(widths[at], MIN_NAME if name else longest if wrap else widths[at]))
    if sum(least) + 2 * (len(widths) - 1) > room:
        return _stacked(head, rows, room)
    made = Table(box=None, header_style="none", pad_edge=False, padding=(0, 2, 0, 0))
    for title, name, width in zip(head, is_name, least, strict=True):
        fixed = width if name and wrap else None
        made.add_column(title, no_wrap=not (name or wrap), min_width=width, width=fixed)
    for row in rows:
        cells: list[RenderableType] = [
            # A number stays with its unit: lines break after commas only.
            Name(text)
            if name
            else Text.from_ansi(text.replace(" ", _NO_BREAK).replace(f",{_NO_BREAK}", ", "))
            for text, name in zip(row, is_name, strict=True)
        ]
        made.add_row(*cells)
    out = StringIO()
    console = Console(file=out, width=room, force_terminal=True, color_system="standard")
    console.print(made, crop=False)
    return out.getvalue().rstrip("\n").replace(_NO_BREAK, " ").split("\n")


def _without_middle(text: str, width: int) -> str:
    """Return a name cut to a width; both of its ends stay."""
    from rich.cells import cell_len, chop_cells

    if cell_len(text) <= width:
        return text
    tail = ""
    for character in reversed(text):
        if cell_len(character + tail) > (width - 1) // 3:
            break
        tail = character + tail
    return f"{chop_cells(text, width - 1 - cell_len(tail))[0]}…{tail}"


def _stacked(head: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[str]:
    """Return rows as blocks for a terminal in which no column fits: the head, names, figures."""
    from click import unstyle
    from rich.cells import cell_len

    # The mark of a row has no head; it and the names are the first lines of a block.
    names = [at for at, title in enumerate(head) if title in NAME_HEADS or not title] or [0]
    lines = [" × ".join(filter(None, (head[at] for at in names)))]
    for row in rows:
        texts = [row[at] for at in names if row[at]]
        together = cell_len(unstyle(" ".join(texts))) <= room
        lines += [" ".join(texts)] if together else [_without_middle(t, room) for t in texts]
        line = ""
        for at, title in enumerate(head):
            part = f"{title} {row[at]}"
            if at in names:
                continue
            if line and cell_len(unstyle(f"{line} · {part}")) > room:
                lines.append(line)
                line = ""
            line = f"{line} · {part}" if line else f"  {part}"
        lines.append(line)
    return lines
