"""`proctor compare` and `proctor leaderboard` and `proctor power`: the same numbers for people and
programs, and every edge through the commands."""

import json
import re

import pytest
from outcome_parts import made_run, suite

from proctor.cli.main import run as command
from proctor.runs import annotations


def reports(capsys, *args):
    """What a command says as JSON, and as text."""
    assert command([*map(str, args), "--json"]) == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    assert command([*map(str, args)]) == 0
    return document, capsys.readouterr().out


def test_two_runs_by_tag(tmp_path, capsys):
    """R-Q3: the comparison of a tagged run with the latest, the same in both forms."""
    first = made_run(tmp_path, {"x": suite([(9, 10)] * 6)}, name="old")
    made_run(tmp_path, {"x": suite([(9, 10)] * 5 + [(1, 10)])}, name="new")
    annotations.tag(first, "baseline")
    document, text = reports(capsys, "compare", "baseline", "latest", "--results", tmp_path)
    (pair,) = document["pairs"]
    overall = pair["metrics"][0]
    assert overall["interval"]["value"] == pytest.approx(-0.8 / 6)
    assert re.search(r"pass rate +90 % +76\.7 % +−13\.3 points", text)
    assert f"p {overall['population']['p_value']:.3f}" in text
    assert re.search(r"case-05 \* +90 % of 10 +10 % of 10 +−80 points", text)
    assert "5 cases without a change" in text
    assert "suite, exact stratified (Mantel–Haenszel), mid-p; 6 cases, 120 trials" in text


def test_two_agents_of_the_latest_run(tmp_path, capsys):
    """R-Q3: without a run, of the latest."""
    made_run(tmp_path, {"x": suite([(9, 10)] * 3), "y": suite([(5, 10)] * 3)})
    document, text = reports(capsys, "compare", "--agents", "x,y", "--results", tmp_path)
    assert (document["pairs"][0]["first"], document["pairs"][0]["second"]) == ("x", "y")
    assert text.startswith("y compared with x")
    every = reports(capsys, "compare", "latest", "--results", tmp_path)[0]
    assert every["pairs"] == document["pairs"]
    twice = ("compare", "--agents", "y", "--agents", "x", "--results", tmp_path)
    assert reports(capsys, *twice)[1].startswith("x compared with y")


def test_one_agent_of_two_runs(tmp_path, capsys):
    """R-Q3: one name is that agent of each run; the other agents are left out."""
    for name, passes in (("old", 9), ("new", 3)):
        cells = {"x": suite([(passes, 10)] * 3), "y": suite([(5, 10)] * 3)}
        annotations.tag(made_run(tmp_path, cells, name=name), name)
    document, _ = reports(capsys, "compare", "old", "new", "--agents", "x", "--results", tmp_path)
    (pair,) = document["pairs"]
    assert pair["metrics"][0]["interval"]["value"] == pytest.approx(-0.6)


def test_agents_where_runs_are_asked_for_get_a_hint(tmp_path, capsys):
    """R-Q3: two agents are compared with --agents; naming them as runs gives a hint."""
    made_run(tmp_path, {"x": suite([(9, 10)] * 3), "y": suite([(5, 10)] * 3)})
    assert command(["compare", "x", "y", "--results", str(tmp_path)]) == 2
    assert "hint: x is an agent: proctor compare latest --agents x,y" in capsys.readouterr().err


def test_agents_by_the_beginning_of_their_names(tmp_path, capsys):
    """R-Q3: with parameters a name need not be written whole; one that fits several is refused."""
    cells = {"a": (9, 10), "b": (2, 10)}
    made_run(tmp_path, {"fast (t=0,u=1)": cells, "fast (t=1,u=1)": cells, "slow": cells})
    asked = ("compare", "--results", tmp_path, "--agents")
    document, _ = reports(capsys, *asked, "fast (t=0,u=1),fast (t=1,u=1)")
    pair = document["pairs"][0]
    assert (pair["first"], pair["second"]) == ("fast (t=0,u=1)", "fast (t=1,u=1)")
    document, _ = reports(capsys, *asked, "sl,fast (t=1")
    assert document["pairs"][0]["second"] == "fast (t=1,u=1)"
    assert command([*map(str, asked), "fast,slow"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: 'fast' is ambiguous, it matches 2: fast (t=0,u=1); fast (t=1,u=1)",
        "hint: write enough of the name to make it unique, in quotes",
    ]


def test_one_case_is_told_alike(tmp_path, capsys):
    """R-Q1: the interval of a single case is the same in `results` and on the leaderboard."""
    made_run(tmp_path, {"x": {"a": (3, 5)}})
    board, text = reports(capsys, "leaderboard", "latest", "--results", tmp_path)
    rate = board["rows"][0]["pass_rate"]
    assert command(["results", "latest", "--results", str(tmp_path), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["groups"]
    assert listed["pass_rate"] == rate
    assert f"{100 * rate['low']:.1f}" in text


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"a": (0, 0, 2)}, "undefined: no case in both arms"),
        ({"a": (5, 5)}, "undefined: no case holds both passes and failures"),
        ({"a": (0, 5)}, "undefined: no case holds both passes and failures"),
        (
            {"a": (1, 1)},
            "undefined: no case holds both passes and failures",
        ),
        ({"a": (1, 2), "b": (3, 7)}, "2 cases without a change"),
    ],
)
def test_edges_of_a_comparison(tmp_path, capsys, counts, said):
    """R-Q1: nothing judged, all pass, all fail, one trial, ties: said, not made up."""
    first, second = (made_run(tmp_path, {"x": counts}) for _ in range(2))
    document, text = reports(capsys, "compare", first, second, "--results", tmp_path)
    assert said in text
    assert "nan" not in text.lower()
    interval = document["pairs"][0]["metrics"][0]["interval"]
    assert (interval["value"] is None) == (counts == {"a": (0, 0, 2)})


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "name two runs, or two agents of one run"),
        (["latest"], "has one agent: there is nothing to compare it with"),
        (["latest", "--agents", "x,q"], "no trial of an agent named 'q'"),
        (["nowhere", "latest"], "no run and no tag is called 'nowhere'"),
        (["first", "latest", "--cases", "z*"], "no case matches 'z*'"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, capsys, args, said):
    """R-Q3: 2 and one line that says what to do."""
    annotations.tag(made_run(tmp_path, {"x": {"a": (1, 2)}}), "first")
    made_run(tmp_path, {"x": {"a": (1, 2)}})
    assert command(["compare", *args, "--results", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_hostile_names_are_not_obeyed(tmp_path, capsys):
    """R-Q3: control characters in ids of cases and agents are shown, not sent."""
    first, run = (made_run(tmp_path, {"x\x1b[2J": {"a\x1b]0;t\x07": (1, 4)}}) for _ in range(2))
    for args in (["compare", str(first), str(run)], ["leaderboard", str(run)]):
        assert command([*args, "--results", str(tmp_path)]) == 0
        assert "\x1b" not in capsys.readouterr().out


def test_a_leaderboard_of_the_latest_run(tmp_path, capsys):
    """R-Q3: intervals, cost, latency; agents without a significant difference share ranks."""
    arms = {
        "good": suite([(10, 10)] * 8),
        "same": suite([(10, 10)] * 8),
        "bad": suite([(2, 10)] * 8),
    }
    made_run(tmp_path, arms)
    document, text = reports(capsys, "leaderboard", "--results", tmp_path)
    rows = {row["name"]: row for row in document["rows"]}
    assert (rows["good"]["best"], rows["good"]["worst"]) == (1, 2)
    assert (rows["bad"]["best"], rows["bad"]["worst"]) == (3, 3)
    low, high = (f"{round(100 * rows['bad']['pass_rate'][end], 1):g} %" for end in ("low", "high"))
    assert re.search(rf"3 +bad +20 % +\[{low}, {high}\] +16/80", text)
    assert re.search(r"1–2 +good", text)
    assert rows["good"]["cost_usd"] == pytest.approx(8 * 0.15)
    assert "$1.20" in text


@pytest.mark.parametrize("metric", ["pass_rate", "score", "cost_usd", "latency_ms"])
@pytest.mark.parametrize("counts", [{"a": (0, 0, 1)}, {"a": (1, 1)}, {"a": (0, 3), "b": (0, 1)}])
def test_edges_of_a_leaderboard(tmp_path, capsys, metric, counts):
    """R-Q1: nothing judged, one trial, all fail: a dash and the reason."""
    made_run(tmp_path, {"x": counts})
    document, text = reports(capsys, "leaderboard", "--metric", metric, "--results", tmp_path)
    (row,) = document["rows"]
    assert row["value"]["value"] is not None or row["value"]["reason"]
    assert row["value"]["low"] is not None or f": {row['value']['reason']}" in text
    assert (row["best"] is None) == (row["value"]["value"] is None)


def test_no_runs_at_all(tmp_path, capsys):
    """R-Q3: an empty folder is said to be one."""
    assert command(["leaderboard", "--results", str(tmp_path)]) == 2
    assert "there are no runs" in capsys.readouterr().err


def test_a_plan_from_a_run(tmp_path, capsys):
    """R-Q1: noise and cost as the run had them; without a run as assumed."""
    made_run(tmp_path, {"x": suite([(5, 10)] * 4)})
    args = ("power", "--effect", "0.1", "--from", "latest", "--results", tmp_path)
    document, text = reports(capsys, *args)
    assert document["within"]["value"] == pytest.approx(0.25 * 10 / 9)
    row = next(row for row in document["suite"] if row["plan"]["cases"] == 4)
    shown = f"{row['plan']['trials'][0]}"
    assert re.search(rf"4 +{shown} +{row['plan']['n']:,} +0\.278 seen in 40 trials", text)
    assert "no plan for a population" in text
    document, text = reports(capsys, "power", "--effect", "0.1", "--cases", "30")
    assert [row["plan"]["trials"][0] for row in document["suite"]] == [5, 11]
    assert "assumed: typical" in text
    assert "29 for ≥ 90 %" in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--effect", "0"], "--effect"),
        (["--effect", "0.1", "--power", "0.3"], "--power"),
        ([], "--effect"),
    ],
)
def test_impossible_plans_are_usage_errors(capsys, args, said):
    """R-R11: 2, and the option is named."""
    assert command(["power", *args]) == 2
    assert said in capsys.readouterr().err
