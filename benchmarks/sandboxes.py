"""What a sandbox costs: trials of an instant command in bubblewrap, against the same without.

    python benchmarks/sandboxes.py [--trials 1000] [--rounds 1]

Each round runs the whole command `proctor run` for both, one after the other: workers, journal and
results are part of the figures. The goal is 1,000 trials within 60 seconds on two processors.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measure import machine

SUITE = """\
agent: {{kind: command, command: /bin/true, protocol: text, sandbox: {sandbox}}}
cases: [{{input: go, trials: {trials}, correctness: {{regex_match: ^$}}}}]
"""

ARMS = {"no sandbox": "none", "bwrap": "{kind: bwrap, network: none}", "bwrap + network": "bwrap"}


def seconds(sandbox: str, trials: int) -> float:
    """The time of one run, all of whose trials pass."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "suite.yaml").write_text(SUITE.format(sandbox=sandbox, trials=trials))
        began = time.perf_counter()
        command = [sys.executable, "-m", "proctor", "run", "suite.yaml", "--concurrency", "4"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        return time.perf_counter() - began


def main() -> None:
    """Print the median time of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    print(machine())
    times: dict[str, list[float]] = {name: [] for name in ARMS}
    for _ in range(options.rounds):
        for name, sandbox in ARMS.items():
            times[name].append(seconds(sandbox, options.trials))
    rows: list[list[str]] = []
    for name, taken in times.items():
        median = sorted(taken)[len(taken) // 2]
        rows.append([name, f"{median:.1f}", f"{1000 * median / options.trials:.1f}"])
    print(f"\n### {options.trials:,} trials of an instant command\n")
    print("| | s, median | ms per trial |\n|---|---:|---:|")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    main()
