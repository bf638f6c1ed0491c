"""Ablation: the whole against the whole without one thing."""

import json
import sys

import pytest
from research_parts import researched

from proctor.background import run_sync
from proctor.errors import ProctorError
from proctor.stats.compare import paired_means
from proctor.stats.ranking import holm
from proctor.trials.resume import arerun


@pytest.fixture
def habits(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "examples/ecosystem"))
    yield {"kind": "scripted", "script": "keeper:course", "options": {"twice": True, "again": True}}
    sys.modules.pop("keeper", None)


def test_each_part_is_compared_with_the_whole_on_the_same_scenarios(tmp_path, habits):
    """R-Q8: one variant per option and parameter, pairs by case and seed, Holm over variants."""
    run, record = researched(
        tmp_path,
        cases=["mutualism.hidden_dependency@medium"],
        agents={"whole": habits},
        seeds=6,
        research={
            "ablation": {"drop": ["options.twice", "options.again"], "neutral": {"noise": 0.5}}
        },
    )
    found = record["found"]
    assert [v["without"] for v in found["variants"]] == [
        "options.twice",
        "options.again",
        "noise (=0.5)",
    ]
    assert run.spec["agents"]["whole - options.twice"]["options"] == {"again": True}
    by_arm: dict[tuple[str, str], dict[int, float]] = {}
    for trial in run.trials():
        assert trial.axis_seed is not None
        assert trial.score is not None
        by_arm.setdefault((trial.agent, str(trial.params)), {})[trial.axis_seed] = trial.score
    whole = by_arm["whole", "{}"]
    assert len(whole) == 6
    tests = []
    for variant in found["variants"]:
        params = "{'noise': 0.5}" if variant["without"].startswith("noise") else "{}"
        own = by_arm[variant["agent"], params]
        assert variant["pairs"] == 6
        test = paired_means([whole[s] for s in range(6)], [own[s] for s in range(6)])
        assert variant["difference"] == pytest.approx(test.difference)
        assert variant["p_value"] == test.p_value
        tests.append(1.0 if test.p_value is None else test.p_value)
    told = [v["adjusted"] for v in found["variants"] if v["p_value"] is not None]
    expected = holm(tests)
    assert told == [
        p for p, v in zip(expected, found["variants"], strict=True) if v["p_value"] is not None
    ]
    # Noise of half a count breaks an agent that counts: the effect must be seen as one.
    assert found["variants"][2]["difference"] < 0
    again = run_sync(arerun(run.path))
    assert again.sameness.identical
    second = json.loads((again.second.path / "research.json").read_text())
    assert second == record


def test_what_cannot_be_left_out_is_told_before_anything_runs(tmp_path, habits):
    """R-Q8: a part that is not there, an agent that is not, a parameter no scenario has."""

    def tried(**ablation):
        researched(
            tmp_path,
            cases=["mutualism.hidden_dependency@easy"],
            agents={"whole": habits, "chance": {"kind": "random"}},
            research={"ablation": ablation},
        )

    with pytest.raises(ProctorError, match="no option 'options\\.twce' to drop") as error:
        tried(agent="whole", drop=["options.twce"])
    assert "twice" in str(error.value.hint)
    with pytest.raises(ProctorError, match="say which agent is the whole"):
        tried(drop=["options.twice"])
    with pytest.raises(ProctorError, match="no parameter 'nois'"):
        tried(agent="whole", neutral={"nois": 0})
    assert not list(tmp_path.iterdir())


def test_tools_and_members_are_left_out_by_name():
    """R-Q8: an item of a list goes by its own name, or by what follows the colon."""
    from proctor.agents.registry import agent_config
    from proctor.trials._research.design import without
    from proctor.trials.prepare import ChosenAgent

    chat = {
        "kind": "chat",
        "model": "openai:gpt-5-mini",
        "system": "${PROMPT}",
        "tools": [{"python": "shop:search"}, {"name": "refund", "reply": "done"}],
    }
    agent = ChosenAgent(agent_config(chat), chat)
    assert without(agent, "tools.search").written["tools"] == [{"name": "refund", "reply": "done"}]
    (left,) = without(agent, "tools.refund").config.model_dump()["tools"]
    assert left["python"] == "shop:search"
    plain = without(agent, "system")
    assert "system" not in plain.written
    assert plain.config.model_dump()["system"] is None
    assert len(chat["tools"]) == 2
    three = {"kind": "ensemble", "members": {n: {"kind": "random"} for n in "abc"}}
    two = without(ChosenAgent(agent_config(three), three), "members.b")
    assert list(two.config.model_dump()["members"]) == ["a", "c"]
