"""How many files and functions a reader must open to follow one job from start to end.

`tools/walk.py` runs and traces the jobs and prints what they execute. The limits are the figures of
today; a change that shortens a path lowers its limit here, until it is the goal.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest


class Limit(NamedTuple):
    """The largest figure allowed: the goal, and today's."""

    goal: int
    now: int


# Lower `now` when a path gets shorter; never raise it. At `now <= goal` write the goal.
FILES = {
    "trial": Limit(goal=60, now=60),
    "span": Limit(goal=28, now=28),
    "diagnosis": Limit(goal=30, now=30),
    "comparison": Limit(goal=26, now=26),
}
FUNCTIONS = {"trial": Limit(goal=300, now=300)}

ENOUGH = 10
"""A walk of fewer files than this did not do its job."""


@cache
def walked(root: Path, job: str) -> dict[str, list[str]]:
    """The functions a job executes, by file, in a process of its own."""
    done = subprocess.run(
        [sys.executable, root / "tools" / "walk.py", job, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("job", FILES)
def test_a_job_goes_through_few_files(root: Path, job: str) -> None:
    """The path of one job stays short enough to be read."""
    files = sorted(walked(root, job))
    assert len(files) > ENOUGH
    assert len(files) <= FILES[job].now, "\n".join([f"{job}: {len(files)} files", *files])


@pytest.mark.parametrize("job", FUNCTIONS)
def test_a_job_calls_few_functions(root: Path, job: str) -> None:
    """The story of one job is in few functions."""
    found = walked(root, job)
    total = sum(map(len, found.values()))
    longest = sorted(found, key=lambda file: -len(found[file]))[:10]
    assert total <= FUNCTIONS[job].now, "\n".join(
        [f"{job}: {total} functions; most in", *(f"{file} {len(found[file])}" for file in longest)]
    )


@pytest.mark.parametrize("limit", [*FILES.values(), *FUNCTIONS.values()])
def test_no_limit_is_below_its_goal(limit: Limit) -> None:
    assert limit.now >= limit.goal, "reached: write the goal as the limit"
