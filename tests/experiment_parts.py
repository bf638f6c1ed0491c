"""A small project with a catalog, a suite, agents and experiments, for tests of commands."""

from pathlib import Path
from typing import Any

import yaml
from run_parts import write_suite

SUM = """\
description: Add two numbers
tags: [quick, numbers]
difficulty: !ref params.level
type: question
params:
  level: {type: choice, of: [easy, hard], default: easy}
  most: {type: int, default: 9, min: 1, max: 1000}
variants: {easy: {level: easy}, hard: {level: hard, most: 99}}
values:
  a: !ev randint(1, most)
  b: !ev randint(1, most)
scenario:
  question: !ev "'What is ' + str(a) + ' + ' + str(b) + '?'"
  actions: !ev "[str(n) for n in range(2, 2 * most + 1)]"
truth: {sum: !ev a + b}
correctness: {expected_in_answer: [!ev str(a + b)]}
solution: {agent: {kind: python, target: "solver:solve"}, min_score: 1.0}
random: {max_score: 0.9}
"""

COIN = """\
description: Call a coin
tags: [quick]
difficulty: easy
type: question
scenario: {question: Heads or tails?, actions: [heads, tails]}
truth: {side: !ev "choice(['heads', 'tails'])"}
correctness: {expected_in_answer: [!ref truth.side]}
"""

SOLVER = """
import re
def solve(input):
    return str(sum(int(n) for n in re.findall(r"[0-9]+", input["question"])))
"""

AGENTS = """
import re
def adder(input):
    numbers = re.findall(r"[0-9]+", input["question"] if isinstance(input, dict) else input)
    return str(sum(map(int, numbers)))
def zero(input): return "none"
"""


def write_project(folder: Path) -> Path:
    """`arithmetic.sum` with two variants, `luck.coin`, a suite, two agents."""
    write_suite(folder, cases=2)
    (folder / "proctor.yaml").write_text(
        "agents: {adder: {kind: python, target: 'people:adder'}}\n"
    )
    (folder / "people.py").write_text(AGENTS)
    for name, text in (("arithmetic/sum", SUM), ("luck/coin", COIN)):
        home = folder / "catalog" / name
        home.mkdir(parents=True)
        (home / "spec.yaml").write_text(text)
    (folder / "catalog/arithmetic/sum/solver.py").write_text(SOLVER)
    (folder / "experiments").mkdir()
    return folder


def write_experiment(folder: Path, name: str = "exp", **fields: Any) -> Path:
    """An experiment in the project's folder of experiments."""
    path = folder / "experiments" / f"{name}.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path
