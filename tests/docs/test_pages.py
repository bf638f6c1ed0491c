"""Every code block of the documentation works as printed."""

import contextlib
import json
import multiprocessing
from pathlib import Path

import docs_runner
import pytest
from docs_blocks import PageError, name_of, pages, steps

PATIENCE = 280
"""Seconds for one page on a busy machine; below the time limit of a test."""

PAGES = {name_of(page): page for page in pages()}


def left_out() -> list[tuple[str, int, str]]:
    """The blocks that are not run: page, line, reason."""
    found: list[tuple[str, int, str]] = []
    for name, page in PAGES.items():
        with contextlib.suppress(PageError):  # told by the test of the page itself
            found += [
                (name, s.line, s.notes["not run"]) for s in steps(page) if "not run" in s.notes
            ]
    return found


@pytest.fixture(scope="session")
def clean_process():
    """Makes processes for pages: forked from one that has our imports and no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["docs_runner"])
    return context.Process


@pytest.mark.parametrize("name", PAGES)
def test_every_block_works(name: str, tmp_path: Path, clean_process, record_property) -> None:
    """R-S1 R-R11: what a page tells its reader to write and run does what the page says."""
    report = tmp_path / "report.json"
    child = clean_process(
        target=docs_runner.run_page, args=(PAGES[name], tmp_path / "work", report)
    )
    child.start()
    child.join(PATIENCE)
    if child.is_alive():
        child.kill()
        pytest.fail(f"{name} did not end within {PATIENCE} s")
    assert report.exists(), f"{name}: the process of the page ended with {child.exitcode}"
    told = json.loads(report.read_text(encoding="utf-8"))
    record_property("cpu_seconds", told["cpu_seconds"])
    assert told["problem"] is None, f"{name}, {told['problem']}"


@pytest.mark.parametrize(("page", "line", "why"), left_out())
def test_blocks_that_are_not_run(page: str, line: int, why: str) -> None:
    """Each block that cannot run here is listed with its reason."""
    pytest.skip(f"{page}:{line} is not run: {why}")
