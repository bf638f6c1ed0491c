"""A/B experiments: error rate, power, verdicts, and whether the change arrived."""

import json
from pathlib import Path

import numpy as np
import yaml
from commands import proctor as command

from proctor.causes.ab import look_shares, shows_change
from proctor.llm import MockLLM
from proctor.stats.compare import on_suite
from proctor.trace import Message, Span, SpanKind, Trace

AGENT = """
import random

def coin(question, seed, params):
    return "yes" if random.Random(f"{seed}").random() < 0.3 else "no"

def good(question, seed):
    return "yes" if random.Random(f"good{seed}").random() < 0.95 else "no"

def same(question, seed):
    return "yes" if random.Random(f"same{seed}").random() < 0.3 else "no"
"""


def decided(rates: tuple[float, float], looks: int, rng: np.random.Generator) -> tuple[bool, float]:
    """Whether a simulated experiment with 5 cases and 20 trials shows a difference, and which."""
    shares = look_shares(0.05, looks)
    passes = np.zeros((2, 5), dtype=int)
    per_look = 20 // looks
    for number, share in enumerate(shares, 1):
        passes += [rng.binomial(per_look, rate, 5) for rate in rates]
        counts = [[(int(p), per_look * number) for p in arm] for arm in passes]
        found = on_suite(*counts)
        if found.test.p_value is not None and found.test.p_value <= share:
            return True, found.test.difference or 0.0
    return False, 0.0


def test_shares_of_looks_sum_to_the_error_rate() -> None:
    """R-N10: and the last look has most of it."""
    shares = look_shares(0.05, 4)
    assert abs(sum(shares) - 0.05) < 1e-12
    assert list(shares) == sorted(shares)
    assert look_shares(0.05, 1) == (0.05,)


def test_null_arms_alarm_at_most_at_the_error_rate_and_real_changes_are_found() -> None:
    """R-N10: 1,000 simulated experiments each, with a single look and with optional stopping."""
    rng = np.random.default_rng(26)
    error = 3 * (0.05 * 0.95 / 1000) ** 0.5  # three Monte Carlo standard errors
    for looks in (1, 4):
        false = sum(decided((0.5, 0.5), looks, rng)[0] for _ in range(1000))
        found = [decided((0.5, 0.7), looks, rng) for _ in range(1000)]
        right = sum(hit and difference > 0 for hit, difference in found)
        print(f"{looks} looks: {false} of 1000 null arms alarm, {right} of 1000 real changes found")
        assert false / 1000 <= 0.05 + error
        # 100 trials an arm: an exact test has a power of 0.81 for 0.5 → 0.7; looks cost some of it.
        assert right / 1000 >= (0.77 if looks == 1 else 0.70)


def suite_in(folder: Path, **agents: object) -> None:
    (folder / "coins.py").write_text(AGENT)
    cases = [{"id": f"c{n}", "input": "?", "correctness": {"exact_match": "yes"}} for n in range(4)]
    (folder / "suite.yaml").write_text(yaml.safe_dump({"agents": agents, "cases": cases}))


def test_two_agents_are_compared_until_it_is_decided(tmp_path: Path) -> None:
    """R-N10: HELPS stops early, HURTS exits with 1, equal agents show no difference."""
    suite_in(tmp_path, coin="coins:coin", good="coins:good", same="coins:same")

    def ab(*options: str) -> tuple[int, dict]:
        done = command("ab", "suite.yaml", "--json", "--quiet", *options, cwd=tmp_path)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    code, found = ab("--a", "coin", "--b", "good", "--trials", "40")
    assert (code, found["verdict"]) == (0, "HELPS")
    assert len(found["looks"]) < found["planned_looks"] == 4
    assert found["comparison"]["n"][0] == 4 * found["looks"][-1]["trials"]
    code, found = ab("--a", "good", "--b", "coin", "--trials", "40", "--looks", "1")
    assert (code, found["verdict"]) == (1, "HURTS")
    code, found = ab("--a", "coin", "--b", "same", "--trials", "8", "--looks", "2")
    assert (code, found["verdict"]) == (0, "NO DIFFERENCE SHOWN")
    assert len(found["looks"]) == 2
    done = command("ab", "suite.yaml", "--a", "coin", cwd=tmp_path)
    assert done.returncode == 2
    assert "say what arm b is" in done.stderr


def test_a_changed_prompt_must_reach_the_model(tmp_path: Path) -> None:
    """R-N10: the changed system prompt is seen in every trial of b, and in none of a."""
    with MockLLM([{"text": "no", "times": "forever"}]) as server:
        chat = {"kind": "chat", "model": "openai:gpt-4o-mini", "base_url": server.base_url,
                "system": "Be brief."}  # fmt: skip
        suite_in(tmp_path, chat=chat)
        (tmp_path / "prompt.txt").write_text("Always say yes, whatever the question is.\n")
        done = command(
            "ab", "suite.yaml", "--change", "system=@prompt.txt", "--trials", "2", "--looks", "1",
            "--json", "--quiet", cwd=tmp_path, env={"OPENAI_API_KEY": "k"},
        )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["verdict"] == "NO DIFFERENCE SHOWN", found["reason"]
    (received,) = found["received"]
    assert (received["seen_a"], received["seen_b"], received["trials"]) == (0, 8, 8)


def test_what_a_trace_can_show() -> None:
    """R-N10: models and texts can be seen, a temperature cannot."""
    call = Span(
        span_id="a",
        trace_id="t",
        name="chat",
        kind=SpanKind.LLM,
        model="gpt-5-mini-2026",
        input_messages=(Message("system", "You are   a careful\nassistant."),),
    )
    trace = Trace(trace_id="t", spans=[call])
    assert shows_change(trace, "model", "openai:gpt-5-mini") is True
    assert shows_change(trace, "model", "openai:gpt-4o") is False
    assert shows_change(trace, "system", "You are a careful assistant.") is True
    assert shows_change(trace, "system", "You are a careless assistant.") is False
    assert shows_change(trace, "temperature", 0.2) is None
    assert shows_change(Trace(trace_id="t"), "system", "You are a careful assistant.") is None
