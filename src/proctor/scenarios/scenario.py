"""A built scenario: what an agent sees, the truth, and a world or a question to run it on.

    <folder>/
      scenario.yaml          what the agent may see, in opaque names
      _ground_truth_.yaml    the truth, in the same names
      _visibility_.yaml      which files are visible; the true name of each opaque one
      _spec_.yaml            the case, world and solution, every value evaluated
      _manifest_.yaml        seed, parameters, source, the operations of the build; digests of
                             the other files
      timeline.yaml          the last run (`simulate`): what the agent did and saw, by step
      analysis.yaml          how it ended, the answer, the reasons of the score
      score.yaml             the score, and its parts

Guarantees: a folder is complete or absent, since it is written under another name and renamed.
Nothing in it depends on the clock, the machine or the location of the catalog.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from proctor.agents.base import Agent, AgentConfig, AgentRequest
from proctor.background import run_sync
from proctor.errors import ProctorError, did_you_mean
from proctor.files import remove_tree, write_atomic
from proctor.sanitize import json_value
from proctor.spec.located import SourceLocation
from proctor.spec.suite import problem_with_id, same_id
from proctor.spec.yaml_reader import MAX_BYTES, FileDialect, read, read_text
from proctor.user_dirs import user_folder
from proctor.worlds import EpisodeOutcome, Trajectory, episode

if TYPE_CHECKING:
    from proctor.scenarios.template import Template
    from proctor.spec.suite import Case
    from proctor.worlds import World

# -- the folder: write, copy and verify it -------------------------------------------------------

MANIFEST = "_manifest_.yaml"
SCENARIO = "scenario.yaml"
TRUTH = "_ground_truth_.yaml"
VISIBILITY = "_visibility_.yaml"
SPEC = "_spec_.yaml"

FILES = (MANIFEST, SCENARIO, TRUTH, VISIBILITY, SPEC)
OUTPUTS = {"simulate": "timeline.yaml", "analyze": "analysis.yaml", "score": "score.yaml"}
"""What a run of the scenario adds; not a part of the scenario, so not stored or compared."""
VISIBLE = (SCENARIO,)
HIDDEN = tuple(name for name in FILES if name not in VISIBLE)

FORMAT = 1
"""Version of the layout above; a reader refuses a newer one."""


def verified_files(path: Path) -> dict[str, bytes]:
    """Return the files of a folder; raise `ProctorError` when one is missing or was changed."""
    for name in FILES:
        if not (path / name).is_file():
            raise ProctorError(
                f"not a built scenario: it has no {name}",
                where=str(path),
                hint="`proctor scenario build NAME -o DIR` makes one",
            )
    dialect = FileDialect(portable=True)
    manifest: Any = read(path / MANIFEST, environ={}, dialect=dialect).value()
    if not isinstance(manifest, dict):
        raise ProctorError("expected a mapping", where=str(path / MANIFEST))
    fields = cast("dict[str, Any]", manifest)
    found, digests = fields.get("format"), fields.get("files")
    if not isinstance(found, int) or found > FORMAT:
        raise ProctorError(
            f"the folder has format {found!r}, this version reads up to {FORMAT}",
            where=str(path / MANIFEST),
            hint="upgrade proctor",
        )
    files = {name: _limited(path / name) for name in FILES}
    for name, content in files.items():
        expected = cast("Any", digests).get(name) if isinstance(digests, dict) else None
        # The manifest cannot hold its own digest.
        if name != MANIFEST and expected != digest(content):
            raise ProctorError(
                f"{name} is not as it was built",
                where=str(path / name),
                hint="build it again; a changed scenario is another template",
            )
    return files


def rendered(parts: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the five files from their values; the manifest gets the digests of the others."""
    files = {name: dump(parts[name]).encode() for name in FILES if name != MANIFEST}
    digests = {name: digest(files[name]) for name in sorted(files)}
    complete = {"format": FORMAT, **manifest, "files": digests}
    return {MANIFEST: dump(complete).encode(), **files}


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(content).hexdigest()


def write_folder(
    path: Path, files: Mapping[str, bytes], *, sync: bool = True, replace: bool = False
) -> None:
    """Write a folder completely or not at all; without `replace` it must be absent or empty."""
    if not replace:
        refuse_taken(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = write_aside(path.parent, files, sync=sync)
        try:
            if replace:
                replace_folder(aside, path)
            else:
                if path.exists():
                    path.rmdir()
                aside.rename(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise ProctorError(
            f"cannot write the folder: {error.strerror or error}", where=str(path)
        ) from None


def refuse_taken(path: Path) -> None:
    """Raise when a folder cannot be written because something is at its path."""
    try:
        taken = path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir())))
    except OSError as error:
        raise ProctorError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if taken:
        raise ProctorError(
            "there is something already", where=str(path), hint="name a folder that is not there"
        )


def write_aside(parent: Path, files: Mapping[str, bytes], *, sync: bool) -> Path:
    """Write files to a new hidden folder below `parent` and return it, to be renamed."""
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
    try:
        aside.chmod(0o755)  # mkdtemp allows the owner only
        for name, content in files.items():
            target = aside / name
            target.parent.mkdir(exist_ok=True)
            with target.open("xb") as file:
                file.write(content)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return aside


def replace_folder(aside: Path, path: Path) -> None:
    """Replace a folder by another."""
    # A folder cannot be renamed onto one with content: the old one is moved away first.
    old = Path(tempfile.mkdtemp(prefix=".old-", dir=path.parent))
    with contextlib.suppress(FileNotFoundError):
        path.rename(old / "folder")
    try:
        aside.rename(path)
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _limited(path: Path) -> bytes:
    """Return a file's content up to the size a reader accepts."""
    # Not through a link: a folder from elsewhere could point at any file of this machine.
    if path.is_symlink():
        raise ProctorError("a link has no place in a built scenario", where=str(path))
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProctorError(f"cannot be read: {error.strerror}", where=str(path)) from None


# -- YAML ------------------------------------------------------------------------------------------
#
# A built scenario is compared by its bytes, so the form is fixed here and not left to the defaults
# of a library: block style, keys in the given order, a text in quotes whenever YAML 1.1 or 1.2
# could read it as something else.

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
# Words that some version of YAML reads as a truth value, a number or nothing.
_WORDS = frozenset("y n yes no on off true false null inf nan".split())
# Characters that a reader may refuse, or take for the end of a line.
_ESCAPED = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def dump(value: Any) -> str:
    """Return a plain value as a YAML document."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31)
    # PyYAML puts an end mark after a document that is one bare value.
    return text if isinstance(value, dict | list) else text.removesuffix("...\n")


_QUICK: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # equal values are written out: whether they are one object is chance

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # a list is indented under its key

    def check_simple_key(self) -> bool:
        return True  # never `? key`, however long it is

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        # PyYAML would write emoji as numbers.
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        self.write_indicator(f'"{_ESCAPED.sub(self._escape, quoted)}"', True)

    @staticmethod
    def _escape(match: re.Match[str]) -> str:
        code = ord(match.group())
        return _NAMED.get(match.group()) or (f"\\u{code:04X}" if code > 0xFF else f"\\x{code:02X}")


def _text(_: _Dumper, value: str) -> yaml.ScalarNode:
    lines = value.removesuffix("\n").split("\n")
    style = '"'
    if _PLAIN.fullmatch(value) and value.casefold() not in _WORDS and len(value) <= 200:
        style = ""
    elif (
        "\n" in value
        and not value[0].isspace()
        and lines[-1]
        and all(line == line.rstrip() and not _ESCAPED.search(line) for line in lines)
    ):
        style = "|"  # unchanged when it is read back, and readable
    return yaml.ScalarNode("tag:yaml.org,2002:str", value, style=style)


def _float(_: _Dumper, value: float) -> yaml.ScalarNode:
    # The shortest digits that give the number back; with a point, which YAML 1.1 insists on.
    mantissa, sign, exponent = repr(value).partition("e")
    if sign and "." not in mantissa:
        mantissa += ".0"
    if sign and exponent[0] not in "+-":
        exponent = f"+{exponent}"
    return yaml.ScalarNode("tag:yaml.org,2002:float", f"{mantissa}{sign}{exponent}")


_Dumper.add_representer(str, _text)
_Dumper.add_representer(float, _float)


@lru_cache(maxsize=1)
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for builds without one; it is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="proctor-scenarios-")


# Cached, since all trials of a scenario read the same files.
@lru_cache(maxsize=256)
def _parsed(content: bytes, name: str) -> dict[str, Any]:
    # Portable: a build must not take in anything of this machine, such as its environment.
    return read_text(content.decode(), name, dialect=FileDialect(portable=True)).value()


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
            self._write_outputs()
        return self._path

    def _write_outputs(self) -> None:
        outcome = self._outcome
        if outcome is None or self._path is None:
            return
        steps = [
            {"step": number, **step._asdict()}
            for number, step in enumerate(outcome.trajectory.steps, 1)
        ]
        first = outcome.trajectory.first
        parts = (
            {"seed": outcome.trajectory.seed, "first_observation": first, "steps": steps},
            {"ended": outcome.ended, "answer": outcome.answer, "reason": outcome.reason},
            {"score": outcome.score, "parts": outcome.scores},
        )
        for (operation, name), value in zip(OUTPUTS.items(), parts, strict=True):
            # Actions and observations are values of any type. Nothing compares these files by
            # their bytes, so the quick writer will do; a scratch folder need not survive a crash.
            content = json_value({"operation": operation, **value})
            text = yaml.dump(content, Dumper=_QUICK, sort_keys=False, allow_unicode=True)
            if self.is_kept:
                write_atomic(self._path / name, text.encode())
            else:
                (self._path / name).write_text(text, encoding="utf-8")

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
            written["use"], written.get("options"), written.get("max_steps"), base_dir=self.folder
        )

    def run(self, steps: int | None = None, agent: Any = "random") -> EpisodeOutcome:
        """Run an agent once: an episode in the world, or an answer to the question.

        `agent` is a name, an import path, options, a callable, or `"solution"` for the scenario's
        own, which `"scripted"` follows too. The folder gets `timeline.yaml`, `analysis.yaml` and
        `score.yaml` of the last run; trials that count are those of `proctor run`.
        """
        return run_sync(self.arun(steps, agent), nested=True)

    async def arun(self, steps: int | None = None, agent: Any = "random") -> EpisodeOutcome:
        """Same as `run`, inside an event loop."""
        self._outcome = None  # so that a failed run does not leave the score of the one before
        self._outcome = await _attempt(self, agent, steps)
        self._write_outputs()
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


async def act(
    built: Built, agent: Agent, request: AgentRequest, steps: int | None = None
) -> EpisodeOutcome:
    """Let an agent act in the world of a built scenario."""
    written = built.world_spec or {}
    return await episode(
        lambda: cast("Any", built.world()),
        agent,
        request,
        seed=built.seed,
        max_steps=steps if steps is not None else written.get("max_steps"),
        scoring=written.get("scoring"),
        truth=built.truth,
    )


async def _attempt(built: Built, agent: Any, steps: int | None) -> EpisodeOutcome:
    """Run an episode in the world, or answer the question and evaluate the checks of the case."""
    config = _agent(built, agent)
    case = built.case()
    request = AgentRequest(case.input, case=built.name, trial=built.name, seed=built.seed)
    try:
        if built.world_spec is None:
            return await _answer(built, config, request)
        return await act(built, config.create(), request, steps)
    finally:
        # No stored trial refers to the agent's working folder.
        if request.used_workdir is not None:
            remove_tree(request.used_workdir)


async def _answer(built: Built, config: AgentConfig, request: AgentRequest) -> EpisodeOutcome:
    from proctor.checks.base import CheckContext
    from proctor.checks.evaluate import evaluate
    from proctor.gateway.observe import capture
    from proctor.spec.case_checks import checks_of

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
    # `scripted` without a script follows the solution, as in `proctor run`.
    if agent == SOLUTION or (agent == "scripted" and built.solution is not None):
        if built.solution is None:
            raise ProctorError(f"{built.name} has no solution")
        agent = built.solution["agent"]
    configuration = load_configuration()
    return resolve_agent(
        agent, configuration.settings.agents, built.folder, settings_dir=configuration.folder
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
    known = (*FILES, *OUTPUTS.values())
    others = sorted(path.name for path in source.iterdir() if path.name not in known)
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
            f"known: {', '.join(known[:12])}"
            if known
            else "store one first: proctor scenario store NAME DIR"
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


def default_store_folder() -> Path:
    """Return the folder of stored scenarios, in the user's data folder."""
    return user_folder("data", "scenarios")


def _place(name: str, root: Path | None) -> Path:
    if problem := problem_with_id(name):
        raise ProctorError(problem.replace("an id", "a name").replace("the id", "the name"))
    # Names that differ only by case would be one folder on some file systems, so they always are.
    return (root or default_store_folder()) / same_id(name)
