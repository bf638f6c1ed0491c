"""Memory and open files do not grow with the number of trials."""

import subprocess
import sys
from pathlib import Path

import pytest
from run_parts import write_suite

MOST_MB = 200

# Runs the suite in a fresh process and reports its memory and open files as it goes.
MEASURE = """
import os, sys
import proctor
from proctor.report.progress import Progress

def megabytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

class Watch(Progress):
    def finished(self, trial):
        super().finished(trial)
        if self.done % 10_000 == 0:
            print(self.done, megabytes(), len(os.listdir("/proc/self/fd")))

run = proctor.run(sys.argv[1], trials=50_000, concurrency=20, results="r", observer=Watch())
assert run.totals.passed == 100_000, run.totals
# Not ru_maxrss: a child starts with the high-water mark of the process that forked it.
with open("/proc/self/status") as status:
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
print("peak", int(peak) / 1024)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_a_hundred_thousand_trials_in_little_memory(tmp_path: Path) -> None:
    """R-R2, R-R9: 100,000 no-op trials within 200 MB, finalising included; open files constant."""
    suite = write_suite(tmp_path, agent="bots:instant", cases=2)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(suite)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    *steps, (_, peak) = (line.split() for line in done.stdout.splitlines())
    assert float(peak) < MOST_MB
    memory = [float(step[1]) for step in steps]
    assert len(memory) == 10
    assert memory[-1] - memory[0] < 10, "flat while running"
    # A trace may be at its writing just then, so two more or less say nothing.
    files = [int(step[2]) for step in steps]
    assert max(files) - min(files) <= 3, "no file stays open"
