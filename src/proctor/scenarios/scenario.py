"""A built scenario: what an agent sees, the truth, and a world or a question to run it on."""

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
    verified_files,
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


@lru_cache(maxsize=1)
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for builds without one; it is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="proctor-scenarios-")


# Cached, since all trials of a scenario read the same files.
@lru_cache(maxsize=256)
def _parsed(content: bytes, name: str) -> dict[str, Any]:
    # Portable: a build must not take in anything of this machine, such as its environment.
    document = read_text(content.decode(), name, dialect=FileDialect(portable=True))
    if document.problems or document.tree is None:
        raise SpecError(document.problems)
    return plain(document.tree)


class Built:
    """One built scenario; `template` is its source, if known.

    Everything is read from its files, so that a stored and fetched scenario is the same.
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
        self._files = dict(files) if files is not None else verified_files(self.path)
        self._outcome: EpisodeOutcome | None = None

    @classmethod
    def open(cls, path: str | Path) -> Built:
        """Open a built scenario from its folder, which must be unchanged."""
        return cls(Path(path))

    @property
    def path(self) -> Path:
        """The folder; a build without one is written on first use, until the process ends."""
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(dir=_scratch().name)) / "scenario"
            write_folder(self._path, self._files, sync=False)
        return self._path

    @property
    def is_kept(self) -> bool:
        """Whether the folder outlives the process."""
        return self._path is not None and not self._path.is_relative_to(_scratch().name)

    # -- content --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The id of the case: `a.b`, or `a.b@variant`."""
        return str(self.manifest["name"])

    @property
    def seed(self) -> int:
        """The seed of the build and of its world."""
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
        """The part that the agent may see, in opaque names."""
        return self._read(SCENARIO)

    @cached_property
    def truth(self) -> dict[str, Any]:
        """The truth, in the same names."""
        return self._read(TRUTH)

    @cached_property
    def visibility(self) -> dict[str, Any]:
        """The visible files, and the true name of each opaque one."""
        return self._read(VISIBILITY)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The case, the world and the solution, every value evaluated."""
        return self._read(SPEC)

    @property
    def names(self) -> dict[str, str]:
        """Opaque name → true name."""
        groups = cast("dict[str, dict[str, str]]", self.visibility["names"])
        return {opaque: true for group in groups.values() for opaque, true in group.items()}

    @property
    def solution(self) -> dict[str, Any] | None:
        """The agent that solves it (`agent`), and its minimum score (`min_score`)."""
        return self.spec.get("solution")

    @property
    def random(self) -> dict[str, Any] | None:
        """The maximum score of random actions (`max_score`)."""
        return self.spec.get("random")

    @property
    def world_spec(self) -> dict[str, Any] | None:
        """The world as specified: `use`, `options`, `max_steps`, `scoring`."""
        return self.spec.get("world")

    @property
    def folder(self) -> Path:
        """The folder that import paths are relative to: the template's, if known."""
        return self.path if self.template is None else self.template.folder

    def _read(self, name: str) -> dict[str, Any]:
        # A copy: a trial that changes its scenario must not change that of the next one.
        return copy.deepcopy(_parsed(self._files[name], name))

    # -- use ------------------------------------------------------------------------------------

    def case(self) -> Case:
        """Return the case; its input is the part that the agent may see."""
        from proctor.spec.suite import Case

        visible: Any = self.scenario
        request = visible["input"] if self.spec["asks"] == "input" else visible
        case = Case.model_validate({**self.spec["case"], "input": request})
        source = self.path / SPEC if self.template is None else self.template.path
        case.put(SourceLocation(str(source), 1, 1), self.folder)
        return case

    def world(self) -> World | None:
        """Return a new world to act in; None when it is a question."""
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
        """Run an agent once: an episode in the world, or an answer to the question.

        `agent` is a name, an import path, options, a callable, or `"solution"` for the scenario's
        own. Nothing is stored: trials that count are those of `proctor run`.
        """
        return run_sync(self.arun(steps, agent), nested=True)

    async def arun(self, steps: int | None = None, agent: Any = "random") -> EpisodeOutcome:
        """Same as `run`, inside an event loop."""
        self._outcome = None  # so that a failed run does not leave the score of the one before
        self._outcome = await _attempt(self, agent, steps)
        return self._outcome

    def score(self) -> float | None:
        """Return the score of the last run, 0 to 1; None without one, or if it has no score."""
        return None if self._outcome is None else self._outcome.score

    def visible_to(self, folder: str | Path) -> Path:
        """Copy the files that an agent may see, and no others, to a folder."""
        target = Path(folder)
        write_folder(target, {name: self._files[name] for name in VISIBLE}, sync=False)
        return target

    def copy_to(self, folder: str | Path) -> Built:
        """Copy the scenario to another folder and return it."""
        write_folder(Path(folder), self._files)
        return Built(Path(folder), template=self.template, files=self._files)

    def same_as(self, other: Built) -> bool:
        """Return whether both have the same bytes."""
        return all(self._files[name] == other._files[name] for name in FILES)


SOLUTION = "solution"
"""The name of the scenario's own solution, in place of an agent."""


async def _attempt(built: Built, agent: Any, steps: int | None) -> EpisodeOutcome:
    """Run an episode in the world, or answer the question and evaluate the checks of the case."""
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
        # No stored trial refers to the agent's working folder.
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
    trace.observe(*config.observes)
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
            raise ProctorError(f"{built.name} has no solution")
        agent = built.solution["agent"]
    configuration = load_configuration()
    return resolve_agent(
        agent,
        configuration.settings.agents,
        built.folder,
        settings_dir=configuration.folder,
    )


# Built scenarios stored under a name. A fetched one has the bytes of the stored one; a name never
# leads out of the store; a stored folder is complete or absent, and is replaced by another one only
# on request.


def store(
    name: str, folder: str | Path | Built, *, replace: bool = False, root: Path | None = None
) -> Path:
    """Store a built scenario under a name and return its folder.

    Storing the same again does nothing; another one under the name needs `replace`.
    """
    target = _place(name, root)
    source = Path(folder.path if isinstance(folder, Built) else folder)
    if not source.is_dir():
        raise ProctorError("there is no such folder", where=str(source))
    files = verified_files(source)
    # Files besides the five would be missing when it is fetched.
    others = sorted(path.name for path in source.iterdir() if path.name not in FILES)
    if others:
        raise ProctorError(
            f"{others[0]!r} is no part of a built scenario",
            where=str(source),
            hint="store the folder as it was built",
        )
    if not target.exists():
        write_folder(target, files)
        return target
    try:
        stored = verified_files(target)
    except ProctorError:  # damaged: treated as another scenario
        stored = None
    if stored != files:
        if not replace:
            raise ProctorError(
                f"there is another scenario under the name {name!r}",
                where=str(target),
                hint="choose another name, or replace it with --force",
            )
        write_folder(target, files, replace=True)
    return target


def fetch(name: str, out: str | Path | None = None, *, root: Path | None = None) -> Path:
    """Return the folder of a stored scenario, verified; copy it to `out` if that is given."""
    stored = _place(name, root)
    if not stored.is_dir():
        known = stored_names(root)
        hint = did_you_mean(name, known) or (
            f"there are {', '.join(known[:12])}" if known else "`proctor store NAME DIR` keeps one"
        )
        raise ProctorError(f"nothing is stored under the name {name!r}", hint=hint)
    files = verified_files(stored)
    if out is None:
        return stored
    write_folder(Path(out), files)
    return Path(out)


def stored_names(root: Path | None = None) -> list[str]:
    """Return the names of all stored scenarios."""
    place = root or default_store_folder()
    if not place.is_dir():
        return []
    return sorted(path.name for path in place.iterdir() if not path.name.startswith("."))


def default_store_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of stored scenarios, in the user's data folder."""
    return user_folder("data", "scenarios", environ=environ)


def _place(name: str, root: Path | None) -> Path:
    if problem := problem_with_id(name):
        raise ProctorError(problem.replace("an id", "a name").replace("the id", "the name"))
    # Names that differ only by case would be one folder on some file systems, so they always are.
    return (root or default_store_folder()) / same_id(name)
