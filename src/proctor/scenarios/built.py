"""A built scenario: what it shows, what is so, and a world or a question to put an agent to."""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from proctor.scenarios.folder import (
    FILES,
    MANIFEST,
    SCENARIO,
    SPEC,
    TRUTH,
    VISIBILITY,
    VISIBLE,
    BuiltFolder,
    write_folder,
)
from proctor.spec.problems import Place, SpecError
from proctor.spec.reader import Dialect, read_text
from proctor.spec.tree import plain

if TYPE_CHECKING:
    from proctor.scenarios.template import Template
    from proctor.spec.models import Case
    from proctor.worlds import Outcome, World

AS_WRITTEN = Dialect(portable=True)
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
        self._outcome: Outcome | None = None

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
        from proctor.spec.models import Case

        seen: Any = self.scenario
        asked = seen["input"] if self.spec["asks"] == "input" else seen
        case = Case.model_validate({**self.spec["case"], "input": asked})
        source = self.path / SPEC if self.template is None else self.template.path
        case.put(Place(str(source), 1, 1), self.folder)
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

    def run(self, steps: int | None = None, agent: Any = "random") -> Outcome:
        """Put an agent to it once: an episode in its world, or an answer to its question.

        `agent` is a name, an import path, options, a callable, or `"solution"` for its own.
        """
        return asyncio.run(self.arun(steps, agent))

    async def arun(self, steps: int | None = None, agent: Any = "random") -> Outcome:
        """The same, inside an event loop."""
        from proctor.scenarios.trying import attempt

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
