"""What an agent may answer with: any text, records, and very long answers."""

import sys
from pathlib import Path

import pytest
import yaml
from commands import proctor
from run_parts import journal, only_run

AGENT = """
import dataclasses
import pydantic

class Order(pydantic.BaseModel):
    a: int
    b: str

@dataclasses.dataclass
class Point:
    x: int
    order: Order

def half(input): return "caf\\ud83d"
def pair(input): return ("caf\\ud83d", {"k\\udc00": [1]})
def model(input): return Order(a=1, b="x")
def record(input): return Point(2, Order(a=1, b="caf\\ud83d"))
def long(input): return "x" * 50_000_000 + "the end"
"""


def answers(folder: Path, agent: str, *wanted: str, then: str = "") -> list[str]:
    """The stored answers of two trials, which contain all of what is wanted."""
    (folder / "bot.py").write_text(AGENT)
    case = {"id": "c", "input": "q", "correctness": {"expected_in_answer": list(wanted)}}
    suite = folder / "suite.yaml"
    suite.write_text(yaml.safe_dump({"agent": f"bot:{agent}", "cases": [case]}))
    options = ("--results", folder / "r", "--quiet", "--trials", "2", "--concurrency", "1")
    done = proctor("run", suite, *options, *(("--max-trials", "1") if then else ()))
    if then:
        assert done.returncode == 2, "one trial is missing"
        done = proctor("run", then, only_run(folder / "r"), "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = journal(only_run(folder / "r"))
    assert [line["status"] for line in lines] == ["passed"] * 2
    return [line["answer"] for line in lines]


def test_a_lone_surrogate_is_replaced_and_judged(tmp_path: Path) -> None:
    """R-R9, R-T7: half a character ends neither the run nor its resume."""
    assert (
        answers(tmp_path, "half", "caf\N{REPLACEMENT CHARACTER}", then="--resume")
        == ["caf\N{REPLACEMENT CHARACTER}"] * 2
    )


def test_a_lone_surrogate_inside_a_tuple(tmp_path: Path) -> None:
    """R-R9, R-T7: structured answers are replaced in every value and key."""
    assert (
        answers(tmp_path, "pair", "caf\N{REPLACEMENT CHARACTER}")
        == ['["caf\N{REPLACEMENT CHARACTER}",{"k\N{REPLACEMENT CHARACTER}":[1]}]'] * 2
    )


def test_a_pydantic_model_is_its_json(tmp_path: Path) -> None:
    """R-A2: a record that an agent returns is judged as JSON, not as its repr."""
    assert answers(tmp_path, "model", '{"a":1,"b":"x"}') == ['{"a":1,"b":"x"}'] * 2


def test_a_dataclass_with_a_model_is_its_json(tmp_path: Path) -> None:
    """R-A2: records inside records, with a lone surrogate in one of them."""
    text = '{"x":2,"order":{"a":1,"b":"caf\N{REPLACEMENT CHARACTER}"}}'
    assert answers(tmp_path, "record", text) == [text] * 2


def test_a_long_answer_is_judged_whole(tmp_path: Path) -> None:
    """R-C6: the check sees the end of 50 MB; the stored copy says that it is cut."""
    for answer in answers(tmp_path, "long", "the end"):
        assert len(answer) < 101_000
        assert answer.endswith("[cut: 100,000 of 50,000,007 characters]")


COMMAND = [sys.executable, "-c", r"""print('{"answer": "caf\\ud83d"}')"""]


@pytest.mark.parametrize(
    "agent",
    [
        {"kind": "python", "target": "bot:half", "isolation": "process"},
        {"kind": "command", "command": COMMAND},
    ],
    ids=["process", "command"],
)
def test_a_lone_surrogate_from_another_process(tmp_path: Path, agent: dict[str, object]) -> None:
    """R-R9, R-T7: half a character is replaced and judged, wherever the agent runs."""
    (tmp_path / "bot.py").write_text(AGENT)
    text = "caf\N{REPLACEMENT CHARACTER}"
    case = {"id": "c", "input": "q", "correctness": {"exact_match": text}}
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({"agent": agent, "cases": [case]}))
    done = proctor("run", suite, "--results", tmp_path / "r", "--quiet", "--trials", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line["answer"] for line in journal(only_run(tmp_path / "r"))] == [text] * 2


def test_a_suite_names_the_version_of_its_baseline(tmp_path: Path) -> None:
    """R-D4, R-C4: `baseline: v1` is used although v2 is newer, and the reason names it."""
    (tmp_path / "bot.py").write_text(
        "from proctor import capture\n"
        "import pathlib\n"
        "def answer(q):\n"
        "    cost = float(pathlib.Path('cost').read_text())\n"
        "    with capture.llm_call('m', input_tokens=1, output_tokens=1, cost_usd=cost):\n"
        "        return 'Paris'\n"
    )
    case = {
        "id": "c",
        "input": "q",
        "correctness": {"expected_in_answer": ["Paris"]},
        "cost": {"max_cost_multiplier": 2, "blocking": True},
    }
    suite = tmp_path / "suite.yaml"
    for version, cost in (("v1", 1.0), ("v2", 9.0)):
        (tmp_path / "cost").write_text(str(cost))
        suite.write_text(yaml.safe_dump({"agent": "bot:answer", "cases": [case]}))
        saved = proctor("baseline", "save", suite, "--version", version, "--force", cwd=tmp_path)
        assert saved.returncode == 0, saved.stderr
    # A suite may name a version before it is saved, and saves it.
    suite.write_text(yaml.safe_dump({"agent": "bot:answer", "cases": [case], "baseline": "v0"}))
    assert proctor("test", suite, cwd=tmp_path).returncode == 2
    saved = proctor("baseline", "save", suite, "--version", "v0", "--force", cwd=tmp_path)
    assert saved.returncode == 0, saved.stderr
    assert proctor("test", suite, cwd=tmp_path).returncode == 0
    for version, code in (("v1", 1), ("v2", 0)):
        document = {"agent": "bot:answer", "cases": [case], "baseline": version}
        suite.write_text(yaml.safe_dump(document))
        done = proctor("test", suite, "--format", "json", cwd=tmp_path)
        assert done.returncode == code, done.stdout
        assert version in done.stdout
