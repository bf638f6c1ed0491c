"""How large the HTML report of 10,000 trials is, how long it takes to make, and to open.

    python benchmarks/report.py [--rounds N]

A real run: 500 cases × 4 agents × 5 trials, with a trace each. Opening is timed in a fresh
Chromium tab from disk, from the navigation until the list of trials stands and answers; beside
it an empty page, which is what the browser itself takes. Goals: below 3 MB, open in below 2 s in
the median. Exit code 1 when missed. Needs the extra `charts`, Playwright and Chromium.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from _measure import ROOT, machine, verdict
from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(ROOT / "tests"))

from browser import ARGUMENTS, chromium

MAX_BYTES = 3_000_000
MAX_SECONDS = 2.0

AGENTS = """
import random
from proctor import tool

@tool
def look_up(word): return {"word": word, "entries": [word * 3] * 4}

def agent(rate):
    async def answer(input, seed):
        chance = random.Random(seed)
        found = [look_up(input) for _ in range(1 + chance.randrange(4))]
        said = "yes" if chance.random() < rate else "no"
        return f"{said}: {found[0]['entries'][0]} after {len(found)} looks, {chance.random():.6f}"
    return answer

alpha, beta, gamma, delta = agent(0.99), agent(0.95), agent(0.9), agent(0.8)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print(machine())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run_suite(folder)
        began = time.perf_counter()
        proctor(folder, "report", "latest", "--html", "report.html")
        made = time.perf_counter() - began
        page = folder / "report.html"
        (folder / "empty.html").write_text("<!doctype html><html data-ready=yes><p>empty")
        size = page.stat().st_size
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=[*ARGUMENTS])
            empty = [opening(browser, folder / "empty.html") for _ in range(rounds)]
            opened = [opening(browser, page) for _ in range(rounds)]
            browser.close()
    middle = statistics.median(opened)
    small, soon = size < MAX_BYTES, middle < MAX_SECONDS
    print("| 10,000 trials | measured | goal | |")
    print("|---|---:|---:|---|")
    print(f"| size, MB | {size / 1e6:.2f} | below {MAX_BYTES / 1e6:.0f} | {verdict(small)} |")
    print(f"| made in, s, with Python's start | {made:.1f} | | |")
    print(f"| opens in, s, middle of {rounds} | {middle:.2f} | {MAX_SECONDS:g} | {verdict(soon)} |")
    print(f"| opens in, s, at most | {max(opened):.2f} | | |")
    print(f"| an empty page in, s | {statistics.median(empty):.2f} | | |")
    return 0 if small and soon else 1


def run_suite(folder: Path) -> None:
    (folder / "bots.py").write_text(AGENTS)
    suite = {
        "version": 1,
        "agents": {name: f"bots:{name}" for name in ("alpha", "beta", "gamma", "delta")},
        "defaults": {"trials": 5, "correctness": {"expected_in_answer": ["yes"]}},
        "cases": [
            {"id": f"case-{at:03d}", "input": f"word{at}", "difficulty": ("easy", "hard")[at % 2]}
            for at in range(500)
        ],
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))
    proctor(folder, "run", "suite.yaml", expect=1)  # some trials fail: that is the point


def proctor(folder: Path, *arguments: str, expect: int = 0) -> None:
    command = [sys.executable, "-m", "proctor", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != expect:
        sys.exit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def opening(browser: Browser, page: Path) -> float:
    """Return the seconds until a page is rendered in a new tab."""
    context = browser.new_context()
    tab = context.new_page()
    began = time.perf_counter()
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready]", state="attached")
    took = time.perf_counter() - began
    context.close()
    return took


if __name__ == "__main__":
    sys.exit(main())
