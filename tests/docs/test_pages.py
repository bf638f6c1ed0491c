"""Every code block of the documentation works as printed."""

import contextlib
import json
import multiprocessing
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import docs_runner
import pytest
from docs_blocks import PageError, name_of, pages, steps
from forking import PRELOADED

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
    context.set_forkserver_preload(["docs_runner", *PRELOADED])
    with pytest.MonkeyPatch.context() as patch:
        # Python 3.11 does not hand `sys.path` on to the process that preloads.
        patch.setenv("PYTHONPATH", str(Path(docs_runner.__file__).parent))
        forkserver.ensure_running()
    return context.Process


def told_by(page: Path, tmp_path: Path, clean_process) -> dict[str, Any]:
    """Run a page in a process of its own: what went wrong, and how many of its steps ran."""
    report = tmp_path / "report.json"
    child = clean_process(target=docs_runner.run_page, args=(page, tmp_path / "work", report))
    child.start()
    child.join(PATIENCE)
    if child.is_alive():
        child.kill()
        pytest.fail(f"{page.name} did not end within {PATIENCE} s")
    assert report.exists(), f"{page.name}: the process of the page ended with {child.exitcode}"
    return json.loads(report.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PAGES)
def test_every_block_works(name: str, tmp_path: Path, clean_process) -> None:
    """R-S1 R-R11: what a page tells its reader to write and run does what the page says."""
    problem = told_by(PAGES[name], tmp_path, clean_process)["problem"]
    assert problem is None, f"{name}, {problem}"


@pytest.mark.parametrize(("page", "line", "why"), left_out())
def test_blocks_that_are_not_run(page: str, line: int, why: str) -> None:
    """Each block that cannot run here is listed with its reason."""
    pytest.skip(f"{page}:{line} is not run: {why}")


BAD_PAGES = {
    "```bash\nproctor validate none.yaml\n```": "ended with 2, not 0",
    "<!-- docs: exit 1 -->\n```bash\nproctor --version\n```": "ended with 0, not 1",
    "```console\n$ proctor --version\nproctor 9.9\n```": "does not print",
    "```python\n1 / 0\n```": "ZeroDivisionError",
    "```python\n>>> 1 + 1\n3\n```": "Expected",
    "```yaml\na: 1\n```": "say what it is",
    "<!-- docs: is suite -->\n```yaml\ncases: []\n```": "no agent",
    "```json\n{a}\n```": "Expecting",
    "```text\nproctor run suite.yaml\n```": "commands are `bash`",
    "```\nproctor run suite.yaml\n```": "without a language",
    "```cobol\nDISPLAY.\n```": "nothing is known",
    '```bash\npip install "proctor[magic]"\n```': "no such extra",
    "<!-- docs: not run -->\n```bash\nproctor\n```": "needs a reason",
    "<!-- docs: exitt 1 -->\n```bash\nproctor\n```": "no such comment",
    "<!-- docs: exit 1 -->": "followed by no block",
    "```bash\nproctor --version": "without an end",
}
"""A page → a part of what must be said of it."""


@pytest.mark.parametrize(("text", "said"), BAD_PAGES.items())
def test_what_does_not_work_is_seen(text: str, said: str, tmp_path: Path, clean_process) -> None:
    """The test of the pages itself: nothing broken passes, nothing is left out silently."""
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{text}\n", encoding="utf-8")
    assert said in str(told_by(page, tmp_path, clean_process)["problem"])


def test_a_page_that_works(tmp_path: Path, clean_process) -> None:
    """Files, commands, output and Python of a page follow each other in one folder."""
    page = tmp_path / "page.md"
    page.write_text(
        '```yaml title="a/b.txt"\nhello\n```\n```console\n$ cat a/b.txt | tr a-z A-Z\nHELLO\n```\n'
        '```python\nimport proctor\n\nx = open("a/b.txt").read()\n```\n```python\nassert x\n```\n',
        encoding="utf-8",
    )
    assert told_by(page, tmp_path, clean_process) == {"problem": None, "ran": 4}
