"""What users write about workspaces and sandboxes, in a suite, a case or an agent.

The models only describe; `proctor.sandbox.workspace` copies and compares files, and
`proctor.sandbox.place` runs a trial in the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from proctor.strict import Strict, one_or_more, short_for

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]

ShellCommand = str | list[str]
"""A command: a text is run by `sh`, a list is executed directly."""


def argv(command: ShellCommand) -> list[str]:
    """Return the program and its arguments."""
    return ["sh", "-c", command] if isinstance(command, str) else list(command)


def command_text(command: ShellCommand) -> str:
    """Return a command as people write it."""
    return command if isinstance(command, str) else " ".join(command)


def _not_empty(command: ShellCommand) -> ShellCommand:
    if not command or not (command if isinstance(command, str) else command[0]).strip():
        raise ValueError("a command must not be empty")
    return command


Command = Annotated[ShellCommand, AfterValidator(_not_empty)]
if TYPE_CHECKING:  # one text or several in Python, a tuple once validated
    Commands = str | Sequence[ShellCommand]
    Texts = str | Sequence[str]
else:
    Commands = Annotated[
        tuple[Command, ...],
        BeforeValidator(one_or_more, json_schema_input_type=str | list[ShellCommand]),
    ]
    Texts = Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        BeforeValidator(one_or_more, json_schema_input_type=str | list[str]),
    ]


def inside(path: str) -> str:
    """Return a path relative to a workspace, or raise ValueError if it would leave it."""
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts or "\0" in path or path == ".":
        raise ValueError(f"{path!r} must be a path inside the workspace, such as src/app.py")
    return str(PurePosixPath(path))


InsidePath = Annotated[str, AfterValidator(inside)]


def _place_in_sandbox(path: str) -> str:
    parts = PurePosixPath(path).parts
    if len(parts) < 2 or parts[0] != "/" or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} must be an absolute path, such as /app")
    return str(PurePosixPath(path))


SandboxPath = Annotated[str, AfterValidator(_place_in_sandbox)]
"""An absolute path in a sandbox."""


class Workspace(Strict):
    """The files a trial starts with, in a fresh copy for each trial."""

    folder: Annotated[str, Field(min_length=1)] | None = None
    """Folder to copy, relative to the suite; with `git`, a folder of the repository."""
    git: Annotated[str, Field(min_length=1)] | None = None
    """Commit, tag or branch to check out of the repository of `folder` (default: of the suite).
    The copy has no other commits, so that an agent cannot read the solution there."""
    files: dict[InsidePath, str] = Field(default_factory=dict[str, str])
    """Text files by path, added to the folder; one that starts with `#!` is executable."""
    exclude: Texts = ()
    """Patterns of paths in `folder` that are not copied, such as `node_modules`."""
    build: Annotated[str, Field(min_length=1)] | None = None
    """Folder with a Dockerfile, relative to the suite. A sandbox with `image: workspace` builds its
    image once and starts with the files that the image has at `at`; `folder`, `git`, `files` and
    `setup_case` are used by other sandboxes only."""
    image: Annotated[str, Field(min_length=1)] | None = None
    """Name of an image, instead of `build`."""
    at: SandboxPath | None = None
    """Path at which a sandbox shows the files as well, such as `/app`; without a sandbox, the
    folder's own path replaces it in the input and in files that a check adds."""
    keep: Texts = ()
    """Patterns of files that are stored with each trial, such as `report/*.json`."""
    setup: Commands = ()
    """Commands run in the copy of each trial, before the agent."""
    teardown: Commands = ()
    """Commands run in the copy of each trial, after the checks."""
    setup_case: Commands = ()
    """Commands run once for each case, in the files that its trials are copied from."""
    teardown_case: Commands = ()
    """Commands run once for each case, when the run ends."""
    timeout: PositiveFloat = 600.0
    """Seconds for each of these commands."""

    @model_validator(mode="after")
    def _has_files(self) -> Workspace:
        if self.build and self.image:
            raise ValueError("write `build` or `image`, not both")
        if self.has_image and self.at is None:
            raise ValueError("`build` and `image` need `at`, the path of the files, such as /app")
        if not self.has_files and not self.has_image:
            raise ValueError("a workspace needs a `folder`, a `git` reference, `files` or an image")
        if self.exclude and self.git is not None:
            raise ValueError("`exclude` applies to a folder; a `git` checkout is always whole")
        return self

    @property
    def has_files(self) -> bool:
        """Return whether it has files without an image."""
        return bool(self.folder or self.git or self.files or self.setup_case)

    @property
    def has_image(self) -> bool:
        """Return whether it has an image."""
        return bool(self.build or self.image)


WorkspaceOption = Annotated[Workspace, short_for("folder", str | Workspace)]


# -- sandboxes -----------------------------------------------------------------------------------


class SandboxLimits(Strict):
    """What the processes of one trial may use, all of them together."""

    cpus: PositiveFloat | None = None
    """Processors, such as 1.5."""
    memory_mb: Annotated[int, Field(ge=16)] | None = None
    """Memory in MB."""
    pids: Annotated[int, Field(ge=2)] | None = None
    """Processes and threads."""
    seconds: PositiveFloat | None = None
    """Time of the agent; the shorter one of this and the run's `timeout` counts."""

    @property
    def enforced(self) -> dict[str, float]:
        """Return the limits that the sandbox itself must enforce, by name."""
        named = {"cpus": self.cpus, "memory_mb": self.memory_mb, "pids": self.pids}
        return {name: value for name, value in named.items() if value is not None}


OF_WORKSPACE = "workspace"
"""The `image` of a sandbox that is named or built by the workspace of each case."""


class SandboxOptions(Strict):
    """Where the processes of an agent run, and what they may see and use.

    They see the workspace and their own directory (read and write), the programs of the system or
    image, and the paths of `read`; nothing else.
    """

    kind: Annotated[str, Field(min_length=1)]
    """none, bwrap, podman, docker, or the name of an installed one."""
    read: Texts = ()
    """Files and folders that are visible read-only, at the same path; relative to the suite."""
    network: Literal["none", "gateway"] | list[Annotated[str, Field(min_length=1)]] = "gateway"
    """`gateway` reaches only what Proctor serves to the agent (model gateway, span receiver);
    `none` nothing. A list also allows these hosts through a proxy: `example.com`,
    `*.example.com:443`."""
    limits: SandboxLimits = SandboxLimits()
    """Limits of the trial's processes."""
    env: Texts = ()
    """Environment variables that are passed on besides PATH, LANG, LC_*, TERM and TZ; `*` matches
    any characters."""
    image: Annotated[str, Field(min_length=1)] | None = None
    """Container image (podman, docker); `workspace` stands for the one of the case's workspace."""
    rootfs: Annotated[str, Field(min_length=1)] | None = None
    """Folder with a root file system, instead of the system's own (bwrap) or an image (podman)."""
    setup: Commands = ()
    """Commands run in the sandbox before the agent."""
    engine: Texts = ()
    """podman: options of every call, such as `--runtime=runc`. docker: the address of its socket,
    `unix:///run/docker.sock`."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of a sandbox from another package."""

    @model_validator(mode="after")
    def _suit_the_kind(self) -> SandboxOptions:
        uses = {
            "image": ("podman", "docker"),
            "rootfs": ("bwrap", "podman"),
            "engine": ("podman", "docker"),
        }
        if self.kind in BUILT_IN:
            given = [name for name in self.model_fields_set if name != "kind"]
            if self.kind == "none" and given:
                raise ValueError(f"`{given[0]}` has no effect without a sandbox")
            for name, kinds in uses.items():
                if getattr(self, name) and self.kind not in kinds:
                    raise ValueError(f"`{name}` belongs to {' and '.join(kinds)}")
            if self.options:
                raise ValueError("`options` are for sandboxes of other packages")
            if self.kind in ("podman", "docker") and not (self.image or self.rootfs):
                either = " or a `rootfs`" if self.kind == "podman" else ""
                raise ValueError(f"{self.kind} needs an `image`{either}")
            if self.image and self.rootfs:
                raise ValueError("write `image` or `rootfs`, not both")
        return self

    def __bool__(self) -> bool:
        """Return whether it is a sandbox at all."""
        return self.kind != "none"

    @property
    def allowed_hosts(self) -> list[str]:
        """Return the hosts that may be reached besides Proctor's own endpoints."""
        return self.network if isinstance(self.network, list) else []


BUILT_IN = ("none", "bwrap", "podman", "docker")
"""Kinds that come with Proctor."""

SandboxOption = Annotated[SandboxOptions, short_for("kind", str | SandboxOptions)]
