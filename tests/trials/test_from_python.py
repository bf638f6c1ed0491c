"""What a slip in Python comes to: an error with what may have been meant, before anything runs."""

import inspect
import traceback
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor.api import ExecutorOptions, RunKeywords, RunLimits
from proctor.errors import ProctorError
from proctor.spec import Case, Suite, load_suite
from proctor.trials.options import RunOptions

SUITE = Suite(cases=(Case(id="c", input="q", correctness={"regex_match": "^"}),))


@pytest.mark.parametrize(
    ("slip", "said", "hint"),
    [
        ({"trails": 3}, "run takes no 'trails'", "did you mean 'trials'"),
        ({"trails": 3, "seeds": 2}, "run takes no 'trails'", "did you mean 'trials'"),
        ({"agnet": "x"}, "run takes no 'agnet'", "did you mean 'agent'"),
        ({"limits": {"max_cost": 3}}, "limits takes no 'max_cost'", "did you mean 'max_cost_usd'"),
        ({"trials": 0}, "trials must be at least 1, got 0", None),
        ({"trials": "x"}, "trials: expected a whole number, got text", None),
    ],
)
def test_a_wrong_keyword_is_refused(
    tmp_path: Path, slip: dict[str, Any], said: str, hint: str | None
) -> None:
    """R-R7: a run with an option that does not exist, or cannot be, is refused in our words."""
    with pytest.raises(ProctorError) as caught:
        proctor.run(SUITE, **{"agent": str.upper, "results": tmp_path, **slip})
    assert str(caught.value) == said
    assert (caught.value.hint or "").startswith(hint or "")
    assert list(tmp_path.iterdir()) == []


def test_a_traceback_shows_the_hint_and_every_problem(tmp_path: Path) -> None:
    """R-S1: who calls from Python sees what to do as well, for each problem of a file."""
    file = tmp_path / "suite.yaml"
    file.write_text("agnet: agent:answer\ncases: [{input: q, trials: 0}]\n", encoding="utf-8")
    with pytest.raises(ProctorError) as caught:
        load_suite(file)
    shown = "".join(traceback.format_exception(caught.value))
    assert "hint: add `agent: package.module:function`" in shown
    assert "hint: did you mean 'agent' or 'agents'?" in shown
    assert f"{file}:2:28: trials must be at least 1, got 0" in shown


@pytest.mark.parametrize("function", [proctor.run, proctor.arun])
def test_every_option_of_a_run_is_a_typed_keyword(function: Any) -> None:
    """R-R7: what the command can be told, Python can, by keywords a type checker knows."""
    explicit = {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert explicit | {*ExecutorOptions.__annotations__} == {*RunKeywords.__annotations__, "cases"}
    internal = {"default_trials", "more_trials", "fork"}  # set by other functions
    keywords = explicit | {*ExecutorOptions.__annotations__, *RunLimits.__annotations__}
    assert {*RunOptions.model_fields} - internal <= keywords
