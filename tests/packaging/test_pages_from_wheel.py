"""README and tutorials, followed literally in an empty folder with the installed wheel."""

import os
import subprocess
from pathlib import Path

import pytest
from docs_blocks import Command, PageError, Step, name_of, pages, steps
from docs_runner import _compare

FOLLOWED = {name_of(p): p for p in pages() if p.name == "README.md" or "tutorials" in p.parts}
FOLLOWED.pop("docs/README.md")


class Reader:
    """A new user: an empty folder, the installed command, and a page to follow."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.folder, self.python = folder, python
        folder.mkdir()
        (folder.parent / "home").mkdir()
        kept = {k: os.environ[k] for k in ("LANG", "LC_ALL", "TMPDIR") if k in os.environ}
        self.env = {
            **kept,
            "PATH": f"{python.parent}{os.pathsep}/usr/local/bin{os.pathsep}/usr/bin:/bin",
            "HOME": str(folder.parent / "home"),
            "NO_COLOR": "1",
            "COLUMNS": "100",
            "PYTHONIOENCODING": "utf-8",
        }
        self.written = ""
        self.ran = 0

    def follow(self, step: Step) -> None:
        """Do what a block says; other blocks are for reading."""
        if step.language in ("start", "first"):
            raise PageError(f"line {step.line}: files that a reader does not have")
        if "not run" in step.notes:
            return
        if step.title is not None:
            path = self.folder / step.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
        elif step.language in ("bash", "console"):
            codes = step.codes(len(step.commands))
            for command, code in zip(step.commands, codes, strict=True):
                self.type(command, code)
        elif step.language == "python" and ">>> " not in step.text:
            # One session: what earlier blocks defined is there.
            self.written += step.text
            script = self.folder.parent / "session.py"
            script.write_text(f"import sys; sys.path.insert(0, '.')\n{self.written}")
            self.run([str(self.python), str(script)], 0, step.line, "python")

    def type(self, command: Command, code: int) -> None:
        if command.text == "pip install proctor":
            return  # the fixture has: pip installed this wheel
        said = self.run(["bash", "-c", command.text], code, command.line, command.text)
        _compare(command, said)

    def run(self, command: list[str], code: int, line: int, shown: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=200,
            check=False,
        )
        if done.returncode != code:
            raise PageError(f"line {line}: `{shown}`: {done.returncode}, not {code}\n{done.stdout}")
        self.ran += 1
        return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_page_works_as_printed(name: str, clean: Path, tmp_path: Path) -> None:
    """R-N13: README and every tutorial work from an installed wheel, without any extra, in an empty
    folder and in the printed order."""
    reader = Reader(clean, tmp_path / "work")
    for step in steps(FOLLOWED[name]):
        reader.follow(step)
    assert reader.ran >= 3


def test_the_readme_starts_with_the_installation() -> None:
    """R-N13: users find `pip install proctor` and `uvx proctor demo` first, contributors dev.py."""
    text = FOLLOWED["README.md"].read_text(encoding="utf-8")
    places = [text.index(part) for part in ("pip install proctor", "uvx proctor demo", "dev.py")]
    assert places == sorted(places)
    commands = [
        each.text
        for s in steps(FOLLOWED["README.md"])
        for each in s.commands
        if s.language == "bash"
    ]
    assert commands[0] == "pip install proctor"
    assert len(text.splitlines()) <= 170
    for part in ("red teaming", "TypeScript SDK", "Python 3.14", "macOS", "benchmarks/"):
        assert part in text
