# ruff: noqa: T201, S603 - a script that reports to its terminal and runs our own command
"""Create the screenshots of the documentation from real runs: `proctor demo`, and a small shop.

    python tools/screenshots.py            writes docs/images/*.png

Needs the extras `charts` and `dev` (Playwright) and a Chromium. Nothing is fetched.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browser import ARGUMENTS, chromium  # noqa: E402 (beside the tests, which use it too)
from viewer_parts import run_suite, shop_agent, shop_suite  # noqa: E402

from proctor.runs.annotations import tag  # noqa: E402

IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 200_000
"""A page with a few of them should still load at once."""

WIDTH = 1100


def main() -> int:
    """Run the demo, make its report, take the pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        page = report_of_demo(Path(place))
        runs_of_shop(Path(place))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
            for name, (theme, height, show) in PICTURES.items():
                shown = browser.new_page(
                    color_scheme=theme, viewport={"width": WIDTH, "height": height}
                )
                shown.goto(page.as_uri())
                shown.wait_for_selector("html[data-ready]", state="attached")
                show(shown)
                shown.screenshot(path=IMAGES / f"{name}.png")
            with viewer(Path(place)) as address:
                shown = browser.new_page(viewport={"width": 1280, "height": 900})
                shown.goto(f"{address}/runs")
                shown.locator("table.runs tbody a").first.click()
                shown.locator(".clusters table").wait_for()
                shown.screenshot(path=IMAGES / "viewer-run.png")
                shown.locator(".heat tr", has_text="refund").locator("a").last.click()
                shown.locator("tr", has_text="hard fail").locator("a").first.click()
                shown.locator(".turn.decisive").wait_for()
                shown.screenshot(path=IMAGES / "viewer.png")
            browser.close()
    sizes = {path.name: path.stat().st_size for path in sorted(IMAGES.glob("*.png"))}
    for name, size in sizes.items():
        print(f"{name}: {size / 1000:.0f} kB{'' if size < MAX_BYTES else ', too large'}")
    return 0 if all(size < MAX_BYTES for size in sizes.values()) else 1


def report_of_demo(place: Path) -> Path:
    """The report of a fresh run of the demo."""
    for arguments in (["demo"], ["report", "latest", "--html", "report.html"]):
        subprocess.run([sys.executable, "-m", "proctor", *arguments], cwd=place, check=True)
    return place / "report.html"


def runs_of_shop(place: Path) -> None:
    """Write a baseline and a run after a change that made one of two agents worse."""
    suite = shop_suite("late-parcel", "refund", "where-is-it")
    agents = {"careful": shop_agent(), "hasty": shop_agent()}
    tag(run_suite(suite, agents, place / "results", trials=10), "baseline")
    run_suite(suite, {**agents, "hasty": shop_agent(False)}, place / "results", trials=10)


@contextmanager
def viewer(place: Path) -> Iterator[str]:
    """The address of a `proctor view` of the demo's runs."""
    command = [sys.executable, "-m", "proctor", "view", "results", "--no-open"]
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = next(line for line in process.stderr if "http://" in line)
        try:
            yield re.findall(r"http://[^/]+", told)[0]
        finally:
            process.terminate()


def top(_shown: Page) -> None:
    """The page as it opens."""


def charts(shown: Page) -> None:
    """Show the cases and the following sections, once their charts are drawn."""
    shown.locator("#cells").evaluate("it => it.scrollIntoView({behavior: 'instant'})")
    for name in ("heatmap", "histogram", "timeline"):
        shown.wait_for_selector(f"[data-chart={name}] canvas", state="attached")


def trial(shown: Page) -> None:
    """Show a trial with a forbidden action, at the step of that action."""
    shown.get_by_role("link", name="unknown-order").first.click()
    shown.wait_for_selector("dialog[open] .spans")
    shown.get_by_role("treeitem").last.click()


PICTURES = {
    "report": ("light", 1180, top),
    "report-cases": ("dark", 1100, charts),
    "report-trial": ("light", 860, trial),
}
"""Name → theme, height, and the action before the screenshot."""


if __name__ == "__main__":
    sys.exit(main())
