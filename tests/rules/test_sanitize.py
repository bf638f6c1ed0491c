"""All outputs make untrusted text safe with one table of invisible characters."""

import contextlib
import dataclasses
import io
import json
import logging
import math
import re
import tempfile
import unicodedata
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proctor
from proctor.agents._builtin import converse
from proctor.agents.base import AgentRequest
from proctor.checks.judge import JudgeInput, Rubric, build_prompt
from proctor.checks.metrics.matching import shortened
from proctor.cli.main import run as run_command
from proctor.ops.logs import logging_to
from proctor.ops.notify import plain_line
from proctor.report.html.page import environment
from proctor.sanitize import (
    json_bytes,
    json_value,
    line,
    markdown,
    markdown_code,
    printable,
    shown,
    valid_unicode,
    visible,
    xml,
)
from proctor.server.pages.templating import brief
from proctor.trace import Span, Trace
from proctor.trace.render import tree_text

HIDDEN = (
    "\x00\x07\x1b\x7f\x85\x9b"  # controls
    "\u061c\u200e\u200f\u202a\u202e\u2066\u2069\u206f"  # bidirectional
    "\u200b\u2060\u2064\ufeff\ufff9\U000e0001\U000e0041\U000e007f"  # zero-width, tags
    "\u2028\u2029"
)


def to_a_person(text: str) -> str:
    request = AgentRequest(input=text, case="c", index=0, seed=0)
    written = io.StringIO()
    converse(request, io.StringIO("yes\n"), written)
    return written.getvalue()


def in_a_log(text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.txt"
        with logging_to(path):
            logging.getLogger("proctor.test").warning("%s", text)
        return path.read_text(encoding="utf-8")


def on_the_console(text: str) -> str:
    """The message of a command about an argument that is wrong."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        run_command(["validate", f"no such {text}"])
    return said.getvalue()


CALLERS = {
    "terminal": printable,
    "line": line,
    "value": shown,
    "Markdown": markdown,
    "page": visible,
    "HTML report": lambda text: environment().from_string("{{ text }}").render(text=text),
    "server page": brief,
    "trace as text": lambda text: tree_text(
        Trace(trace_id="t", spans=[Span(span_id="1", trace_id="t", name=text)])
    ),
    "notification": plain_line,
    "log": in_a_log,
    "person": to_a_person,
    "reason of a check": shortened,
    "command line": on_the_console,
}


@pytest.mark.parametrize("character", HIDDEN, ids=lambda c: f"U+{ord(c):04X}")
@pytest.mark.parametrize("caller", CALLERS)
def test_no_caller_lets_an_invisible_character_through(caller: str, character: str) -> None:
    """R-T5: what one place removes or escapes, no other place passes on."""
    said = CALLERS[caller](f"aa{character}bbb")
    assert character not in said
    assert "a" in said
    assert "b" in said


@pytest.mark.parametrize("caller", CALLERS)
def test_joiners_and_other_scripts_stay(caller: str) -> None:
    """R-T5: an emoji made of several and words of other scripts are not harmed."""
    text = "👩\u200d🚀 نمی\u200cخواهم 日本"
    assert text in CALLERS[caller](text)


@given(st.text(alphabet=st.characters(), max_size=60))
def test_any_text_is_safe_everywhere(text: str) -> None:
    """R-T5: no control, no override, no surrogate in a line, a cell, a page, XML or JSON."""
    for safe in (printable(text), line(text, 40), markdown(text, 40), shown(text, 40)):
        assert not [c for c in safe if unicodedata.category(c) in ("Cc", "Cs")]
        safe.encode()
    assert len(line(text, 40)) <= 40
    assert "\n" not in line(text)
    assert not re.search("[\x00-\x08\u202e]", visible(text))
    xml(text).encode()
    json_bytes({"text": text, text: 1})
    json.dumps(json_value({text: [text]}), allow_nan=False).encode()
    assert valid_unicode(text).encode().decode() == valid_unicode(text)


def test_a_build_log_obeys_no_line() -> None:
    """R-Q5: old workflow commands are read anywhere in a line, so they are broken up."""
    assert line("x ##[error]no ##vso[task.complete]") == "x ## [error]no ## vso[task.complete]"


def test_a_prompt_of_a_judge_can_be_encoded() -> None:
    """R-C7: lone surrogates in an answer reach no encoder."""
    prompt = build_prompt(Rubric(name="r", rule="Grade it."), JudgeInput(answer="a\ud800b"))
    assert "a\ufffdb" in "".join(message.content or "" for message in prompt.messages)


def test_code_in_markdown_ends_where_it_should() -> None:
    """R-Q5: a fence is longer than any row of backticks in the code."""
    assert markdown_code("a`b``c") == "```a`b``c```"


# -- JSON ----------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


class Record(msgspec.Struct):
    at: datetime
    points: list[Point]


@dataclasses.dataclass
class Box:
    record: Record
    names: frozenset[str]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        ({1: math.inf}, {"1": None}),
        ("a\udfff", "a\ufffd"),
        ("\ud83d\ude00", "😀"),
        (Colour.RED, "red"),
        (Path("a/b"), "a/b"),
        (b"ab", "YWI="),
        (
            Box(Record(datetime(2026, 1, 2, tzinfo=UTC), [Point(1, math.nan)]), frozenset("ba")),
            {
                "record": {"at": "2026-01-02T00:00:00+00:00", "points": [{"x": 1, "y": None}]},
                "names": ["a", "b"],
            },
        ),
    ],
)
def test_any_value_becomes_plain_json(value: Any, expected: Any) -> None:
    """R-Q5: records are mappings, sets are sorted, and no parser refuses the result."""
    assert json_value(value) == expected
    json.dumps(json_value(value), allow_nan=False)


def test_endless_nesting_and_long_values_are_cut() -> None:
    """R-Q5: a value that contains itself, and one with millions of items, are written out."""
    endless: list[Any] = []
    endless.append(endless)
    assert "nested too deeply" in json.dumps(json_value(endless))
    assert json_value({"a": "x" * 10, "b": list(range(10))}, most=3) == {"a": "xxx", "b": [0, 1, 2]}


def test_numpy_values_are_numbers_and_lists() -> None:
    """R-A5: worlds return arrays and numbers of numpy."""
    numpy = pytest.importorskip("numpy")
    assert json_value({"a": numpy.arange(3), "b": numpy.float64(0.5)}) == {"a": [0, 1, 2], "b": 0.5}


def test_surrogates_reach_neither_a_run_nor_a_trace_file(tmp_path: Path) -> None:
    """R-R3: an agent that answers with half a character leaves a readable run."""
    from proctor.spec import Case, Suite

    suite = Suite(cases=(Case(id="c", input="q", correctness={"regex_match": "^"}),))
    run = proctor.run(suite, agent=lambda _: "a\ud800b", trials=1, results=tmp_path)
    journal = (run.path / "trials.jsonl").read_text(encoding="utf-8")
    assert "a\ufffdb" in journal
