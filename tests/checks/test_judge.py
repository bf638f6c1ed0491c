"""The LLM judge, against the mock model server."""

import itertools
import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.checks.judge import (
    Criterion,
    GradedExample,
    Judge,
    JudgeCache,
    JudgeInput,
    JudgeSettings,
    Label,
    Rubric,
    built_in_rubrics,
    label_of,
    rubric_from,
)
from proctor.errors import ProctorError
from proctor.llm import ChatReply, MockLLM, PriceTable, TokenUsage, get_model

RULE = Rubric(name="greets", rule="The answer greets the asker by name.")
GREETING = JudgeInput(input="I am Ada.", answer="Hello Ada!")
PRICES = PriceTable({"judge": {"input": 1.0, "output": 2.0}})


def verdict_of(score, rationale="It greets.", **more) -> dict:
    return {"json": {"rationale": rationale, "score": score}, **more}


def judge_at(
    server: MockLLM, rubric: Rubric | str = RULE, *, cache=None, waits=None, **settings
) -> Judge:
    model = get_model("openai:judge", base_url=server.base_url, prices=PRICES, identity="judge")

    async def sleep(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)

    return Judge(model, rubric, JudgeSettings(**settings), cache=cache, sleep=sleep)


# -- one vote -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "value", "label", "passed"),
    [
        (5, 1.0, "pass", True),
        (4, 0.75, "pass", True),
        (3, 0.5, "borderline", False),
        (2, 0.25, "fail", False),
        (1, 0.0, "fail", False),
    ],
)
async def test_a_score_becomes_a_verdict(score, value, label, passed):
    """R-C7: score 1 to 5, on 0..1 as (score - 1) / 4, and its label against the threshold."""
    with MockLLM([verdict_of(score, usage={"input": 100, "output": 10})]) as server:
        verdict = await judge_at(server).judge(GREETING)
    assert (verdict.score, verdict.normalised, verdict.label) == (score, value, label)
    assert verdict.passed is passed
    assert verdict.rationale == "It greets."
    assert (verdict.usage.calls, verdict.usage.cached) == (1, 0)
    assert (verdict.usage.input_tokens, verdict.usage.output_tokens) == (100, 10)
    assert verdict.usage.cost_usd == pytest.approx(120e-6)
    assert json.loads(json.dumps(verdict.to_dict()))["label"] == label


async def test_what_a_judge_is_asked():
    """R-C7: temperature 0, structured output, the rule, its anchors, examples, and the facts."""
    rubric = Rubric(
        name="r",
        rule="Be exact.",
        anchors={5: "perfectly exact", 1: "made up"},
        examples=(GradedExample(answer="42-ish", score=2, rationale="Not exact.", input="6 x 7?"),),
    )
    judged = JudgeInput(
        input="What is it?",
        answer="It is 7.",
        expected="7",
        context=("a fact",),
        documents=("doc one", "doc two"),
        tool_outputs=("tool said 7",),
        steps=("1. called add",),
    )
    with MockLLM([verdict_of(5)]) as server:
        await judge_at(server, rubric).judge(judged)
    (asked,) = server.requests
    assert asked.body["temperature"] == 0
    schema = asked.body["response_format"]["json_schema"]
    assert schema["strict"] is True
    assert schema["schema"]["properties"]["score"]["enum"] == [1, 2, 3, 4, 5]
    assert [m.role for m in asked.messages] == ["system", "user", "assistant", "user"]
    system, shown, graded, question = (m.content or "" for m in asked.messages)
    assert "Be exact." in system
    assert "5: perfectly exact" in system
    assert "42-ish" in shown
    assert json.loads(graded) == {"rationale": "Not exact.", "score": 2}
    for fact in ("What is it?", "It is 7.", "a fact", "doc two", "tool said 7", "called add"):
        assert fact in question


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("I would say 4 out of 5.", "not JSON"),
        ('Sure! {"rationale": "x", "score": 5}', "not JSON"),
        ('{"rationale": "x", "score": 6}', "whole number from 1 to 5"),
        ('{"rationale": "x", "score": 0}', "whole number from 1 to 5"),
        ('{"rationale": "x", "score": 4.5}', "whole number from 1 to 5"),
        ('{"rationale": "x", "score": true}', "whole number from 1 to 5"),
        ('{"rationale": "x", "score": "5"}', "whole number from 1 to 5"),
        ('{"rationale": "x", "score": NaN}', "whole number from 1 to 5"),
        ('{"rationale": "x", "score": 1e999}', "whole number from 1 to 5"),
        ('{"rationale": "x", "score": 1, "score": 5}', "a key twice"),
        ('{"score": 5}', "keys are not exactly"),
        ('{"rationale": "", "score": 5}', "is not a text"),
        ("[5]", "not a JSON object"),
        ("[" * 100_000, "not JSON|deeply"),
        ("", "empty"),
    ],
)
async def test_an_unreadable_reply_is_repaired_once_or_unscored(reply, says):
    """R-C7: strict parse, one repair that names the problem, then unscored with a reason."""
    with MockLLM([reply, verdict_of(4), {"text": reply, "times": 2}]) as server:
        repaired = await judge_at(server).judge(GREETING)
        given_up = await judge_at(server).judge(GREETING)
    assert repaired.score == 4
    assert repaired.usage.calls == 2
    assert (given_up.score, given_up.label, given_up.passed) == (None, None, None)
    assert not given_up.scored
    assert "bad_reply" in (given_up.reason or "")
    assert given_up.usage.calls == 2
    asked = server.requests[1].messages[-1].content
    assert any(part in asked for part in says.split("|"))


@pytest.mark.parametrize(
    "text", ['```json\n{"rationale": "x", "score": 4}\n```', '{"rationale": "x", "score": 4.0}\n']
)
async def test_harmless_wrapping_is_read(text):
    """R-C7: a code fence around the whole object, or 4.0 for 4, changes nothing."""
    with MockLLM([text]) as server:
        verdict = await judge_at(server).judge(GREETING)
    assert (verdict.score, verdict.usage.calls) == (4, 1)


# -- failures -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind", "transient", "asked"),
    [
        ({"error": 500}, "server", True, 4),
        ({"error": 429}, "rate_limited", True, 4),
        ({"malformed": "cut"}, "connection", True, 4),
        ({"error": 401}, "auth", False, 1),
        ({"malformed": "wrong_shape"}, "bad_reply", False, 1),
    ],
)
async def test_a_judge_that_fails_gives_no_score(reply, kind, transient, asked):
    """R-C7: a failing judge is unscored, after bounded retries of what may go away."""
    waits = []
    with MockLLM({"replies": [], "default": reply}) as server:
        verdict = await judge_at(server, waits=waits).judge(GREETING)
    assert (verdict.score, verdict.normalised, verdict.label) == (None, None, None)
    assert kind in verdict.reason
    assert verdict.transient is transient
    assert len(server.requests) == asked
    assert len(waits) == asked - 1
    assert all(0 <= wait <= 2.0**k for k, wait in enumerate(waits))


async def test_retry_after_is_honoured_and_bounded():
    """R-C7: the provider's Retry-After is waited for; one that is too long is not."""
    waits = []
    limited = {"error": {"status": 429, "retry_after": 7}}
    endless = {"error": {"status": 429, "retry_after": 3600}}
    with MockLLM([limited, verdict_of(5), endless]) as server:
        assert (await judge_at(server, waits=waits).judge(GREETING)).score == 5
        assert waits == [7]
        assert not (await judge_at(server, waits=waits).judge(GREETING)).scored
    assert len(server.requests) == 3


async def test_missing_facts_are_not_guessed():
    """R-C7: a rubric that needs facts gives no verdict without them, and calls no model."""
    with MockLLM([]) as server:
        for name, need in [
            ("correctness", "expected"),
            ("hallucination", "evidence"),
            ("reasoning", "steps"),
        ]:
            verdict = await judge_at(server, name).judge(GREETING)
            assert not verdict.scored
            assert need in (verdict.reason or "")
    assert server.requests == []


# -- votes, models, criteria ----------------------------------------------------------------


async def test_votes_are_counted_by_their_median():
    """R-C7: k votes differ by seed; the median counts; the rationale is of the nearest vote."""
    with MockLLM([verdict_of(5, "a"), verdict_of(2, "b"), verdict_of(4, "c")]) as server:
        verdict = await judge_at(server, votes=3).judge(GREETING)
    assert (verdict.score, verdict.rationale) == (4, "c")
    assert [(vote.scores or {})["overall"] for vote in verdict.votes] == [5, 2, 4]
    assert [asked.body["seed"] for asked in server.requests] == [0, 1, 2]


async def test_votes_that_fail_are_left_out_while_most_remain():
    """R-C7: two of three votes still decide; one of three does not."""
    bad = {"error": 400}
    with MockLLM([bad, verdict_of(2), verdict_of(5), bad, bad, verdict_of(5)]) as server:
        most = await judge_at(server, votes=3).judge(GREETING)
        few = await judge_at(server, votes=3).judge(GREETING)
    assert most.score == 3.5
    assert not few.scored
    assert (few.reason or "").startswith("2 of 3 judgements failed")


class Says:
    """A model that always gives one score."""

    def __init__(self, score, name="m") -> None:
        self.name = self.identity = name
        self._text = json.dumps({"rationale": f"{name} says {score}", "score": score})

    async def complete(self, request):
        return ChatReply(text=self._text, model=self.name, usage=TokenUsage(1, 1))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=7), st.integers(0, 20))
async def test_an_ensemble_follows_its_majority(scores, twentieths):
    """R-C7: whenever more than half of the models agree on a label, it is the verdict's."""
    threshold = twentieths / 20
    rubric = Rubric(name="r", rule="x", threshold=threshold)
    models = [Says(score, f"m{i}") for i, score in enumerate(scores)]
    verdict = await Judge(models, rubric).judge(GREETING)
    labels = [label_of((score - 1) / 4, threshold) for score in scores]
    winner = max(set(labels), key=labels.count)
    if 2 * labels.count(winner) > len(labels):
        assert verdict.label == winner
    assert verdict.score == pytest.approx(statistics.median(scores))


async def test_an_ensemble_survives_a_model_that_fails():
    """R-C7: a minority of failing models does not decide, and is on record."""
    with MockLLM({"replies": [], "default": {"error": 400}}) as server:
        broken = get_model("openai:broken", base_url=server.base_url)
        verdict = await Judge([Says(5, "a"), Says(4, "b"), broken], RULE).judge(GREETING)
        lonely = await Judge([Says(5, "a"), broken], RULE).judge(GREETING)
    assert verdict.score == 4.5
    assert (verdict.votes[2].problem or "").startswith("refused")
    assert not lonely.scored


async def test_criteria_are_weighted_medians():
    """R-C7 R-C10: the median for each criterion over the votes, then their mean by weight."""
    rubric = Rubric(
        name="r",
        rule="Good.",
        criteria=(
            Criterion(name="facts", rule="True.", weight=3),
            Criterion(name="tone", rule="Kind."),
        ),
    )
    votes = [(5, 1), (4, 2), (1, 2)]
    replies = [{"json": {"rationale": "x", "scores": {"facts": a, "tone": b}}} for a, b in votes]
    with MockLLM([*replies, {"json": {"rationale": "x", "scores": {"facts": 5}}}]) as server:
        verdict = await judge_at(server, rubric, votes=3).judge(GREETING)
    assert verdict.criteria == {"facts": 4, "tone": 2}
    assert verdict.normalised == pytest.approx((3 * 0.75 + 1 * 0.25) / 4)
    assert verdict.score == pytest.approx(1 + 4 * 0.625)
    assert verdict.label == Label.BORDERLINE
    schema = server.requests[0].body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["scores"]["required"] == ["facts", "tone"]


# -- the cache ------------------------------------------------------------------------------


async def test_the_same_question_is_asked_once(tmp_path):
    """R-C7: verdicts are cached by content; a hit costs nothing and is counted as one."""
    cache = JudgeCache(tmp_path)
    with MockLLM([verdict_of(4)]) as server:
        first = await judge_at(server, cache=cache).judge(GREETING)
        again = await judge_at(server, cache=JudgeCache(tmp_path)).judge(GREETING)
    assert (again.score, again.rationale) == (first.score, first.rationale)
    assert (first.usage.calls, again.usage.calls, again.usage.cached) == (1, 0, 1)
    assert again.usage.cost_usd is None
    assert len(server.requests) == 1


async def test_whatever_differs_is_another_question(tmp_path):
    """R-C7: rubric, answer, facts, temperature, seed and model are all part of the key."""
    cache = JudgeCache(tmp_path)
    other = Rubric(name="other", rule="Something else.")
    with MockLLM({"replies": [], "default": verdict_of(4)}) as server:
        for rubric, judged, settings in [
            (RULE, GREETING, {}),
            (other, GREETING, {}),
            (RULE, JudgeInput(input="I am Ada.", answer="Hello Ada"), {}),
            (RULE, JudgeInput(input="I am Ada.", answer="Hello Ada!", context=("x",)), {}),
            (RULE, GREETING, {"temperature": 0.5}),
            (RULE, GREETING, {"seed": 9}),
        ]:
            await judge_at(server, rubric, cache=cache, **settings).judge(judged)
        count = len(server.requests)
        elsewhere = get_model("openai:judge", base_url=server.base_url, identity="another")
        await Judge(elsewhere, RULE, cache=cache).judge(GREETING)
    assert (count, len(server.requests)) == (6, 7)


async def test_a_threshold_is_applied_to_kept_scores(tmp_path):
    """R-C7: changing only the threshold needs no new judgement."""
    strict = Rubric(name=RULE.name, rule=RULE.rule, threshold=1.0)
    with MockLLM([verdict_of(4)]) as server:
        loose = await judge_at(server, cache=JudgeCache(tmp_path)).judge(GREETING)
        hard = await judge_at(server, strict, cache=JudgeCache(tmp_path)).judge(GREETING)
    assert (loose.label, hard.label) == ("pass", "borderline")


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"format": 1}', b"null"])
async def test_a_damaged_entry_is_ignored_and_rewritten(tmp_path, damage):
    """R-C7: a corrupt cache file is a miss, and is whole again afterwards."""
    with MockLLM({"replies": [], "default": verdict_of(4)}) as server:
        await judge_at(server, cache=JudgeCache(tmp_path)).judge(GREETING)
        (entry,) = tmp_path.glob("*/*.json")
        whole = entry.read_bytes()
        entry.write_bytes(damage)
        verdict = await judge_at(server, cache=JudgeCache(tmp_path)).judge(GREETING)
    assert verdict.score == 4
    assert len(server.requests) == 2
    assert entry.read_bytes() == whole
    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


async def test_failures_are_not_kept(tmp_path):
    """R-C7: an unscored verdict is requested again."""
    with MockLLM([{"error": 400}, verdict_of(5)]) as server:
        assert not (await judge_at(server, cache=JudgeCache(tmp_path)).judge(GREETING)).scored
        assert (await judge_at(server, cache=JudgeCache(tmp_path)).judge(GREETING)).score == 5


async def test_a_folder_that_cannot_be_written_costs_no_verdict(tmp_path):
    """R-C7: the cache is a saving, not a condition."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    with MockLLM([verdict_of(5)]) as server:
        verdict = await judge_at(server, cache=JudgeCache(blocked / "below")).judge(GREETING)
    assert verdict.score == 5


async def test_hostile_rationales_are_kept_harmlessly(tmp_path):
    """R-C7: lone surrogates and endless rationales do not break the verdict or its cache."""
    text = '{"rationale": "\\ud800' + "a" * 100_000 + '", "score": 3}'
    with MockLLM([text]) as server:
        verdict = await judge_at(server, cache=JudgeCache(tmp_path)).judge(GREETING)
    assert verdict.rationale.startswith("\ufffdaaa")
    assert len(verdict.rationale) == 4000
    assert len(list(tmp_path.glob("*/*.json"))) == 1


# -- rubrics --------------------------------------------------------------------------------


def test_the_built_in_rubrics_are_complete():
    """R-C7: each says what all five scores mean."""
    assert set(built_in_rubrics()) == {
        "helpfulness",
        "correctness",
        "safety",
        "hallucination",
        "reasoning",
    }
    for rubric in built_in_rubrics().values():
        assert sorted(rubric.anchors) == [1, 2, 3, 4, 5]
        assert rubric_from(rubric.name) is rubric


def test_a_rubric_from_what_a_user_writes():
    """R-C7: mappings, short criteria, and built-in rubrics extended."""
    rubric = rubric_from(
        {
            "rule": "Good.",
            "criteria": {"facts": "True.", "tone": {"rule": "Kind.", "weight": 0.5}},
            "threshold": 0.5,
        }
    )
    assert [(c.name, c.weight) for c in rubric.criteria] == [("facts", 1.0), ("tone", 0.5)]
    strict = rubric_from({"extends": "correctness", "threshold": 1.0})
    assert strict.threshold == 1.0
    assert strict.rule == rubric_from("correctness").rule


@pytest.mark.parametrize(
    ("given", "says", "hint"),
    [
        ("corectness", "no built-in rubric", "correctness"),
        ({"rule": "x", "treshold": 1}, "unknown key", "threshold"),
        ({"rule": "x", "threshold": 1.5}, "less than or equal to 1", None),
        ({"rule": " "}, "rule is empty", None),
        ({"name": "x"}, "'rule' is missing", None),
        ({"rule": "x", "anchors": {6: "y"}}, "equal to 5", None),
        ({"rule": "x", "criteria": {"a b": "y"}}, "a name is a letter", None),
        ({"rule": "x", "criteria": [{"name": "a", "rule": "y", "wieght": 2}]}, "wieght", "weight"),
        ({"rule": "x", "criteria": {"a": {"rule": "y", "weight": 0}}}, "above 0", None),
        (
            {"rule": "x", "examples": [{"answer": "a", "score": 9, "rationale": ""}]},
            "equal to 5",
            None,
        ),
        ({"rule": "x", "needs": ["evidnce"]}, "'evidence' or", None),
    ],
)
def test_slips_in_a_rubric_are_named(given, says, hint):
    """R-C7: a wrong rubric is refused with what is wrong and the nearest word."""
    with pytest.raises(ProctorError, match=says) as caught:
        rubric_from(given)
    if hint:
        assert hint in caught.value.hint


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_labels_are_ordered(low, high, threshold):
    """R-C7: a better score never has a worse label."""
    order = [Label.FAIL, Label.BORDERLINE, Label.PASS]
    low, high = sorted((low, high))
    assert order.index(label_of(low, threshold)) <= order.index(label_of(high, threshold))


def test_labels_at_the_edges():
    """R-C7: the threshold itself passes; one step below it is borderline; below that fails."""
    for threshold, value in itertools.product((0.25, 0.5, 0.75, 1.0), (0, 0.25, 0.5, 0.75, 1)):
        expected = (
            "pass" if value >= threshold else "borderline" if value >= threshold - 0.25 else "fail"
        )
        assert label_of(value, threshold) == expected
