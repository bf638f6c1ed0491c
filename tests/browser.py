"""A real Chromium for tests: pages opened from disk, watched for errors and for requests."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--metrics-recording-only",
)
"""A browser that talks to nobody of its own accord, and runs where there is no sandbox."""


def chromium() -> str:
    """The path of Chromium; the test is skipped where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium on this machine")


@dataclass
class Seen:
    """What a page did besides showing itself."""

    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def browser() -> Iterator[Any]:
    """A running browser."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium()
    with sync.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield running
        finally:
            running.close()


@contextmanager
def opened(
    running: Any, path: Path, *, theme: str = "light", width: int = 1200, height: int = 900
) -> Iterator[tuple[Any, Seen]]:
    """A page opened from a file, once its scripts have started; and what it did."""
    context = running.new_context(
        color_scheme=theme, viewport={"width": width, "height": height}, reduced_motion="reduce"
    )
    page, seen = context.new_page(), Seen()
    page.set_default_timeout(20_000)
    page.on("console", lambda said: _note(seen, said))
    page.on("pageerror", lambda error: seen.problems.append(f"error: {error}"))
    page.on("request", lambda request: seen.requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    try:
        yield page, seen
    finally:
        context.close()


@contextmanager
def page_at(
    browsing: Any, site: Any, path: str, *, theme: str = "light", width: int = 1200
) -> Iterator[Any]:
    """A page of a server on loopback; errors and requests to anywhere else fail the test."""
    context = browsing.new_context(
        color_scheme=theme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    problems: list[str] = []
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else 0)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda r: None if r.url.startswith((site.url, "data:")) else problems.append(r.url),
    )
    page.goto(site.url + path)
    page.wait_for_load_state("networkidle")
    try:
        yield page
        assert problems == []
    finally:
        context.close()


def violations(page: Any) -> list[str]:
    """The rules of axe-core that a page breaks, each with the first element that does."""
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe-core is not installed")
    script = Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    # Not as a script element: the content security policy of our pages forbids foreign ones.
    page.evaluate(script)
    found = page.evaluate("axe.run().then((seen) => seen.violations)")
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0].get('failureSummary')}"
        for each in found
    ]


def _note(seen: Seen, said: Any) -> None:
    if said.type in ("error", "warning"):
        seen.problems.append(f"{said.type}: {said.text}")


def contrast(page: Any, selector: str) -> float:
    """The contrast of an element's text against what is behind it, after WCAG."""
    return page.evaluate(CONTRAST, selector)


CONTRAST = """(selector) => {
  const element = document.querySelector(selector);
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const parts = [r, g, b].map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ink = numbers(getComputedStyle(element).color);
  let ground = element;
  let colour = [255, 255, 255];
  while (ground) {
    const found = numbers(getComputedStyle(ground).backgroundColor);
    if (found.length === 3 || found[3] > 0) { colour = found; break; }
    ground = ground.parentElement;
  }
  const [a, b] = [light(ink), light(colour)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""
