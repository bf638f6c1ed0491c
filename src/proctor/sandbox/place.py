"""Where one trial works: its copy of the workspace, inside its sandbox if it has one.

The files of a case are built once for each run and machine; every trial gets a copy. What cannot be
prepared (a folder, a setup command, a sandbox) raises: trouble of the infrastructure with its
reason, never a failure of the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import logging
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from proctor.background import threads
from proctor.files import lock_file, remove_tree
from proctor.formatting import last_line
from proctor.sandbox._relay import Relay
from proctor.sandbox.base import (
    Capabilities,
    ImageBuilder,
    Sandbox,
    SandboxError,
    SandboxProcess,
    SandboxSetting,
    sandbox_class,
)
from proctor.sandbox.options import (
    OF_WORKSPACE,
    SandboxOptions,
    ShellCommand,
    Workspace,
    argv,
    command_text,
)
from proctor.sandbox.workspace import (
    Changes,
    Snapshot,
    WorkspaceError,
    build,
    copy_tree,
    fingerprint,
    kept_files,
    packed,
)

MAX_OUTPUT = 1 << 20
"""Bytes of a command's output that are read; its end counts, where errors are."""

BEFORE = "before"
"""Name of a workspace as it was after its setup."""

WORKSPACE = "workspace"
"""Name of the workspace in the private directory of a trial."""


class CommandOutput(msgspec.Struct, frozen=True):
    """How a command ended: `code` is None after a timeout, negative after a signal."""

    code: int | None
    output: str
    """The end of standard output and standard error, in the order of writing."""


class TrialWorkspace:
    """The files and the sandbox of one trial; checks find it as `ctx.workspace`.

    Example: `def built(ctx): return (ctx.workspace.path / "dist").is_dir()`.
    """

    def __init__(
        self,
        path: Path,
        options: Workspace | None = None,
        snapshot: Snapshot | None = None,
        sandbox: RunningSandbox | None = None,
    ) -> None:
        self.path = path
        """The folder in which the agent works."""
        self.options = options
        self.sandbox = sandbox
        """The sandbox around it, if there is one."""
        self._snapshot = snapshot

    @cached_property
    def changes(self) -> Changes | None:
        """What the agent changed, up to the first look; None without a `workspace`."""
        return None if self._snapshot is None else self._snapshot.changes()

    @property
    def original(self) -> Path | None:
        """The files as they were before the agent ran."""
        return None if self._snapshot is None else self._snapshot.original

    def located(self, text: str, others: Mapping[str, Path] | None = None) -> str:
        """Return a text with the paths of a sandbox replaced by real ones, if there is none."""
        paths = dict(others or {})
        if self.options is not None and self.options.at is not None:
            paths[self.options.at] = self.path
        if self.sandbox is not None or not paths:
            return text
        named = "|".join(re.escape(each) for each in sorted(paths, key=len, reverse=True))
        # Whole paths and what is below them, not a part of another path or word.
        pattern = rf"(?<![\w.~/-])(?:{named})(?![\w-]|\.\w)"
        return re.sub(pattern, lambda found: str(paths[found[0]]), text)

    async def graded(
        self,
        command: ShellCommand,
        *,
        seconds: float,
        add: tuple[Path, str] | None = None,
        results: str | None = None,
    ) -> tuple[CommandOutput, Path]:
        """Run a command beside which a folder appears at a path, such as /tests.

        Returns its output and the folder with what it wrote to the path `results`. All of it is
        one command: a sandbox may forget what is outside the trial's directory after each.
        """
        home = self.path.parent / f".graded-{secrets.token_hex(8)}"
        source, out = home / "add", home / "results"
        await threads.run(out.mkdir, parents=True)
        paths = {results: out} if results is not None else {}
        if add is not None:
            paths[add[1]] = source
            await threads.run(copy_tree, add[0], source)
        if self.sandbox is None:
            for file in await threads.run(_text_files, source):
                text = self.located(file.read_text(encoding="utf-8"), paths)
                file.write_text(text, encoding="utf-8")
            words = [self.located(each, paths) for each in argv(command)]
            return await self.run(words, seconds=seconds), out
        await self.sandbox.copy_in(home)
        lines: list[str] = []
        for inside, outside in paths.items():
            to = shlex.quote(inside)
            # What the agent may have left there is not ours.
            lines.append(f"rm -rf {to} && mkdir -p {to} || exit 125")
            if outside == source:
                lines.append(f"cp -R {shlex.quote(str(source))}/. {to}/ || exit 125")
        lines += [shlex.join(argv(command)), "code=$?"]
        if results is not None:
            lines.append(f"cp -R {shlex.quote(results)}/. {shlex.quote(str(out))}/")
        done = await self.run("\n".join([*lines, "exit $code"]), seconds=seconds)
        await self.sandbox.copy_out(home)
        return done, out

    async def record(self) -> dict[str, Any]:
        """Return what is stored with the trial: the changes and the files to keep."""
        if self.options is not None and (self.path.is_symlink() or not self.path.is_dir()):
            # An agent in a sandbox can replace the folder by a link, which nothing may follow.
            self.path.unlink(missing_ok=True)
            self.path.mkdir()
        if self.sandbox is not None and self.options is not None:
            await self.sandbox.copy_out(self.path)
        return await threads.run(self._record)

    def _record(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if (changes := self.changes) is not None:
            found |= changes.record()
        if self.options is not None and self.options.keep:
            found["files"] = kept_files(self.path, tuple(self.options.keep))
        if self.sandbox is not None and (refused := self.sandbox.refused):
            found["refused_hosts"] = refused
        return found

    async def run(
        self, command: ShellCommand, *, seconds: float, env: Mapping[str, str] | None = None
    ) -> CommandOutput:
        """Run a command in the workspace; everything it started ends with it."""
        if self.sandbox is not None:
            process = await self.sandbox.exec(argv(command), cwd=self.path, env=env or {})
            assert process.stdin is not None
            process.stdin.close()
            return await output_of(process, seconds)
        try:
            child = await asyncio.create_subprocess_exec(
                *argv(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=self.path,
                start_new_session=True,
            )
        except OSError as error:
            reason = f"cannot run {argv(command)[0]}: {error.strerror}"
            raise WorkspaceError(reason) from None
        return await output_of(child, seconds)

    async def must(self, commands: Sequence[ShellCommand], what: str) -> None:
        """Run commands of the suite; one that fails is an error of the infrastructure."""
        seconds = 600.0 if self.options is None else self.options.timeout
        for command in commands:
            done = await self.run(command, seconds=seconds)
            if done.code != 0:
                end = f"exited with {done.code}"
                if done.code is None:
                    end = f"took longer than {seconds:g} s"
                problem = f"{what} `{command_text(command)}` {end}: {last_line(done.output)[:300]}"
                raise WorkspaceError(problem.rstrip(": "))

    async def tear_down(self, commands: Sequence[ShellCommand]) -> None:
        """Run commands after the verdict; a failure is logged, since it can change nothing."""
        try:
            await self.must(commands, "teardown")
        except WorkspaceError as error:
            logging.getLogger("proctor").warning("%s", error)

    async def close(self) -> None:
        """Run the teardown commands of the trial, and end its sandbox."""
        if self.options is not None and self.options.teardown:
            await self.tear_down(tuple(self.options.teardown))
        if self.sandbox is not None:
            await self.sandbox.stop()
        if self.original is not None and self.original.name == BEFORE:
            await threads.run(remove_tree, self.original.parent)


def _text_files(folder: Path) -> list[Path]:
    """Return the small text files below a folder, of which links are none."""
    found: list[Path] = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < MAX_OUTPUT:
            with contextlib.suppress(UnicodeDecodeError):
                path.read_text(encoding="utf-8")
                found.append(path)
    return found


async def output_of(child: SandboxProcess, seconds: float) -> CommandOutput:
    """Wait for a command, keep the end of its output, and end everything it started."""
    tail = bytearray()

    async def read(stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(65536):
            tail.extend(chunk)
            del tail[:-MAX_OUTPUT]

    streams = [each for each in (child.stdout, child.stderr) if each is not None]
    reading = [asyncio.ensure_future(read(stream)) for stream in streams]
    waiting = asyncio.ensure_future(child.wait())
    try:
        # The process itself, not its pipe, which a process left in the background holds open.
        async with asyncio.timeout(seconds):
            while child.returncode is None and not all(each.done() for each in reading):
                await asyncio.wait(
                    {*reading, waiting}, timeout=0.1, return_when=asyncio.FIRST_COMPLETED
                )
            await waiting
        code = child.returncode
    except TimeoutError:
        code = None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if isinstance(child, asyncio.subprocess.Process) and hasattr(os, "killpg"):
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()
        await asyncio.wait({*reading, waiting}, timeout=1.0)
        for each in (*reading, waiting):
            each.cancel()
    return CommandOutput(code, tail.decode(errors="replace"))


# -- sandboxes -----------------------------------------------------------------------------------

PASSED_ON = ("LANG", "LC_*", "TERM", "TZ")
"""Environment variables that every sandbox gets; those with the programs of this machine get PATH,
too."""

PROXY_PORT = 3128
"""Port of the proxy inside a sandbox; nothing else listens there, and no other trial sees it."""

PACKAGE = Path(__file__).resolve().parents[1]
"""Proctor itself."""

FORWARDER = PACKAGE / "sandbox" / "_forward.py"
"""The program that forwards connections from inside a sandbox."""

LOOPBACK = re.compile(r"https?://(?:127\.0\.0\.1|localhost):(\d+)")

# Says on standard error that the sandbox works, before the command itself can write anything.
_ANNOUNCE = ["sh", "-c", 'echo "$0" >&2 && exec "$@"']


def find_program(name: str, path: str | None = None) -> Path | None:
    """Return where a program is on the PATH, or None.

    Shims of version managers (pyenv, asdf) come last: without their manager they do not work.
    """
    folders = (path or os.environ.get("PATH", os.defpath)).split(os.pathsep)
    folders.sort(key=lambda folder: Path(folder).name == "shims")
    found = shutil.which(name, path=os.pathsep.join(folders))
    return None if found is None else Path(found)


def installation(program: Path) -> list[Path]:
    """Return what a program outside /usr needs of its own: packages, environment, interpreter.

    Nothing else of the folder that it is in, which may be the user's own.
    """
    real = program.resolve()
    # The interpreter of an environment is a link to another installation.
    in_environment = (program.parent.parent / "pyvenv.cfg").is_file()
    if real.is_relative_to("/usr") and not in_environment:
        return []
    packages = [folder for folder in real.parents if folder.name == "node_modules"]
    environment = (program if in_environment else real).parent.parent
    shown = [packages[-1] if packages else real]
    if (environment / "pyvenv.cfg").is_file():
        base = (environment / "bin" / "python").resolve().parent.parent
        needed = [environment, *([] if base.is_relative_to("/usr") else [base])]
        # In a clone, Proctor is beside its environment, and pytest there loads its plugin.
        return [*needed, PACKAGE] if environment == Path(sys.prefix) else needed
    with real.open("rb") as file:
        first = file.readline(256)
    if first.startswith(b"#!"):
        *_, interpreter = first[2:].decode(errors="replace").split() or [""]
        if (found := find_program(interpreter)) is not None:
            shown += installation(found)
    return shown


def shown_path(program: Path) -> Path:
    """Return where `installation` shows a program: links to it are shown in environments only."""
    in_environment = (program.parent.parent / "pyvenv.cfg").is_file()
    return program if in_environment else program.resolve()


def programs_of(command: ShellCommand) -> tuple[Path, ...]:
    """Return what the program of a suite's command needs of its own; nothing if it is not found."""
    try:
        first = (shlex.split(command) if isinstance(command, str) else command)[0]
    except (ValueError, IndexError):  # more than a program and its arguments
        return ()
    found = find_program(first)
    return () if found is None else tuple(installation(found))


class RunningSandbox:
    """A sandbox with its network: how agents and checks start commands in it."""

    def __init__(self, sandbox: Sandbox, options: SandboxOptions, home: Path) -> None:
        self.options = options
        self.home = home
        self._sandbox = sandbox
        self._able = Capabilities(False)
        self._relay: Relay | None = None
        self._forwarded: set[int] = set()

    @classmethod
    async def started(
        cls,
        options: SandboxOptions,
        home: Path,
        base: Path,
        read: Sequence[Path],
        mounts: Mapping[str, Path] | None = None,
    ) -> RunningSandbox:
        """Start a sandbox whose policy can be enforced here, or raise `SandboxError`."""
        named = [base / os.path.expanduser(path) for path in options.read]  # noqa: ASYNC240, PTH111
        if missing := [path for path in named if not path.exists()]:
            raise SandboxError(f"there is no {missing[0]} to show", hint="`read` of the sandbox")
        if options.rootfs is not None:
            options = options.model_copy(update={"rootfs": str(base / options.rootfs)})
        # Shown and not copied to the trial's directory: it also starts the commands of checks,
        # which an agent must not change.
        network = () if options.network == "none" else (FORWARDER,)
        shown = dict.fromkeys(path.resolve() for path in (*named, *read, *network))
        setting = SandboxSetting(options, home, tuple(shown), mounts or {})
        sandbox = sandbox_class(options.kind)(setting)
        self = cls(sandbox, options, home)
        self._able = able = await sandbox.capabilities()
        if not able.works:
            raise SandboxError(f"{options.kind} does not work: {able.reason}", hint=able.hint)
        if lacking := sorted(options.limits.enforced.keys() - able.limits):
            what = f"{options.kind} cannot limit {', '.join(lacking)} here"
            raise SandboxError(f"{what}: {able.reason}", hint=able.hint)
        if mounts and not able.mounts:
            raise SandboxError(f"{options.kind} cannot show the workspace at another path")
        if not able.isolates_network:
            raise SandboxError(f"{options.kind} cannot keep an agent off the network")
        try:
            await sandbox.start()
            for command in options.setup:
                place = TrialWorkspace(home, sandbox=self)
                await place.must([command], "setup of the sandbox")
        except BaseException:
            await self.stop()
            raise
        return self

    @property
    def refused(self) -> list[str]:
        """Return the addresses that the agent tried to reach and may not."""
        return [] if self._relay is None else self._relay.refused

    def exceeded(self) -> str:
        """Return the limit that ended a process, if one is known to have."""
        return self._sandbox.exceeded()

    async def exec(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str]
    ) -> SandboxProcess:
        """Start a command; `env` is what Proctor and the suite add to the allowed variables.

        Endpoints of Proctor on this machine that `env` names can be reached, unless the network
        is `none`.
        """
        names = (*PASSED_ON, *self.options.env, *(("PATH",) if self._able.system_path else ()))
        passed_on = {
            name: value
            for name, value in os.environ.items()
            if any(fnmatchcase(name, each) for each in names)
        }
        variables = {**passed_on, "HOME": str(self.home), **env}
        # Unpredictable, so that output of a broken sandbox is never taken for it.
        nonce = secrets.token_hex(8)
        whole = [*_ANNOUNCE, nonce, *command]
        if self.options.network != "none":
            ports = {int(port) for text in env.values() for port in LOOPBACK.findall(text)}
            whole, extra = await self._connected(ports, whole)
            variables |= extra
        process = await self._sandbox.exec(whole, cwd=str(cwd), env=variables)
        assert process.stderr is not None
        first = await process.stderr.readline()
        if first.decode(errors="replace").strip() != nonce:
            rest = await process.stderr.read(4000)
            await process.wait()
            reason = (first + rest).decode(errors="replace").strip()
            raise SandboxError(f"{self.options.kind} could not start the command: {reason}")
        return process

    async def _connected(
        self, ports: set[int], command: list[str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command with what connects it to the relay, and the variables of its proxy."""
        hosts = self.options.allowed_hosts
        if not ports and not hosts:
            return command, {}
        folder = self.home / ".net"
        if self._relay is None:
            folder.mkdir(exist_ok=True)
            self._relay = Relay(folder / "socket", hosts)
            await self._relay.start()
        self._relay.ports |= ports
        proxy = PROXY_PORT if hosts else 0
        variables: dict[str, str] = {}
        if hosts:
            url = f"http://127.0.0.1:{PROXY_PORT}"
            names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
            variables = {**dict.fromkeys(names, url), "NO_PROXY": "127.0.0.1,localhost"}
        new = ports - self._forwarded
        if self._able.persistent:
            if not new and not (proxy and not self._forwarded):
                return command, variables
            self._forwarded |= new
            starting = self._forward(new, proxy, ["true"])
            process = await self._sandbox.exec(starting, cwd=str(self.home), env={})
            assert process.stderr is not None
            error = await process.stderr.read()
            if await process.wait() != 0:
                reason = error.decode(errors="replace").strip()
                raise SandboxError(
                    f"the network of the sandbox does not work: {reason}",
                    hint="its image needs python3, or write `network: none`",
                )
            return command, variables
        return self._forward(ports, proxy, command), variables

    def _forward(self, ports: set[int], proxy: int, command: list[str]) -> list[str]:
        listed = ",".join(map(str, sorted(ports)))
        folder = self.home / ".net"
        script = [self._able.python, "-IS", str(FORWARDER), str(folder / "socket")]
        return [*script, listed, str(proxy), *command]

    async def copy_in(self, folder: Path) -> None:
        """Copy a folder into a sandbox that does not share files."""
        if self._able.shares_files:
            return
        await self._sandbox.write(f"{folder}.tar", await threads.run(packed, folder))
        place = TrialWorkspace(Path("/"), sandbox=self)
        unpack = f"mkdir -p {shlex.quote(str(folder))} && tar xf {shlex.quote(f'{folder}.tar')}"
        await place.must([f"{unpack} -C {shlex.quote(str(folder))}"], "copying the workspace")

    async def copy_out(self, folder: Path) -> None:
        """Replace a folder by what the agent left in a sandbox that does not share files."""
        if self._able.shares_files:
            return
        place = TrialWorkspace(folder, sandbox=self)
        packed = f"{folder}.tar"
        await place.must([f"tar cf {shlex.quote(packed)} ."], "copying the workspace")
        content = await self._sandbox.read(packed)

        def unpack() -> None:
            remove_tree(folder)
            folder.mkdir()
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                archive.extractall(folder, filter="data")  # refuses links and paths that lead out

        await threads.run(unpack)

    async def stop(self) -> None:
        """End everything in the sandbox."""
        if self._relay is not None:
            await self._relay.stop()
        await self._sandbox.stop()


_IMAGE_HINT = "write `sandbox: {kind: podman, image: workspace}`, or docker"


async def build_image(options: Workspace, base: Path, sandbox: SandboxOptions) -> str:
    """Return the name of a workspace's image, built unless one of the same content exists."""
    if options.image is not None:
        return options.image
    folder = base / os.path.expanduser(str(options.build))  # noqa: ASYNC240, PTH111
    if not (folder / "Dockerfile").is_file():
        raise WorkspaceError(f"there is no Dockerfile in {folder}", hint="`build` of a workspace")
    builder = sandbox_class(sandbox.kind)(SandboxSetting(sandbox, folder))
    if not isinstance(builder, ImageBuilder):
        raise SandboxError(f"{sandbox.kind} cannot build images", hint=_IMAGE_HINT)
    able = await builder.capabilities()
    if not able.works:
        raise SandboxError(f"{sandbox.kind} does not work: {able.reason}", hint=able.hint)
    name = f"localhost/proctor-build:{await threads.run(fingerprint, folder)}"
    try:
        async with asyncio.timeout(options.timeout):
            await builder.build(folder, name)
    except TimeoutError:
        seconds = f"{options.timeout:g} s"
        hint = "`timeout` of the workspace"
        raise WorkspaceError(f"building {folder} took longer than {seconds}", hint=hint) from None
    return name


class Workspaces:
    """The files of each case of a run, which its trials copy; made where it is first needed.

    The folder exists before worker processes are forked, so that they share it, and one of them
    builds the files of a case while the others wait.
    """

    def __init__(self, cases: Mapping[str, Workspace]) -> None:
        self._cases = cases
        self.folder = Path(tempfile.mkdtemp(prefix="proctor-files-"))
        self._remove = weakref.finalize(self, _remove_own, self.folder, os.getpid())

    async def __aenter__(self) -> None:
        """Use them for a run."""

    async def open(
        self,
        case: str,
        options: Workspace | None,
        base: Path,
        home: Path,
        sandbox: SandboxOptions | None = None,
        read: Sequence[Path] = (),
    ) -> TrialWorkspace:
        """Start a trial's sandbox, copy the files of its case there and run their setup."""
        running = None
        path, place = home / WORKSPACE, self._place(case)
        if sandbox and sandbox.image == OF_WORKSPACE:
            # Each engine has images of its own.
            place = self._place(f"{case}\0{sandbox.kind}\0{sandbox.engine}")
            sandbox = await self._with_image(place, options, base, sandbox)
        elif options is not None and not options.has_files:
            kind = sandbox.kind if sandbox else "none"
            raise SandboxError(
                f"the workspace is an image, which the sandbox {kind!r} does not use",
                hint=_IMAGE_HINT,
            )
        if sandbox:
            mounts: dict[str, Path] = {}
            if options is not None and options.at is not None:
                mounts[options.at] = path
                path.mkdir()  # containers mount only what exists
            running = await RunningSandbox.started(sandbox, home, base, read, mounts)
        if options is None:
            return TrialWorkspace(home, sandbox=running)
        try:
            original = place / "files"
            if not original.is_dir():
                await self._build(place, options, base)
            await threads.run(copy_tree, original, path)
            workspace = TrialWorkspace(path, options, sandbox=running)
            if running is not None:
                await running.copy_in(path)
            if options.setup:
                await workspace.must(tuple(options.setup), "setup")
                if running is not None:
                    await running.copy_out(path)
                # Only the agent's changes count, so the state after the setup is stored, where
                # the agent cannot change it.
                original = Path(await threads.run(tempfile.mkdtemp, dir=self.folder)) / BEFORE
                await threads.run(copy_tree, path, original)
            snapshot = await threads.run(Snapshot, path, original)
        except BaseException:
            if running is not None:
                await running.stop()
            raise
        return TrialWorkspace(path, options, snapshot, running)

    async def _build(self, place: Path, options: Workspace, base: Path) -> None:
        place.mkdir(exist_ok=True)  # noqa: ASYNC240 (one call, of a microsecond)
        with (place / "lock").open("a+b") as lock:
            await threads.run(lock_file, lock)
            if (place / "files").is_dir():
                return
            draft = place / "draft"
            shutil.rmtree(draft, ignore_errors=True)  # of a worker that died
            await threads.run(build, options, base, draft)
            await TrialWorkspace(draft, options).must(tuple(options.setup_case), "setup_case")
            draft.rename(place / "files")

    async def _with_image(
        self, place: Path, options: Workspace | None, base: Path, sandbox: SandboxOptions
    ) -> SandboxOptions:
        """Return a sandbox with the image of a case; its first trial builds it, with its files."""
        if options is None or not options.has_image:
            hint = "add `build` or `image` to it, or name an image in the sandbox"
            raise SandboxError("the case has no workspace with an image", hint=hint)
        place.mkdir(exist_ok=True)  # noqa: ASYNC240 (one call, of a microsecond)
        name, files = place / "image", place / "files"
        if not files.is_dir():
            with (place / "lock").open("a+b") as lock:
                await threads.run(lock_file, lock)
                if not files.is_dir():
                    image = await build_image(options, base, sandbox)
                    name.write_text(image, encoding="utf-8")
                    # Nothing of the trials: only what the image has is wanted.
                    plain = {"kind": sandbox.kind, "engine": sandbox.engine, "network": "none"}
                    boxed = SandboxOptions.model_validate({**plain, "image": image})
                    running = await RunningSandbox.started(boxed, place, base, ())
                    at = shlex.quote(str(options.at))
                    # No mask: files keep the permissions that they have in the image.
                    copy = f"rm -rf draft && mkdir -p {at} draft && umask 0 && cp -R {at}/. draft"
                    try:
                        await TrialWorkspace(place, options, sandbox=running).must([copy], "copy")
                    finally:
                        await running.stop()
                    (place / "draft").rename(files)
        return sandbox.model_copy(update={"image": name.read_text(encoding="utf-8")})

    async def __aexit__(self, *_error: object) -> None:
        """Run the teardown of each case that was set up, and delete all files."""
        for case, options in self._cases.items():
            files = self._place(case) / "files"
            if options.teardown_case and files.is_dir():
                await TrialWorkspace(files, options).tear_down(tuple(options.teardown_case))
        await threads.run(self._remove)

    def _place(self, case: str) -> Path:
        return self.folder / hashlib.sha256(case.encode()).hexdigest()[:16]


def _remove_own(folder: Path, owner: int) -> None:
    """Delete a folder, unless this process is a fork of the one that made it."""
    if os.getpid() == owner:
        remove_tree(folder)
