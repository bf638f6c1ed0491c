"""A built scenario: what it shows, what is so, and a world or a question to put an agent to."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from proctor.agents.base import AgentConfig, AgentRequest
from proctor.background import run_sync
from proctor.errors import ProctorError, did_you_mean
from proctor.scenarios._built_folder import (
    FILES,
    MANIFEST,
    SCENARIO,
    SPEC,
    TRUTH,
    VISIBILITY,
    VISIBLE,
    BuiltFolder,
    replace_folder,
    write_aside,
    write_folder,
)
from proctor.spec.located import SourceLocation, SpecError, plain
from proctor.spec.suite import problem_with_id, same_id
from proctor.spec.yaml_reader import FileDialect, read_text
from proctor.user_dirs import user_folder
from proctor.worlds import EpisodeOutcome, Trajectory, episode

if TYPE_CHECKING:
    from proctor.scenarios.template import Template
    from proctor.spec.suite import Case
    from proctor.worlds import World


AS_WRITTEN = FileDialect(portable=True)
"""What was built is read as it stands: nothing of this machine is put in."""


@lru_cache(maxsize=1)
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for builds that stand nowhere else; it goes when the process does."""
    return tempfile.TemporaryDirectory(prefix="proctor-scenarios-")


@lru_cache(maxsize=256)
def _said(content: bytes, name: str) -> dict[str, Any]:
    """What a file says. Trials of one scenario ask the same files again and again."""
    document = read_text(content.decode(), name, dialect=AS_WRITTEN)
    if document.problems or document.tree is None:
        raise SpecError(document.problems)
    return plain(document.tree)


class Built:
    """One built scenario; `template` is what it came from, where that is known.

    Everything it says comes from its files, so that one brought back from a store is the same.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        template: Template | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self._path = path
        self.template = template
        self._files = dict(files) if files is not None else BuiltFolder.open(self.path).contents()
        self._outcome: EpisodeOutcome | None = None

    @classmethod
    def open(cls, path: str | Path) -> Built:
        """A built scenario from its folder, which must be as it was built."""
        return cls(Path(path))

    @property
    def path(self) -> Path:
        """Its folder. One that stands nowhere is written when it is asked for, until the end."""
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(dir=_scratch().name)) / "scenario"
            write_folder(self._path, self._files, sync=False)
        return self._path

    @property
    def is_kept(self) -> bool:
        """Whether its folder outlives the process."""
        return self._path is not None and not self._path.is_relative_to(_scratch().name)

    # -- what it says ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The id of its case: `a.b`, or `a.b@variant`."""
        return str(self.manifest["name"])

    @property
    def seed(self) -> int:
        """The seed it was built with, and its world is reset with."""
        return int(self.manifest["seed"])

    @property
    def params(self) -> dict[str, Any]:
        """The value of every parameter."""
        return cast("dict[str, Any]", self.spec["params"])

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Seed, source and operations of the build."""
        return self._read(MANIFEST)

    @cached_property
    def scenario(self) -> dict[str, Any]:
        """What the agent may see, in opaque names."""
        return self._read(SCENARIO)

    @cached_property
    def truth(self) -> dict[str, Any]:
        """What is so, in the same names."""
        return self._read(TRUTH)

    @cached_property
    def visibility(self) -> dict[str, Any]:
        """Which files are visible, and what each opaque name stands for."""
        return self._read(VISIBILITY)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The case, the world and the solution, every value worked out."""
        return self._read(SPEC)

    @property
    def names(self) -> dict[str, str]:
        """Opaque name → true name."""
        groups = cast("dict[str, dict[str, str]]", self.visibility["names"])
        return {opaque: true for group in groups.values() for opaque, true in group.items()}

    @property
    def solution(self) -> dict[str, Any] | None:
        """Who solves it (`agent`), and how well (`min_score`)."""
        return self.spec.get("solution")

    @property
    def random(self) -> dict[str, Any] | None:
        """What chance reaches at most (`max_score`)."""
        return self.spec.get("random")

    @property
    def world_spec(self) -> dict[str, Any] | None:
        """The world as it was written: `use`, `options`, `max_steps`, `scoring`."""
        return self.spec.get("world")

    @property
    def folder(self) -> Path:
        """What import paths in it start from: the template's folder, while there is one."""
        return self.path if self.template is None else self.template.folder

    def _read(self, name: str) -> dict[str, Any]:
        # A copy: whoever changes what one trial was given must not change the next one's.
        return copy.deepcopy(_said(self._files[name], name))

    # -- what it is for -------------------------------------------------------------------------

    def case(self) -> Case:
        """The case: what the agent is asked is what it may see."""
        from proctor.spec.suite import Case

        seen: Any = self.scenario
        asked = seen["input"] if self.spec["asks"] == "input" else seen
        case = Case.model_validate({**self.spec["case"], "input": asked})
        source = self.path / SPEC if self.template is None else self.template.path
        case.put(SourceLocation(str(source), 1, 1), self.folder)
        return case

    def world(self) -> World | None:
        """A fresh world to act in; None when it is a question."""
        written = self.world_spec
        if written is None:
            return None
        from proctor.worlds import make_world

        return make_world(
            written["use"],
            written.get("options"),
            written.get("max_steps"),
            base_dir=self.folder,
        )

    def run(self, steps: int | None = None, agent: Any = "random") -> EpisodeOutcome:
        """Put an agent to it once: an episode in its world, or an answer to its question.

        `agent` is a name, an import path, options, a callable, or `"solution"` for its own.
        """
        return run_sync(self.arun(steps, agent), nested=True)

    async def arun(self, steps: int | None = None, agent: Any = "random") -> EpisodeOutcome:
        """The same, inside an event loop."""

        self._outcome = None
        self._outcome = await attempt(self, agent, steps)
        return self._outcome

    def score(self) -> float | None:
        """The score of the last run, 0 to 1; None before one, or when it could not be scored."""
        return None if self._outcome is None else self._outcome.score

    def visible_to(self, folder: str | Path) -> Path:
        """Copy what an agent may see, and nothing else, into a folder of its own."""
        target = Path(folder)
        write_folder(target, {name: self._files[name] for name in VISIBLE}, sync=False)
        return target

    def copy_to(self, folder: str | Path) -> Built:
        """The same scenario in another folder."""
        write_folder(Path(folder), self._files)
        return Built(Path(folder), template=self.template, files=self._files)

    def same_as(self, other: Built) -> bool:
        """Whether the two are equal to the byte."""
        return all(self._files[name] == other._files[name] for name in FILES)


# Put an agent to a built scenario once, keeping nothing.
#
# For those who write scenarios and want to see one at work; trials that count are `proctor
# run`'s.


SOLUTION = "solution"
"""The name of the scenario's own solution, where an agent is asked for."""


async def attempt(built: Built, agent: Any, steps: int | None = None) -> EpisodeOutcome:
    """One episode in its world, or one answer to its question with the checks of its case."""
    config = _agent(built, agent)
    case = built.case()
    request = AgentRequest(case.input, case=built.name, trial=built.name, seed=built.seed)
    try:
        written = built.world_spec
        if written is None:
            return await _answer(built, config, request)
        return await episode(
            lambda: cast("Any", built.world()),
            config.create(),
            request,
            seed=built.seed,
            max_steps=steps if steps is not None else written.get("max_steps"),
            scoring=written.get("scoring"),
            truth=built.truth,
        )
    finally:
        if request.used_workdir is not None:
            shutil.rmtree(request.used_workdir, ignore_errors=True)


async def _answer(built: Built, config: AgentConfig, request: AgentRequest) -> EpisodeOutcome:
    from proctor.checks.base import CheckContext
    from proctor.checks.evaluate import evaluate
    from proctor.spec.case_checks import checks_of
    from proctor.trace.capture import capture

    case = built.case()
    with capture(case.input) as trace:
        reply = await config.create().run(request)
        trace.response = reply.answer
    context = CheckContext[Any](case, reply.trace or trace, reply.answer)
    results = await evaluate(checks_of(case), context)
    return EpisodeOutcome(
        trajectory=Trajectory(built.seed),
        answer=reply.answer,
        ended="answered",
        score=results.score,
        reason="; ".join(f"{each.id}: {each.reason}" for each in results),
    )


def _agent(built: Built, agent: Any) -> AgentConfig:
    from proctor.agents.registry import resolve_agent
    from proctor.spec.config import load_configuration

    if isinstance(agent, AgentConfig):
        return agent
    if agent == SOLUTION:
        if built.solution is None:
            raise ProctorError(f"{built.name} does not say how it is solved")
        agent = built.solution["agent"]
    configuration = load_configuration()
    return resolve_agent(
        agent,
        configuration.settings.agents,
        built.folder,
        settings_dir=configuration.folder,
    )


# Built scenarios kept under a name, and brought back.
#
# Promise: what is fetched is to the byte what was stored; a name never leads out of the store; a
# stored folder is whole or absent, and never replaced by another unless that is asked for.


def store(
    name: str, folder: str | Path | Built, *, replace: bool = False, root: Path | None = None
) -> Path:
    """Keep a built scenario under a name; the folder it is kept in.

    Storing the same again is nothing; another one under the name needs `replace`.
    """
    target = _place(name, root)
    source = Path(folder.path if isinstance(folder, Built) else folder)
    if not source.is_dir():
        raise ProctorError("there is no such folder", where=str(source))
    built = BuiltFolder.open(source)
    others = sorted(path.name for path in source.iterdir() if path.name not in FILES)
    if others:
        raise ProctorError(
            f"{others[0]!r} is no part of a built scenario",
            where=str(source),
            hint="store the folder as it was built",
        )
    files = built.contents()
    if not target.exists():
        write_folder(target, files)
    elif _held(target) != files:
        if not replace:
            raise ProctorError(
                f"there is another scenario under the name {name!r}",
                where=str(target),
                hint="choose another name, or replace it with --force",
            )
        _replaced(target, files)
    return target


def fetch(name: str, out: str | Path | None = None, *, root: Path | None = None) -> Path:
    """The folder of a stored scenario, verified; copied to `out` when that is given."""
    stored = _place(name, root)
    if not stored.is_dir():
        known = stored_names(root)
        hint = did_you_mean(name, known) or (
            f"there are {', '.join(known[:12])}" if known else "`proctor store NAME DIR` keeps one"
        )
        raise ProctorError(f"nothing is stored under the name {name!r}", hint=hint)
    folder = BuiltFolder.open(stored)
    if out is None:
        return stored
    write_folder(Path(out), folder.contents())
    return Path(out)


def stored_names(root: Path | None = None) -> list[str]:
    """What is stored, by name."""
    place = root or default_store_folder()
    if not place.is_dir():
        return []
    return sorted(path.name for path in place.iterdir() if not path.name.startswith("."))


def default_store_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where scenarios are kept: the user's data folder."""
    return user_folder("data", "scenarios", environ=environ)


def _place(name: str, root: Path | None) -> Path:
    if problem := problem_with_id(name):
        raise ProctorError(problem.replace("an id", "a name").replace("the id", "the name"))
    # Two names that some file system cannot tell apart are one.
    return (root or default_store_folder()) / same_id(name)


def _held(stored: Path) -> dict[str, bytes] | None:
    try:
        return BuiltFolder.open(stored).contents()
    except ProctorError:
        return None


def _replaced(target: Path, files: Mapping[str, bytes]) -> None:
    try:
        aside = write_aside(target.parent, files, sync=True)
        try:
            replace_folder(aside, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise ProctorError(
            f"cannot replace the folder: {error.strerror or error}", where=str(target)
        ) from None
