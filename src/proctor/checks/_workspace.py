"""Checks of the workspace after the agent: look at files, limit the changes, run a command there.

Which files there are and what changed is recorded before any check runs: what a command writes into
the workspace (caches, reports) is not the agent's.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast

import msgspec
from pydantic import BeforeValidator, Field, model_validator

from proctor.background import threads
from proctor.checks._answer import (
    OneOrMorePatterns,
    Schema,
    schema_problems,
    search,
    shown,
    validator_of,
)
from proctor.checks.base import (
    Check,
    CheckContext,
    CheckResult,
    Count,
    OneOrMoreTexts,
    PositiveNumber,
    failed,
    listed,
    not_judged,
    passed,
    unscored,
)
from proctor.formatting import and_more, clipped, last_line, plural
from proctor.sandbox.options import Command, SandboxPath, command_text
from proctor.sandbox.workspace import NotReadable, WorkspaceError, any_match, overlay, read_inside
from proctor.strict import Strict

if TYPE_CHECKING:
    from proctor.sandbox.place import TrialWorkspace

_SHOWN_PATHS = 5

Patterns = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(listed(), json_schema_input_type=str | list[str]),
]
"""One pattern of paths or several: `*` within a name, `**` across folders."""

_NO_WORKSPACE = not_judged(
    "unobserved", "the trial has no workspace: write `workspace:` in the case or the suite"
)


class CommandRule(Strict):
    """A command that is run in the workspace, and how it must end."""

    run: Command = Field(kw_only=False)
    """The command: a text is run by `sh`, a list is executed directly."""
    exit_code: int = 0
    """Its exit code."""
    contains: OneOrMoreTexts | None = None
    """Texts that must all be in its output."""
    matches: OneOrMorePatterns | None = None
    """Regular expressions that must each be found in its output."""
    timeout: PositiveNumber = 300.0
    """Seconds; a command that takes longer has failed."""
    add: Annotated[str, Field(min_length=1)] | None = None
    """Folder, relative to the suite, that is copied over the workspace first: tests that the agent
    must not see or change."""
    add_to: SandboxPath | None = None
    """Where `add` appears instead, such as `/tests`; see `at` of the workspace."""
    reward: SandboxPath | None = None
    """Folder in which the command writes `reward.json` or `reward.txt`, such as `/logs/verifier`:
    the number from 0 to 1 there is the score, and the exit code does not count."""

    @model_validator(mode="after")
    def _adds_something(self) -> Self:
        if self.add_to is not None and self.add is None:
            raise ValueError("`add_to` needs a folder to `add`")
        if self.reward is not None and self.model_fields_set & {"exit_code", "contains", "matches"}:
            raise ValueError("the reward alone is the result: leave out the other conditions")
        return self


class CommandPasses(CommandRule, Check):
    """A command succeeds in the workspace, such as its tests.

    Example: `CommandPasses("pytest -q")`, `CommandPasses(["make", "check"], timeout=60)`.
    """

    name: ClassVar[str] = "command"

    async def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        workspace: TrialWorkspace | None = ctx.workspace
        if workspace is None:
            return _NO_WORKSPACE
        command = command_text(self.run)
        out = None
        try:
            source = None if self.add is None else (ctx.case.folder or Path()) / self.add
            if source is not None and not source.is_dir():
                return unscored(f"there is no folder {source} to add")
            beside = None
            if source is not None and self.add_to is not None:
                beside = (source, self.add_to)
            elif source is not None:
                await threads.run(overlay, source, workspace.path)
            if beside is not None or self.reward is not None:
                done, out = await workspace.graded(
                    self.run, seconds=self.timeout, add=beside, results=self.reward
                )
            else:
                done = await workspace.run(self.run, seconds=self.timeout)
        except WorkspaceError as error:  # it could not be run, so nothing is known
            return unscored(str(error))
        last = "\n".join(done.output.strip().splitlines()[-20:])
        details: dict[str, Any] = {"expected": f"exit code {self.exit_code}", "actual": last}
        if done.code is None:
            return failed(f"`{command}` took longer than {self.timeout:g} s", **details)
        if self.reward is not None and out is not None:
            return await threads.run(_reward, out, last)
        if done.code != self.exit_code:
            line = clipped(last_line(last), 200)
            return failed(f"`{command}` exited with {done.code}: {line}".rstrip(": "), **details)
        wrong = _text_problem(done.output, self)
        if wrong:
            return failed(f"the output of `{command}` {wrong}", **details)
        return passed(f"`{command}` exited with {done.code}", **details)


def _reward(folder: Path, last: str) -> CheckResult:
    """Return the reward in a folder as a result; without one, nothing is known."""
    try:
        for name in ("reward.json", "reward.txt"):
            if (folder / name).exists():
                text = read_inside(folder, name).decode()
                found: Any = msgspec.json.decode(text) if name == "reward.json" else float(text)
                break
        else:
            line = clipped(last_line(last), 200)
            return unscored(f"no reward was written: {line}".rstrip(": "), actual=last)
        # Several rewards by name: the one that has no other, or their mean.
        rewards = cast("dict[str, float]", found if isinstance(found, dict) else {"reward": found})
        reward = float(rewards["reward"] if "reward" in rewards else fmean(rewards.values()))
    except (NotReadable, ValueError, TypeError, RecursionError, msgspec.DecodeError) as error:
        return unscored(f"the reward cannot be read: {error}", actual=last)
    details: dict[str, Any] = {"expected": "reward 1", "actual": rewards}
    if not 0 <= reward <= 1:
        return unscored(f"the reward {reward:g} is not within 0 to 1", **details)
    if reward < 1:
        return failed(f"reward {reward:g}", score=reward, **details)
    return passed("reward 1", **details)


def _text_problem(text: str, rule: CommandRule | FileRule) -> str:
    """Return what a text lacks; empty if nothing."""
    for wanted in rule.contains or ():
        if wanted not in text:
            return f"does not contain {shown(wanted)}"
    for pattern in rule.matches or ():
        if search(pattern, text, True) is None:
            return f"does not match {shown(pattern)}"
    return ""


class FileRule(Strict):
    """What must be true of a file in the workspace, or of all files that match a pattern."""

    path: Annotated[str, Field(min_length=1)] = Field(kw_only=False)
    """Path in the workspace; `*` matches within a name, `**` across folders."""
    exists: bool = True
    """Whether there must be such a file, or must not be."""
    contains: OneOrMoreTexts | None = None
    """Texts that must all be in it; case counts."""
    matches: OneOrMorePatterns | None = None
    """Regular expressions that must each be found in it; case counts."""
    json_schema: Schema | None = None
    """A JSON Schema it must be valid JSON for."""
    unchanged: bool = False
    """Whether the agent must have left it as it was."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rules = ("contains", "matches", "json_schema", "unchanged")
        if not self.exists and any(getattr(self, name) for name in rules):
            raise ValueError("a file that must not exist has no content to check")
        return self


class FileMatches(FileRule, Check):
    """A file exists in the workspace, with the right content, or unchanged.

    Example: `FileMatches("src/app.py", contains="def main")`, `FileMatches("tests/**",
    unchanged=True)`.
    """

    name: ClassVar[str] = "files"

    @cached_property
    def _validator(self) -> Any:
        return validator_of(self.json_schema or {})

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        workspace: TrialWorkspace | None = ctx.workspace
        if workspace is None or workspace.changes is None:
            return _NO_WORKSPACE
        changed = [path for path in workspace.changes.paths if any_match([self.path], path)]
        if self.unchanged and changed:
            return failed(f"changed: {and_more(changed, _SHOWN_PATHS, str)}", actual=changed)
        found = [path for path in workspace.changes.files if any_match([self.path], path)]
        if not self.exists:
            if found:
                return failed(f"there is {and_more(found, _SHOWN_PATHS, str)}", actual=found)
            return passed(f"there is no {self.path}")
        if not found:
            return failed(f"there is no {self.path}", expected=self.path)
        if self.contains or self.matches or self.json_schema is not None:
            for path in found:
                if wrong := self._problem(workspace.path, path):
                    return failed(wrong, expected=self.path)
        return passed(f"{and_more(found, _SHOWN_PATHS, str)}: as expected")

    def _problem(self, root: Path, path: str) -> str:
        try:
            text = read_inside(root, path).decode()
        except NotReadable as error:
            return str(error)
        except UnicodeDecodeError:
            return f"{path} is not UTF-8 text"
        if wrong := _text_problem(text, self):
            return f"{path} {wrong}"
        if self.json_schema is not None:
            try:
                document = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError) as error:
                return f"{path} is not JSON: {error}"
            if problems := schema_problems(self._validator, document):
                return f"{path}: {problems[0]}"
        return ""


class DiffRule(Strict):
    """What an agent may change in its workspace."""

    only: Patterns | None = Field(default=None, kw_only=False)
    """Patterns of the paths that may change; all others must not."""
    forbidden: Patterns | None = None
    """Patterns of paths that must not change."""
    max_files: Count | None = None
    """The most files that may change; 0 for none."""
    max_lines: Count | None = None
    """The most lines that may be added and removed, together."""

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if not self.model_fields_set & DiffRule.model_fields.keys():
            raise ValueError(f"write at least one of {', '.join(DiffRule.model_fields)}")
        return self


class DiffWithin(DiffRule, Check):
    """The agent changed only what it may change.

    Example: `DiffWithin("src/**", max_lines=50)`.
    """

    name: ClassVar[str] = "diff"

    def evaluate(self, ctx: CheckContext[Any], /) -> CheckResult:
        """Judge one trial."""
        workspace: TrialWorkspace | None = ctx.workspace
        changes = None if workspace is None else workspace.changes
        if changes is None:
            return _NO_WORKSPACE
        paths = list(changes.paths)
        lines = changes.added + changes.removed
        others = [each for each in paths if self.only and not any_match(self.only, each)]
        denied = [each for each in paths if any_match(self.forbidden or (), each)]
        details: dict[str, Any] = {"actual": paths}
        if others or denied:
            wrong = and_more(list(dict.fromkeys([*denied, *others])), _SHOWN_PATHS, str)
            return failed(f"changed what must not change: {wrong}", **details)
        if self.max_files is not None and len(paths) > self.max_files:
            what = f"{plural(len(paths), 'file')} changed, at most {self.max_files} may"
            return failed(what, **details)
        if self.max_lines is not None and lines > self.max_lines:
            return failed(f"{lines} lines changed, at most {self.max_lines} may", **details)
        return passed(f"{plural(len(paths), 'file')}, {plural(lines, 'line')} changed", **details)
