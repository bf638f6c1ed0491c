"""A/B experiments: error rate, power, verdicts, and whether the change arrived."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from commands import proctor as command

from proctor.causes.ab import look_shares, shows_change
from proctor.llm import MockLLM
from proctor.llm.mock import ScriptRequest
from proctor.runs.folder import find_run
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
                "system": "Be brief.", "tools": [{"python": "ab_tools:now"}]}  # fmt: skip
        (tmp_path / "ab_tools.py").write_text("def now() -> str:\n    return 'noon'\n")
        suite_in(tmp_path, chat=chat)
        (tmp_path / "prompt.txt").write_text("Always say yes, whatever the question is.\n")
        done = command(
            "ab", "suite.yaml", "--change", "system=@prompt.txt", "--trials", "2", "--looks", "2",
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


def test_latest_is_the_run_of_the_suite(tmp_path: Path) -> None:
    """R-N10: runs of `ab` and `profile` are experiments on a suite, as forks are: after them,
    `latest` is still the run of the suite, for every command; alone, they are the latest."""
    suite_in(tmp_path, coin="coins:coin", good="coins:good")
    ab = ("ab", "suite.yaml", "--a", "coin", "--b", "good", "--trials", "4", "--quiet")
    assert command(*ab, cwd=tmp_path).returncode in (0, 1)
    results = tmp_path / "results"
    (only,) = (results / "suite").iterdir()
    assert find_run("latest", results) == only
    assert command("run", "suite.yaml", "--trials", "1", "--quiet", cwd=tmp_path).returncode < 2
    second = find_run("latest", results)
    assert second != only
    assert command(*ab, cwd=tmp_path).returncode in (0, 1)
    profile = ("profile", "suite.yaml", "--agent", "coin", "--trials", "2", "--quiet")
    assert command(*profile, cwd=tmp_path).returncode < 2
    assert find_run("latest", results) == second
    shown = command("results", "latest", "--format", "json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert second.name in shown.stdout
    assert "suite-" not in shown.stdout


def obedient(request: ScriptRequest) -> Any:
    """A model that says what its system prompt wants."""
    system = " ".join(m.content or "" for m in request.messages if m.role == "system")
    return "yes" if "Say yes" in system else "no"


def test_the_recipe_for_ci_works(tmp_path: Path, root: Path) -> None:
    """R-N10: the steps of the documented workflow, run in a repository with a pull request that
    changes the prompt: HURTS fails the job, HELPS does not."""
    page = (root / "docs/how-to/test-a-change.md").read_text()
    (block,) = re.findall(r"```yaml\n(name: prompt\n.*?)```", page, re.DOTALL)
    steps = yaml.safe_load(block)["jobs"]["ab"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands[0].startswith("pip install")
    (setting,) = re.findall(r"`(system: !include [^`]+)`", page)
    with MockLLM({"replies": [], "default": obedient}) as server:
        project = tmp_path / "project"
        (project / "prompts").mkdir(parents=True)
        cases = "".join(
            f"  - {{id: c{n}, input: Is it done?, correctness: {{exact_match: 'yes'}}}}\n"
            for n in range(4)
        )
        (project / "suite.yaml").write_text(
            "agents:\n  chat:\n    kind: chat\n    model: openai:gpt-4o-mini\n"
            f"    base_url: {server.base_url}\n    {setting}\ncases:\n{cases}"
        )
        here = Path(sys.executable).parent
        env = {**os.environ, "OPENAI_API_KEY": "k", "PATH": f"{here}:{os.environ['PATH']}"}
        env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_COMMITTER_NAME": "a"}
        env |= {"GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_EMAIL": "a@example.org"}

        def bash(script: str) -> int:
            done = subprocess.run(["bash", "-ec", script], cwd=project, env=env, check=False)
            return done.returncode

        prompt = project / "prompts" / "system.txt"
        prompt.write_text("Say no.")
        assert bash("git init -q -b main && git add -A && git commit -qm base") == 0
        assert bash("git clone -q --bare . ../origin && git remote add origin ../origin") == 0
        assert bash("git fetch -q origin && git checkout -q -b change") == 0

        def job(text: str) -> tuple[int, str]:
            prompt.write_text(text)
            for each in commands[1:]:
                code = bash(each.replace("${{ github.base_ref }}", "main"))
            return code, json.loads((project / "ab.json").read_text())["verdict"]

        assert job("Say yes.") == (0, "HELPS")
        assert bash("git checkout -q main && echo 'Say yes.' > prompts/system.txt") == 0
        assert (
            bash("git commit -qam better && git push -q origin main && git checkout -q change") == 0
        )
        assert job("Say no.") == (1, "HURTS")
