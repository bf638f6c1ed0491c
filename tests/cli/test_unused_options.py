"""An option that would have no effect is refused, because its user would believe in one."""

import json
from pathlib import Path

import pytest
from commands import proctor

import proctor as api
from proctor.errors import ProctorError

TRACE = {"trace_id": "a1", "spans": [{"span_id": "s1", "span_name": "call"}]}
SUITE = "agent: bot:answer\ncases: [{input: q, correctness: {exact_match: a}}]\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "diagnose t.json --model openai:x",
            "--model would have no effect with the method off",
        ),
        ("diagnose t.json --max-cost 1 --method rules", "the method rules, which calls no model"),
        ("diagnose t.json --leads none", "--leads would have no effect"),
        (
            "diagnose t.json --method single_pass --model openai:x --chunk 4",
            "--chunk would have no effect with the method single_pass, which investigates no parts",
        ),
        ("diagnose t.json --failed", "--failed would have no effect without a run"),
        ("serve --quiet-after 3s --alert http://x", "--quiet-after and --alert would have no"),
        (
            "serve --evaluate --judge-share 0.5",
            "--judge-share would have no effect without --ju",
        ),
        ("run s.yaml --log-level debug", "--log-level would have no effect without --log-file"),
        ("run s.yaml --dry-run --notify-on end", "--notify-on would have no effect without an add"),
        ("test s.yaml --traces t.json --timeout 3", "--timeout would have no effect with --traces"),
        ("results --trials --group-by case", "--group-by would have no effect on a list of single"),
    ],
)
def test_an_option_without_effect_is_refused(tmp_path: Path, words: str, expected: str) -> None:
    """R-S6: an option that is accepted has an effect."""
    (tmp_path / "t.json").write_text(json.dumps(TRACE))
    (tmp_path / "s.yaml").write_text(SUITE)
    (tmp_path / "results").mkdir()
    done = proctor(*words.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert expected in done.stderr


def test_an_argument_without_effect_is_refused() -> None:
    """R-G3 R-G4: in Python as well."""
    with api.capture("q") as trace:
        pass
    with pytest.raises(ProctorError, match="chunk has no effect: the method 'rules' calls no mod"):
        api.diagnose(trace, "rules", chunk=3)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(ProctorError, match="agents has no effect: the method 'single_pass' inve"):
        api.diagnose(trace, "single_pass", model="openai:x", agents=3)
