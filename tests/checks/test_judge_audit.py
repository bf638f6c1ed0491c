"""`proctor judge audit`: a judge beside human labels."""

import functools
import json

import commands
import pytest

from proctor.checks.judge_audit import Disagreement, given_verdicts, read_labels
from proctor.errors import ProctorError
from proctor.llm import MockLLM

LABELS = """\
input,answer,label,expected
Capital of France?,Paris,pass,Paris
Capital of Italy?,Milan,fail,Rome
Capital of Spain?,"Madrid,
I think",pass,Madrid
Capital of Peru?,unclear,fail,Lima
Capital of Chad?,broken,fail,N'Djamena
"""


def verdict(word: str, score: int) -> dict:
    return {
        "when": {"contains": word},
        "json": {"rationale": "r", "score": score},
        "times": "forever",
        "usage": {"input": 50, "output": 5},
    }


SCRIPT = [
    verdict("Paris", 5),
    verdict("Milan", 4),
    verdict("I think", 5),
    verdict("unclear", 3),
    {"when": "broken", "error": 400, "times": "forever"},
]


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(LABELS, encoding="utf-8")
    return path


@pytest.fixture
def proctor(tmp_path, monkeypatch):
    """Run `proctor judge ...` in a child with a home of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return functools.partial(commands.proctor, "judge", "audit")


def test_a_judge_is_compared_with_people(labels, proctor):
    """R-C7: table, raw agreement, kappa with interval, unscored rows, all with denominators."""
    with MockLLM(SCRIPT) as server:
        where = ("--model", "openai:j", "--base-url", server.base_url)
        first = proctor(labels, *where, "--rubric", "correctness")
        asked = len(server.requests)
        again = proctor(labels, *where, "--rubric", "correctness", "--json")
        asked_again = len(server.requests) - asked
    assert first.returncode == 0
    for line in (
        "rows: 5, compared: 4, unscored: 1",
        "agreement: 3 of 4 = 0.750",
        "kappa: 0.500, 95 % interval",
        "borderline verdicts count as fail",
        "line 3: people fail, judge pass",
        "judging: 4 calls, 0 from the cache",
        "tokens: 200 in, 20 out",
        "cost unknown",
    ):
        assert line in first.stdout
    assert "line 7: 1 of 1 judgements failed; openai:j: refused" in first.stdout
    found = json.loads(again.stdout)
    assert found["agreement"]["table"] == [[2, 0], [1, 1]]
    assert (found["usage"]["calls"], found["usage"]["cached"]) == (0, 4)
    assert asked_again == 1  # only the row that has no verdict is asked about again


def test_verdicts_of_the_file_itself(tmp_path, proctor):
    """R-C7: an existing `judge` column is compared without any model; scores may be weighted."""
    path = tmp_path / "scored.csv"
    rows = [(5, 4), (1, 1), (3, 3), (2, 5), (4, 4), (1, "")]
    path.write_text("input,answer,label,judge\n" + "".join(f"q,a,{a},{b}\n" for a, b in rows))
    done = proctor(path, "--weights", "quadratic")
    assert done.returncode == 0
    assert "rows: 6, compared: 5, unscored: 1" in done.stdout
    assert "agreement: 3 of 5 = 0.600" in done.stdout
    # Squared distances: observed (1 + 9) / 5 = 2, of all pairs 100 / 25 = 4.
    assert "kappa (quadratic weights): 0.500" in done.stdout
    assert "line 7: the column `judge` is empty" in done.stdout


def test_any_labels_can_be_compared_in_a_file(tmp_path):
    """R-C7: with a `judge` column the labels are the user's own."""
    path = tmp_path / "own.csv"
    path.write_text("input,answer,label,judge\nq,a,Ham,ham \nq,a,spam,ham\nq,a,spam,spam\n")
    found = given_verdicts(read_labels(path))
    assert found.agreement.categories == ("ham", "spam")
    assert found.agreement.table == ((1, 0), (1, 1))
    assert found.disagreements == (Disagreement(3, "spam", "ham"),)


@pytest.mark.parametrize(
    ("text", "says", "where", "hint"),
    [
        ("input,anwser,label\n", "unknown column 'anwser'", ":1", "answer"),
        ("input,answer\nq,a\n", "the column 'label' is missing", ":1", None),
        ("input,answer,label\nq,a\n", "number of fields", ":2", None),
        ('input,answer,label\n"q\n",a,pass\nq,a,\n', "the label is empty", ":4", None),
        ("input,answer,label\n", "no rows", "", None),
        ("", "the column 'input' is missing", ":1", None),
        ('input,answer,label\nq,"a"b,pass\n', "not a CSV file", "", None),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_line(tmp_path, text, says, where, hint):
    """R-C7: file, line, what is wrong, and the nearest column."""
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(ProctorError, match=says) as caught:
        read_labels(path)
    assert caught.value.where == f"{path}{where}"
    if hint:
        assert hint in caught.value.hint


def test_bytes_that_are_no_text(tmp_path):
    """R-C7: a binary file is one error, not a traceback."""
    path = tmp_path / "labels.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProctorError, match="not a CSV file"):
        read_labels(path)
    with pytest.raises(ProctorError, match="cannot be read"):
        read_labels(tmp_path / "absent.csv")


def test_labels_a_judge_cannot_give_are_refused(tmp_path, proctor):
    """R-C7: asking a judge needs labels it can give; the line of the odd one is named."""
    path = tmp_path / "own.csv"
    path.write_text("input,answer,label\nq,a,pass\nq,a,meh\n")
    done = proctor(path, "--model", "openai:x", "--base-url", "http://127.0.0.1:9")
    assert done.returncode != 0
    assert "'meh' is neither pass, borderline, fail nor a score 1 to 5" in done.stderr
    done = proctor(path)
    assert done.returncode == 2
    assert "--model" in done.stderr


def test_hostile_text_is_printed_harmlessly(tmp_path, proctor):
    """R-C7: escape sequences in labels are shown, not obeyed."""
    path = tmp_path / "own.csv"
    path.write_text("input,answer,label,judge\nq,a,\x1b[31mred,blue\n")
    done = proctor(path)
    assert "\x1b" not in done.stdout
    assert "\\x1b[31mred" in done.stdout


def test_labels_mixed_with_scores_are_refused(tmp_path, proctor):
    """R-C7: a judge gives labels or scores; a file with both is refused with the line."""
    path = tmp_path / "mixed.csv"
    path.write_text("input,answer,label\nq,a,pass\nq,a,4\n")
    done = proctor(path, "--model", "openai:x", "--base-url", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "line 3" in done.stderr
    assert "the label '4' is a score, 'pass' in line 2 is not" in done.stderr
