"""How things are said: figures and hints, the same everywhere, in Python and on pages."""

import ast
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import click
import pytest
from browser import browser
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import proctor
from proctor.errors import hint_among
from proctor.formatting import (
    at_least,
    byte_size,
    dollars,
    duration_ms,
    in_points,
    level_of,
    money,
    p_text,
    percent,
    points,
    rough_duration,
)
from proctor.report.figures import cost_line, figure
from proctor.runs.run import RunTotals
from proctor.sanitize import line
from proctor.server.pages.templating import in_ms
from proctor.tables import table
from proctor.trace import Span, Trace
from proctor.trace.render import tree_text

AMOUNTS = [
    (0.0, "$0.00"),
    (1234.5, "$1,234.50"),
    (12.499, "$12.50"),
    (1.0, "$1.00"),
    (0.9996, "$1.00"),
    (0.5, "$0.50"),
    (0.1234, "$0.123"),
    (0.09999, "$0.10"),
    (0.0123, "$0.0123"),
    (0.000012, "$0.000012"),
    (0.00000123456, "$0.00000123"),
    (3e-7, "$3e-7"),
    (-0.25, "−$0.25"),
]


@pytest.mark.parametrize(("amount", "words"), AMOUNTS)
def test_money_has_the_digits_it_needs(amount: float, words: str) -> None:
    """R-Q5: thousands and millionths of a dollar can both be read."""
    assert dollars(amount) == words


@given(st.floats(min_value=1e-6, max_value=1e9))
def test_no_amount_reads_as_nothing_or_far_from_it(amount: float) -> None:
    """R-Q5: what is written is within half a cent, and of less than a dollar within 0.5 %."""
    read = float(dollars(amount).removeprefix("$").replace(",", ""))
    assert abs(read - amount) <= (0.00501 if amount >= 1 else amount * 0.00501)


def test_a_cost_known_in_part_is_a_lower_bound() -> None:
    """R-A4: calls without a price make a cost a bound; without any price it is unknown, not 0."""
    assert money(0.41, 3) == "≥ $0.41, 3 calls unpriced"
    assert at_least(0.41, 3) == "≥ $0.41"
    assert (money(0.41), at_least(0.41, 0)) == ("$0.41", "$0.41")
    assert (money(None, 2), at_least(None, 2)) == ("unknown, 2 calls unpriced", "")
    assert (money(None), at_least(None, 0)) == ("", "")


def test_pages_write_amounts_as_the_rest_does() -> None:
    """R-Q5: `inMoney` of the report and the viewer equals `dollars`."""
    core = (files("proctor.report.html") / "core.js").read_text(encoding="utf-8")
    amounts = [amount for amount, _ in AMOUNTS] + [7**power * 1.3e-9 for power in range(20)]
    with browser() as running:
        page = running.new_page()
        page.add_script_tag(content=core)
        shown = page.evaluate("amounts => amounts.map((usd) => inMoney(usd))", amounts)
        bounds = page.evaluate("[inMoney(0.41, 3), inMoney(null, 3), inMoney(undefined)]")
    assert shown == [dollars(amount) for amount in amounts]
    assert bounds == ["≥ $0.41", "–", "–"]


DURATIONS = [
    (0.0, "0 ms"),
    (0.34, "340 µs"),
    (3.44, "3.4 ms"),
    (12.6, "13 ms"),
    (340.0, "340 ms"),
    (999.4, "999 ms"),
    (1_000.0, "1.0 s"),
    (3_460.0, "3.5 s"),
    (119_900.0, "119.9 s"),
    (150_000.0, "2.5 min"),
    (9_000_000.0, "2.5 h"),
]


@pytest.mark.parametrize(("milliseconds", "words"), DURATIONS)
def test_a_duration_reads_the_same_everywhere(milliseconds: float, words: str) -> None:
    """R-Q5: on the console, in a trace as text, on pages and in Markdown."""
    assert duration_ms(milliseconds) == words
    assert in_ms(milliseconds) == words
    assert figure("latency_ms", milliseconds) == words
    span = Span(span_id="1", trace_id="t", name="x", start_ns=0, end_ns=round(milliseconds * 1e6))
    assert f"  {words}" in tree_text(Trace(trace_id="t", spans=[span]))


def test_pages_write_durations_as_the_rest_does() -> None:
    """R-Q5: `inTime` of the report and the viewer equals `duration_ms`."""
    core = (files("proctor.report.html") / "core.js").read_text(encoding="utf-8")
    with browser() as running:
        page = running.new_page()
        page.add_script_tag(content=core)
        times = [milliseconds for milliseconds, _ in DURATIONS]
        assert page.evaluate("times => times.map(inTime)", times) == [w for _, w in DURATIONS]


def test_an_unknown_duration_is_not_zero() -> None:
    """R-Q5: nothing in Markdown, a dash in tables."""
    assert (duration_ms(None), in_ms(None), figure("latency_ms", None)) == ("", "–", "–")


def test_estimates_and_sizes_have_no_false_precision() -> None:
    """R-Q5: how long a run may take, how large a file is."""
    assert [rough_duration(s) for s in (8.2, 180, 9000)] == ["8 s", "3 min", "2.5 h"]
    sizes = [byte_size(n) for n in (1, 999, 1500, 64_000_000, 2_147_483_648)]
    assert sizes == ["1 byte", "999 bytes", "1.5 kB", "64.0 MB", "2.1 GB"]


def test_a_run_without_model_calls_has_no_cost() -> None:
    """R-A4: `n/a` and why, not zero and not unknown."""
    assert cost_line(RunTotals()) == "cost: n/a (no model calls recorded)"
    assert cost_line(RunTotals(llm_calls=2, unpriced_calls=2)) == "cost unknown, 2 calls unpriced"


SHARES = [
    (None, "–"),
    (0.0, "0 %"),
    (0.0004, "< 0.1 %"),
    (1 / 3, "33.3 %"),
    (0.8, "80 %"),
    (0.9997, "> 99.9 %"),
    (1.0, "100 %"),
    (1 - 1e-15, "100 %"),
    (2.5, "250 %"),
]


@pytest.mark.parametrize(("share", "words"), SHARES)
def test_shares_read_the_same_everywhere(share: float | None, words: str) -> None:
    """R-Q1: a decimal where there is one; nearly none and nearly all are not none and all."""
    assert percent(share) == words


def test_differences_have_their_sign_and_levels_their_digits() -> None:
    """R-Q1: points have a sign; a level keeps the digits the user chose."""
    assert [points(each) for each in (0.1, -0.2, 1 / 30, -0.00001, None)] == [
        *("+10", "−20", "+3.3", "0", "–")
    ]
    assert [in_points(each) for each in (0.05, 0.4333, None)] == ["5 points", "43.3 points", "–"]
    # A level that was divided among three agents is not printed as 98.3333 %.
    assert level_of(1 - 0.05 / 3) == "98.33 %"
    assert level_of(0.99999) == "99.999 %"
    assert [level_of(each) for each in (0.05, 0.95, 0.975, 0.9999)] == [
        *("5 %", "95 %", "97.5 %", "99.99 %")
    ]


def test_no_p_value_is_nought() -> None:
    """R-Q1: a p-value is never 0; small ones have one more digit."""
    assert [p_text(each) for each in (None, 0.0, 0.00009, 0.0021, 0.0434, 1.0)] == [
        *("–", "< 0.0001", "< 0.0001", "0.0021", "0.043", "1.000")
    ]


def test_columns_are_aligned_in_every_script() -> None:
    """R-Q5: characters that are two columns wide, and marks of none, shift nothing."""
    rows = [("日本語のケース", "a"), ("naïve", "b"), ("n\u0303", "c"), ("plain", "d")]
    lines = table(("case", "x"), rows, indent="")
    assert {cell_len(text[: text.rindex(" ") + 1]) for text in lines} == {16}
    assert lines[1] == "日本語のケース  a"


NAMES = [f"a-case-with-an-identifier-that-somebody-generated-{at:04d}" for at in range(3)]
HEAD = ("case", "agent", "verdict", "passed")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make standard output a terminal with this number of columns."""

    def set_width(columns: int) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(columns))

    return set_width


def test_a_table_fits_the_terminal(terminal: Callable[[int], None]) -> None:
    """R-Q5: a terminal cuts long names in the middle, and their ends still distinguish them."""
    rows = [(name, "agent-" * 8, "PASS", "10/10") for name in NAMES]
    whole = table(HEAD, rows)
    assert NAMES[2] in whole[3]
    for room in (80, 60):
        terminal(room)
        lines = table(HEAD, rows)
        assert max(map(cell_len, lines)) <= room
        assert lines[3].split()[0].endswith("0002")
    terminal(200)
    assert table(HEAD, rows) == whole


def test_no_figure_is_cut(terminal: Callable[[int], None]) -> None:
    """R-Q5: names give way to figures; where that is not enough, figures wrap after commas."""
    interval = "[0.1 %, 99.9 %]"
    terminal(80)
    wide = table(("case", "95 %"), [(NAMES[0], f"{interval} {interval} {interval}")])
    assert wide[1].endswith(f"{interval} {interval} {interval}")
    terminal(36)
    narrow = table(("case", "95 %", "p"), [(NAMES[0], interval, "< 0.0001")])
    assert max(map(cell_len, narrow)) <= 36
    assert [re.split("  +", text)[-1] for text in narrow] == ["p", "< 0.0001", "99.9 %]"]
    assert "[0.1 %,  " in narrow[1]


def test_a_table_holds_in_forty_columns(terminal: Callable[[int], None]) -> None:
    """R-Q5: where no column fits, each row is a block with every figure and its head."""
    head = ("", *HEAD, "95 %", "score ± SD", "cost")
    figures = ("PASS", "10/10", "[81.6 %, 99.9 %]", "0.912 ± 0.284", "$0.0123")
    rows = [("✓", name, "careful", *figures) for name in NAMES]
    terminal(40)
    first, *lines = table(head, rows)
    assert max(map(cell_len, lines)) <= 40
    assert first == "  case × agent"
    for block in (lines[start : start + len(lines) // 3] for start in (0, len(lines) // 3)):
        text = "\n".join(block)
        for title, value in zip(head[3:], figures, strict=True):
            assert f"{title} {value}" in text
    assert [text.strip()[-4:] for text in lines if "…" in text] == ["0000", "0001", "0002"]


@pytest.mark.parametrize("columns", [200, 60])
def test_a_coloured_cell_shifts_no_column(terminal: Callable[[int], None], columns: int) -> None:
    """R-Q5: styles have no width, and they end with their cell."""
    plain = [(name, "a", "PASS", "10/10") for name in NAMES]
    styled = [(name, "a", click.style("PASS", fg="green"), "10/10") for name in NAMES]
    terminal(columns)
    lines = table(HEAD, styled)
    assert [click.unstyle(text).rstrip() for text in lines] == table(HEAD, plain)
    assert all("\x1b[32mPASS\x1b[0m" in text for text in lines[1:])


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=4))
def test_any_text_makes_a_table(rows: list[tuple[str, str]]) -> None:
    """R-Q5: a row for each row, whatever is in it; sanitising is the caller's."""
    rows = [tuple(line(text, 60) for text in row) for row in rows]  # type: ignore[misc]
    assert len(table(("case", "x"), rows)) == 1 + len(rows)


def hints_of(tree: ast.AST) -> Iterator[str]:
    """What errors are given as hints, with `x` for what is filled in."""
    for call in ast.walk(tree):
        for option in call.keywords if isinstance(call, ast.Call) else ():
            match option:
                case ast.keyword("hint", ast.Constant(str(words))):
                    yield words
                case ast.keyword("hint", ast.JoinedStr(parts)):
                    yield "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts
                    )


def test_hints_speak_with_one_voice() -> None:
    """R-S1: a hint continues the error: no capital, no full stop, no "try"."""
    source = Path(proctor.__file__).parent
    found = [
        (path.name, words)
        for path in source.rglob("*.py")
        if path.relative_to(source).parts[0] != "server"  # there a page has sentences
        for words in hints_of(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert len(found) > 100
    odd = [
        (name, words)
        for name, words in found
        if re.match(r"[A-Z][a-z]|try |maybe |please ", words) or words.endswith(".")
    ]
    assert odd == []


def test_an_unknown_word_is_answered_with_the_known_ones() -> None:
    """R-S1: a hint names similar words, else all of them, in one form."""
    assert hint_among("strikt", ["strict", "subset"]) == "did you mean 'strict'?"
    assert hint_among("zzz", ["strict", "subset"]) == "known: strict, subset"
    assert hint_among("zzz", []) == "known: none"
