"""What stands in the pages: fenced blocks, and hidden comments that say how each is run.

A page is a list of steps in the order a reader meets them. Nothing is left out silently: a block
without a language, or a comment nobody knows, is an error with its place.

    ```yaml title="suite.yaml"       a block with a title is written as that file
    ```bash                          one command a line (`\\` goes on), exit code 0
    ```console                       `$ ` begins a command, what follows is its output
    ```python                        executed, one namespace for the page; with `>>>` a doctest
    ```json, ```toml                 parsed
    ```yaml                          what it is stands in a comment: <!-- docs: is suite -->
    ```text                          drawings and outputs

    <!-- docs: exit 1 -->            the exit code of the next block's commands, or one for each
    <!-- docs: not run: REASON -->   the next block is not run here
    <!-- docs: is KIND -->           what the next block is (KINDS of docs_runner)
    <!-- docs: serves OPTIONS -->    the next block's last command is a server, started with OPTIONS
    <!-- docs: every yaml is KIND -->  the same for all blocks below
    <!-- docs: start NAME … -->      the page begins with the files of tests/docs/start/NAME, …
    <!-- docs: first COMMANDS -->    commands a reader of this page has run before
"""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMENT = re.compile(r"^ *<!-- docs: *(.*?) *-->\s*$", re.DOTALL)
FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<info>[^`]*)$")
TITLE = re.compile(r'title="([^"]+)"')
EVERY = "every yaml is"
FOR_A_BLOCK = ("exit", "not run", "is", "serves", EVERY)
FOR_THE_PAGE = ("start", "first")


class PageError(Exception):
    """A page that does not keep to the convention, or does not work."""


@dataclass(frozen=True)
class Command:
    """One command of a block, with the lines of output shown below it."""

    line: int
    text: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """A block, or a comment that stands for itself."""

    line: int
    language: str
    text: str
    title: str | None = None
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def commands(self) -> list[Command]:
        """The commands of a block or of a `first` comment."""
        if self.language == "console":
            return _console(self.text, self.line + 1)
        return _script(self.text, self.line + 1)

    def codes(self, count: int) -> list[int]:
        """The exit code expected of each command."""
        told = [int(code) for code in self.notes.get("exit", "0").split()]
        if len(told) not in (1, count):
            raise PageError(f"line {self.line}: {len(told)} exit codes for {count} commands")
        return told * count if len(told) == 1 else told


def pages() -> list[Path]:
    """Every page whose blocks are run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """How a page is called in messages."""
    return str(page.relative_to(ROOT))


def steps(page: Path) -> list[Step]:
    """The steps of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found: list[Step] = []
    notes: dict[str, str] = {}
    at = 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence:
            end = _closing(lines, at, fence)
            found.append(_block(lines[at + 1 : end], at + 1, fence, notes))
            notes = {EVERY: notes[EVERY]} if EVERY in notes else {}
            at = end + 1
        elif lines[at].lstrip().startswith("<!-- docs:"):
            end = next((n for n in range(at, len(lines)) if "-->" in lines[n]), None)
            if end is None:
                raise PageError(f"line {at + 1}: a comment without an end")
            word, rest = _comment("\n".join(lines[at : end + 1]), at + 1)
            if word in FOR_THE_PAGE:
                found.append(Step(at + 1, word, rest))
            else:
                notes[word] = rest
            at = end + 1
        else:
            at += 1
    if {*notes} - {EVERY}:
        raise PageError(f"a comment is followed by no block: {notes}")
    return found


def _closing(lines: list[str], at: int, fence: re.Match[str]) -> int:
    end = re.compile(rf"^ *{fence['marks']}`*\s*$")
    for number in range(at + 1, len(lines)):
        if end.match(lines[number]):
            return number
    raise PageError(f"line {at + 1}: a block without an end")


def _block(lines: list[str], line: int, fence: re.Match[str], notes: dict[str, str]) -> Step:
    info = fence["info"].strip()
    language, title = info.split(" ")[0], TITLE.search(info)
    text = "\n".join(each.removeprefix(fence["indent"]) for each in lines) + "\n"
    return Step(line, language, text, title[1] if title else None, notes)


def _comment(text: str, line: int) -> tuple[str, str]:
    match = COMMENT.match(text)
    for word in (*FOR_A_BLOCK, *FOR_THE_PAGE):
        if match and re.match(rf"{word}\b", match[1]):
            rest = match[1].removeprefix(word).removeprefix(":").strip()
            if word == "not run" and len(rest.split()) < 2:
                raise PageError(f"line {line}: `not run` needs a reason")
            return word, rest
    raise PageError(f"line {line}: no such comment: {text.strip()}")


def _script(text: str, line: int) -> list[Command]:
    found: list[Command] = []
    waiting = ""
    for number, each in enumerate(text.splitlines(), line):
        whole = waiting + each.strip()
        waiting = ""
        if whole.endswith("\\"):
            waiting = whole[:-1]
        elif whole and not whole.startswith("#"):
            found.append(Command(number, _without_comment(whole)))
    return found


def _console(text: str, line: int) -> list[Command]:
    found: list[Command] = []
    more = False
    for number, each in enumerate(text.splitlines(), line):
        if each.startswith("$ ") or more:
            words = each.removeprefix("$ ").strip()
            start = found.pop().text if more else ""
            more = words.endswith("\\")
            found.append(Command(number, _without_comment(start + words.removesuffix("\\"))))
        elif not found:
            raise PageError(f"line {number}: output before any command (`$ …`)")
        elif each.strip():
            last = found[-1]
            found[-1] = Command(last.line, last.text, (*last.shown, each))
    return found


def _without_comment(command: str) -> str:
    """The command alone: what follows a `#` outside of quotes is for the reader."""
    return re.sub(r"""^((?:[^'"#]|'[^']*'|"[^"]*"|(?<=\S)#)*?)\s+#.*$""", r"\1", command).rstrip()


def words(command: str) -> list[str] | None:
    """The words of a command that needs no shell; None when it has something for a shell to do."""
    bare = re.sub(r"'[^']*'", "", command)
    unquoted = re.sub(r'"[^"]*"', "", bare)
    if re.search(r"[$`]", bare) or re.search(r"[|&;<>*?~()]", unquoted):
        return None
    return shlex.split(command)
