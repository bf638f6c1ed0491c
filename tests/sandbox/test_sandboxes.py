"""Sandboxes: what agents in them can see, reach and use, in real namespaces and containers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from commands import proctor
from containers import ENGINE

import proctor as package
from proctor import Case, Suite
from proctor.agents._command import CommandAgentConfig
from proctor.agents.registry import agent_config
from proctor.errors import ProctorError
from proctor.runs.trial import TrialStatus
from proctor.sandbox._bwrap import Bwrap, _capabilities, cgroup_problem
from proctor.sandbox.base import Capabilities, SandboxError, SandboxSetting
from proctor.sandbox.options import SandboxOptions
from proctor.sandbox.place import FORWARDER, RunningSandbox, TrialWorkspace, installation
from proctor.sandbox.workspace import fingerprint

needs_bwrap = pytest.mark.skipif(not _capabilities().works, reason=_capabilities().reason)
needs_cgroups = pytest.mark.skipif(cgroup_problem() is not None, reason=str(cgroup_problem()))

HOSTILE = r"""
import json, os, pathlib, socket, subprocess, sys
task = json.load(sys.stdin)
found = {"args": sys.argv[1:]}
def attempt(name, work):
    try: found[name] = work()
    except Exception as error: found[name] = type(error).__name__
project, home = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
attempt("read_project", lambda: (project / "secret.txt").read_text())
attempt("list_project", lambda: sorted(p.name for p in project.iterdir()))
attempt("read_home", lambda: [p.name for p in home.iterdir()])
attempt("read_etc", lambda: pathlib.Path("/etc/shadow").read_text())
attempt("write_outside", lambda: (project / "owned").write_text("x"))
attempt("write_usr", lambda: pathlib.Path("/usr/owned").write_text("x"))
attempt("write_tmp", lambda: pathlib.Path(sys.argv[5]).write_text("x"))
port = int(sys.argv[3])
attempt("network", lambda: socket.create_connection(("127.0.0.1", port), 2) and "reached")
attempt("outside", lambda: socket.create_connection(("192.0.2.1", 80), 2) and "reached")
attempt("kill", lambda: os.kill(int(sys.argv[4]), 0))
attempt("processes", lambda: len([p for p in os.listdir("/proc") if p.isdigit()]))
attempt("secret_env", lambda: os.environ.get("PROCTOR_TEST_SECRET"))
attempt("root", lambda: os.setuid(12345) or os.setuid(0))
mount = ["mount", "-t", "tmpfs", "x", "/usr"]
attempt("mount", lambda: subprocess.run(mount, capture_output=True).returncode)
subprocess.Popen(["sleep", sys.argv[6]], start_new_session=True)
pathlib.Path("result.txt").write_text("done")
print(json.dumps({"answer": json.dumps(found)}))
"""


def changes_of(run: package.Run, trial: package.Trial) -> dict[str, Any]:
    """What is stored about a trial's workspace."""
    trace = run.trace(trial)
    assert trace is not None
    return trace.metadata["workspace"]


@pytest.fixture
def port() -> Iterator[int]:
    """A server on this machine that a sandbox must not reach."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"reached " + self.path.encode())

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


@needs_bwrap
def test_a_hostile_agent_sees_reaches_and_changes_nothing(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-N6: in bwrap an agent cannot read home or project, write outside, or use the network."""
    monkeypatch.setenv("PROCTOR_TEST_SECRET", "s3cret")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.txt").write_text("a")
    (tmp_path / "agent.py").write_text(HOSTILE)
    # Names that no other test on this machine uses.
    outside = Path("/tmp") / f"proctor-hostile-{os.getpid()}"
    lasting = f"1000.{os.getpid()}"
    arguments = f"agent.py {tmp_path} {Path.home()} {port} {os.getpid()} {outside} {lasting}"
    (tmp_path / "suite.yaml").write_text(
        "sandbox: {kind: bwrap, network: none}\n"
        "workspace: project\n"
        "agents:\n"
        f"  hostile: {{kind: command, command: /usr/bin/python3 {arguments}}}\n"
        "  innocent: {kind: command, command: /bin/echo fine, protocol: text}\n"
        "  free: {kind: command, command: /bin/echo fine, protocol: text, sandbox: none}\n"
        "cases:\n  - input: go\n    trials: 2\n"
        "    correctness: {command: '! test -e /etc/shadow', regex_match: '^'}\n"
    )
    proctor("run", "suite.yaml", cwd=tmp_path)
    run = package.api.open_run(next((tmp_path / "results").glob("suite/*")))
    for trial in run.trials:
        if trial.agent != "hostile":
            # The check ran where the agent did: only outside is there a list of passwords.
            assert trial.answer == "fine"
            expected = "pass" if trial.agent == "innocent" else "fail"
            assert trial.checks[-1].status == expected, trial.checks
            continue
        assert trial.status is TrialStatus.PASSED, (trial.error, trial.checks)
        found = json.loads(str(trial.answer))
        denied = ("FileNotFoundError", "PermissionError", "OSError", "ConnectionRefusedError")
        for name in ("read_project", "read_home", "read_etc", "write_usr",
                     "network", "outside", "root"):  # fmt: skip
            assert found[name] in denied, (name, found)
        assert found["list_project"] == ["agent.py"], "only the program itself is shown"
        assert found["kill"] == "ProcessLookupError"
        assert found["processes"] < 10
        assert found["secret_env"] is None
        assert found["mount"] != 0
        assert changes_of(run, trial)["paths"] == {"result.txt": "added"}
    assert not (tmp_path / "owned").exists()
    assert not outside.exists()
    left = subprocess.run(["pgrep", "-fx", f"sleep {lasting}"], capture_output=True, check=False)
    assert left.stdout == b"", "a process outlived its trial"


@asynccontextmanager
async def running(home: Path, **options: Any) -> AsyncIterator[TrialWorkspace]:
    os.makedirs(home, exist_ok=True)  # noqa: PTH103
    sandbox = await RunningSandbox.started(SandboxOptions(**options), home, home, ())
    try:
        yield TrialWorkspace(home, sandbox=sandbox)
    finally:
        await sandbox.stop()


GET = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"


@needs_bwrap
async def test_the_network_is_nothing_but_what_is_allowed(tmp_path: Path, port: int) -> None:
    """R-N6: endpoints that Proctor names are reached; others only by an allow list."""
    endpoint = {"MODEL_URL": f"http://127.0.0.1:{port}/v1"}
    fetch = ["/usr/bin/python3", "-c", GET, f"http://127.0.0.1:{port}/x"]
    async with running(tmp_path / "a", kind="bwrap") as place:
        assert "reached /x" in (await place.run(fetch, seconds=30, env=endpoint)).output
        assert (await place.run(fetch, seconds=30)).code == 1, "not an endpoint of Proctor"
    async with running(tmp_path / "b", kind="bwrap", network="none") as place:
        assert (await place.run(fetch, seconds=30, env=endpoint)).code == 1
    by_proxy = ["env", "NO_PROXY=", "no_proxy=", *fetch]
    async with running(tmp_path / "c", kind="bwrap", network=["127.0.0.1:*"]) as place:
        assert "reached /x" in (await place.run(by_proxy, seconds=30)).output
    async with running(tmp_path / "d", kind="bwrap", network=["example.com"]) as place:
        done = await place.run(by_proxy, seconds=30)
        assert "403" in done.output
        assert place.sandbox is not None
        assert place.sandbox.refused == [f"127.0.0.1:{port}"]
        assert (await place.record())["refused_hosts"] == [f"127.0.0.1:{port}"]


@needs_bwrap
@needs_cgroups
async def test_limits_hold_for_all_processes_together(tmp_path: Path) -> None:
    """R-N6: memory, processes and processors are limited, and a limit that was hit is named."""
    limits = {"memory_mb": 64, "pids": 8, "cpus": 0.5}
    async with running(tmp_path, kind="bwrap", limits=limits) as place:
        many = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 5 & done; wait"
        assert "fork" in (await place.run(many, seconds=30)).output.lower()
        assert place.sandbox is not None
        assert place.sandbox.exceeded() == ""
        eat = ["/usr/bin/python3", "-c", "x = b'x' * (1 << 28); print(len(x))"]
        done = await place.run(eat, seconds=60)
        assert done.code != 0
        assert "268435456" not in done.output
        assert place.sandbox.exceeded() == "memory"
    config = CommandAgentConfig(
        command=eat,
        protocol="text",
        sandbox=SandboxOptions(kind="bwrap", network="none", limits={"memory_mb": 64}),  # pyright: ignore[reportArgumentType]
    )
    suite = Suite(cases=[Case(input="x", trials=1, checks=[lambda _: True])])
    (trial,) = (await package.arun(suite, agent=config, results=tmp_path / "r")).trials
    assert (trial.status, trial.category) == (TrialStatus.FAILED, "resource_limit"), trial.error
    slow = SandboxOptions(kind="bwrap", network="none", limits={"seconds": 0.5})  # pyright: ignore[reportArgumentType]
    config = CommandAgentConfig(command=["sleep", "60"], protocol="text", sandbox=slow)
    (trial,) = (await package.arun(suite, agent=config, results=tmp_path / "r")).trials
    assert (trial.status, trial.category) == (TrialStatus.FAILED, "timeout"), trial.error


@needs_bwrap
@pytest.mark.slow
def test_a_python_agent_runs_inside(tmp_path: Path) -> None:
    """R-N6: a sandbox gives a Python agent its own process, with the files of its trial."""
    (tmp_path / "mine.py").write_text(
        "import os, pathlib\n"
        "def agent(input, workspace):\n"
        "    (workspace / 'out.txt').write_text(input)\n"
        "    return f\"{os.getpid() < 20} {pathlib.Path('/etc/shadow').exists()}\"\n"
    )
    (tmp_path / "suite.yaml").write_text(
        "agent: {kind: python, target: mine:agent, sandbox: bwrap}\n"
        "cases:\n  - input: hello\n    trials: 1\n    workspace: {files: {a.txt: a}}\n"
        "    correctness: {exact_match: 'True False', files: [{path: out.txt, contains: hello}]}\n"
    )
    done = proctor("run", "suite.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_trouble_is_infrastructure_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-N6: a sandbox that cannot be used is an infrastructure error; options must have effects."""
    suite = Suite(cases=[Case(input="x", trials=1, checks=[lambda _: True])])
    for options, says in (
        ({"kind": "nowhere"}, "there is no sandbox 'nowhere'"),
        ({"kind": "podman", "image": "no/such:image", "engine": ENGINE}, "podman"),
        ({"kind": "docker", "image": "x", "engine": str(tmp_path / "none")}, "no engine answers"),
        ({"kind": "bwrap", "read": ["missing"]}, "to show"),
        ({"kind": "bwrap", "setup": "exit 3"}, "setup of the sandbox `exit 3` exited with 3"),
    ):
        config = CommandAgentConfig(command="true", sandbox=SandboxOptions(**options))  # pyright: ignore[reportArgumentType]
        trial = (await package.arun(suite, agent=config, results=tmp_path / "r")).trials[0]
        assert trial.status is TrialStatus.INFRA_ERROR, trial
        assert trial.error is not None
        assert says in trial.error.message, trial.error
    for wrong in (
        {"kind": "none", "network": "none"},
        {"kind": "bwrap", "image": "x"},
        {"kind": "docker"},
        {"kind": "podman", "image": "a", "rootfs": "b"},
        {"kind": "bwrap", "options": {"a": 1}},
    ):
        with pytest.raises(ValueError, match=r"belongs|needs|not both|no effect|other packages"):
            SandboxOptions(**wrong)  # pyright: ignore[reportArgumentType]
    chat = {"kind": "chat", "model": "test:x", "sandbox": "bwrap"}
    with pytest.raises(ProctorError, match="no process to put in a sandbox"):
        await package.arun(suite, agent=chat, results=tmp_path / "r")
    # A missing program is found before any trial.
    monkeypatch.setenv("PATH", str(tmp_path))
    able = await Bwrap(SandboxSetting(SandboxOptions(kind="bwrap"), tmp_path)).capabilities()
    assert able.works or "not installed" in able.reason


class Remote:
    """A sandbox of another package that shares no files: folders below another root."""

    root: Path

    def __init__(self, setting: SandboxSetting) -> None:
        self.root = Path(setting.options.options["root"])

    async def capabilities(self) -> Capabilities:
        return Capabilities(True, shares_files=False)

    async def start(self) -> None:
        self.root.mkdir()

    async def exec(self, command: Any, *, cwd: str, env: Any) -> Any:
        moved = [part.replace("/tmp/proctor-", f"{self.root}/tmp/proctor-") for part in command]
        folder = self.root / cwd.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return await asyncio.create_subprocess_exec(*moved, cwd=folder, env=dict(env), **pipes)

    async def read(self, path: str) -> bytes:
        return (self.root / path.lstrip("/")).read_bytes()

    async def write(self, path: str, content: bytes) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    async def stop(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def exceeded(self) -> str:
        return ""


def test_another_package_brings_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-N6: an entry point is enough; without shared files the workspace is copied in and out."""
    info = tmp_path / "remote-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: remote\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[proctor.sandboxes]\nremote = remote_sandbox:Remote\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = type(sys)("remote_sandbox")
    module.Remote = Remote  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "remote_sandbox", module)
    options = {"kind": "remote", "network": "none", "env": "PATH",
               "options": {"root": str(tmp_path / "elsewhere")}}  # fmt: skip
    config = {"kind": "command", "command": "sh -c 'cat a.txt && echo new > b.txt'",
              "protocol": "text", "sandbox": options}  # fmt: skip
    case = Case(
        input="x", trials=1, workspace={"files": {"a.txt": "hello"}},  # pyright: ignore[reportArgumentType]
        correctness={"exact_match": "hello", "files": "b.txt", "command": "test -f b.txt"},  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    run = package.run(Suite(cases=[case]), agent=config, results=tmp_path / "r")
    (trial,) = run.trials
    assert trial.status is TrialStatus.PASSED, (trial.error, trial.checks)
    assert changes_of(run, trial)["paths"] == {"b.txt": "added"}


async def in_container(home: Path, port: int, **options: Any) -> None:
    async with running(home, **options) as place:
        (home / "inside").write_text("shared")
        done = await place.run("cat inside; ls /home /etc/shadow; echo w > out", seconds=120)
        assert done.output.startswith("shared"), done
        assert (home / "out").read_text() == "w\n"
        fetch = ["python3", "-c", GET, f"http://127.0.0.1:{port}/x"]
        done = await place.run(fetch, seconds=120, env={"URL": f"http://127.0.0.1:{port}"})
        assert "reached /x" in done.output, done
        other = ["python3", "-c", GET, "http://192.0.2.1/"]
        assert (await place.run(other, seconds=120)).code == 1
        assert (await place.run("exit 5", seconds=120)).code == 5
        running_sandbox = place.sandbox
        assert running_sandbox is not None
        inner = running_sandbox._sandbox
        await inner.write(f"{home}/written", b"\x00data")
        assert await inner.read(f"{home}/written") == b"\x00data"
        with pytest.raises(SandboxError):
            await inner.read("/nowhere")


@pytest.mark.slow
def test_podman_shows_files_and_tests_where_a_task_expects_them(
    tmp_path: Path, rootfs: Path
) -> None:
    """R-N4, R-N6: the workspace at /app, tests at /tests, the reward from the container."""
    (tmp_path / "tests").mkdir()
    grade = (
        "cat /app/out.txt /tests/right.txt > /rewards/both && cat /tests/one > /rewards/reward.txt"
    )
    (tmp_path / "tests" / "right.txt").write_text("right")
    (tmp_path / "tests" / "one").write_text("0.25")
    work = "cat /app/in.txt > /app/out.txt; mkdir -p /tests; echo 1 > /tests/planted; echo ok"
    config = CommandAgentConfig.model_validate({
        "command": ["sh", "-c", work],
        "protocol": "text",
        "sandbox": {"kind": "podman", "rootfs": str(rootfs), "engine": ENGINE, "network": "none"},
    })  # fmt: skip
    rule = {"run": grade, "add": str(tmp_path / "tests"), "add_to": "/tests", "reward": "/rewards"}
    seen = {"run": "test ! -e /tests/planted && test -f /tests/one", "add": rule["add"]}
    case = Case(
        input="q",
        workspace={"files": {"in.txt": "in"}, "at": "/app"},  # pyright: ignore[reportArgumentType]
        correctness={"command": [rule, {**seen, "add_to": "/tests"}], "blocking": False},  # pyright: ignore[reportArgumentType]
    )
    run = package.run(Suite(cases=[case]), agent=config, results=tmp_path / "r", trials=1)
    (trial,) = run.trials
    assert [check.score for check in trial.checks] == [0.25, 1.0], (trial.error, trial.checks)
    assert changes_of(run, trial)["paths"] == {"out.txt": "added"}


@pytest.mark.slow
async def test_podman_runs_a_container_per_trial(tmp_path: Path, rootfs: Path, port: int) -> None:
    """R-N6: podman with engine settings as flags: files, exit codes, network by the relay."""
    await in_container(tmp_path / "h", port, kind="podman", rootfs=str(rootfs), engine=ENGINE)


def until_exists(path: Path) -> bool:
    """Wait for a file of another process, which says nothing when it is there."""
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.exists()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, image: str) -> Iterator[tuple[str, str]]:
    """A server that speaks Docker's API (podman's own), and the name of an image it has."""
    socket = tmp_path_factory.mktemp("engine") / "api.sock"
    server = subprocess.Popen(
        ["podman", *ENGINE, "system", "service", "--time=0", f"unix://{socket}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert until_exists(socket)
        yield f"unix://{socket}", image
    finally:
        server.terminate()
        server.wait()


@pytest.mark.slow
async def test_docker_is_used_through_its_api(
    tmp_path: Path, engine: tuple[str, str], port: int
) -> None:
    """R-N6: an engine's HTTP API runs commands with all their streams."""
    options: dict[str, Any] = {"kind": "docker", "image": engine[1], "engine": engine[0]}
    await in_container(tmp_path / "h", port, **options)
    config = CommandAgentConfig(
        command=["sh", "-c", "cat; echo oops >&2; exit 3"],
        protocol="text",
        sandbox=SandboxOptions(**options),
    )
    suite = Suite(cases=[Case(input="x", trials=1, checks=[lambda _: True])])
    trial = (await package.arun(suite, agent=config, results=tmp_path / "r")).trials[0]
    assert trial.status is TrialStatus.FAILED
    assert "code 3: oops" in str(trial.error)


def built_suite(folder: Path, sandbox: Any) -> tuple[Suite, CommandAgentConfig]:
    work = "cat made /tool id; set -- $(ls -l made); echo $1; echo new > /app/new"
    config = CommandAgentConfig.model_validate(
        {"command": ["sh", "-c", work], "protocol": "text", "sandbox": sandbox}
    )
    case = Case(
        id="built",
        input="x",
        workspace={"build": str(folder), "at": "/app"},  # pyright: ignore[reportArgumentType]
        correctness={"command": "test $(cat /app/new) = new"},  # pyright: ignore[reportArgumentType]
    )
    return Suite(cases=[case]), config


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["podman", "docker"])
def test_the_image_of_a_workspace_is_built_once(
    tmp_path: Path, kind: str, engine: tuple[str, str]
) -> None:
    """R-N6: trials start with the image's programs and files; the same content is not rebuilt."""
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "name").write_text("World")
    lines = [
        f"FROM {engine[1]}",
        "WORKDIR /app",
        "COPY name data/",
        "RUN cat data/name > made && chmod 751 made && echo tool > /tool",
        "RUN cat /proc/sys/kernel/random/uuid > id",
    ]
    flags = ENGINE if kind == "podman" else engine[0]
    sandbox = {"kind": kind, "image": "workspace", "engine": flags, "network": "none"}
    suite, config = built_suite(folder, sandbox)
    answers: list[set[str]] = []
    names: set[str] = set()
    try:
        for extra in ([], [], ["RUN cat /proc/sys/kernel/random/uuid > id"]):
            (folder / "Dockerfile").write_text("\n".join([*lines, *extra, "USER 1234"]))
            names.add(f"localhost/proctor-build:{fingerprint(folder)}")
            results = tmp_path / f"r{len(answers)}"
            trials = 1 if answers else 2
            run = package.run(suite, agent=config, results=results, trials=trials, concurrency=2)
            assert all(trial.passed for trial in run.trials), [t.error for t in run.trials]
            changed = [changes_of(run, trial)["paths"] for trial in run.trials]
            assert changed == [{"new": "added"}] * trials
            answers.append({str(trial.answer) for trial in run.trials})
        assert answers[0] == answers[1] != answers[2]
        (answer,) = answers[0]
        assert answer.startswith("Worldtool")
        assert "-rwxr-x--x" in answer
    finally:
        subprocess.run(
            ["podman", *ENGINE, "rmi", "--force", *names], check=False, capture_output=True
        )
    line, reason = {"podman": ("RUN exit 7", "exit status 7"), "docker": ("FRUM x", "FRUM")}[kind]
    (folder / "Dockerfile").write_text("\n".join([lines[0], line]))
    (trial,) = package.run(suite, agent=config, results=tmp_path / "failed", trials=1).trials
    assert trial.status is TrialStatus.INFRA_ERROR
    assert f"{kind} cannot build {folder}" in str(trial.error)
    assert reason in str(trial.error), trial.error


@pytest.mark.parametrize(
    ("sandbox", "reason"),
    [
        (None, "the workspace is an image, which the sandbox 'none' does not use"),
        ({"kind": "podman", "image": "workspace"}, "there is no Dockerfile"),
    ],
)
def test_an_image_that_cannot_be_built_is_no_verdict(
    tmp_path: Path, sandbox: Any, reason: str
) -> None:
    """R-N6: a workspace that is an image needs a sandbox that builds it, and its folder."""
    suite, config = built_suite(tmp_path / "none", sandbox)
    (trial,) = package.run(suite, agent=config, results=tmp_path / "r", trials=1).trials
    assert trial.status is TrialStatus.INFRA_ERROR
    assert reason in str(trial.error)


ESCAPES = r"""
import ctypes, json, os, pathlib, platform, resource, shutil, socket, stat, subprocess, sys
mode, victim = sys.argv[1], sys.argv[2]
here = pathlib.Path.cwd()
found = {}
def attempt(name, work):
    try: found[name] = work()
    except Exception as error: found[name] = type(error).__name__
if mode == "link":  # the workspace itself becomes a link out of the sandbox
    os.chdir("/")
    shutil.rmtree(here)
    here.symlink_to(victim)
elif mode == "deep":  # longer than any path, deeper than any stack
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
    pathlib.Path("hidden.txt").write_text("x")
elif mode == "original":  # what the diff compares with
    (here / "a.txt").write_text("B")
    for path in here.parent.rglob("a.txt"):
        path.write_text("B")
elif mode == "names":
    open(b"\xff\n\x1b[31m", "w").write("x")
    open("-rf", "w").write("x")
    os.mkfifo("pipe")
    os.link("a.txt", "hard")
    os.truncate(os.open("sparse", os.O_CREAT | os.O_RDWR), 1 << 40)
    socket.socket(socket.AF_UNIX).bind("socket")
elif mode == "kernel":
    attempt("mknod", lambda: os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0)))
    attempt("chroot", lambda: os.chroot("/"))
    libc = ctypes.CDLL(None, use_errno=True)
    found["ptrace"] = libc.ptrace(16, int(sys.argv[3]), 0, 0)
    attempt("environ", lambda: pathlib.Path(f"/proc/{sys.argv[3]}/environ").read_bytes() and "read")
    attempt("sysctl", lambda: os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
    attempt("dev", lambda: pathlib.Path("/dev/owned").write_text("x"))
    abstract = socket.socket(socket.AF_UNIX)
    attempt("abstract", lambda: abstract.connect("\0" + sys.argv[4]) or "reached")
    # Processes of this machine, and files beside those that are shown.
    attempt("root", lambda: os.listdir(pathlib.Path("/proc", sys.argv[3], "root")))
    attempt("init", lambda: pathlib.Path("/proc/1", f"root{victim}/secret.txt").read_text())
    attempt("kill", lambda: os.kill(int(sys.argv[3]), 0) or "alive")
    attempt("limits", lambda: resource.prlimit(int(sys.argv[3]), resource.RLIMIT_NOFILE))
    attempt("hardlink", lambda: os.link("/usr/bin/env", "env") or "linked")
    attempt("rename", lambda: os.rename("/usr/bin/env", "/usr/bin/env2") or "renamed")
    attempt("through", lambda: os.symlink(victim, "out") or os.listdir("out"))
    # Networks, of which only IPv4 and IPv6 have a namespace.
    def datagram(family, host):
        return socket.socket(family, socket.SOCK_DGRAM).sendto(b"x", (host, 9)) and "sent"
    attempt("udp", lambda: datagram(socket.AF_INET, "192.0.2.1"))
    attempt("ipv6", lambda: datagram(socket.AF_INET6, "2001:db8::1"))
    attempt("dns", lambda: socket.getaddrinfo("example.com", 80) and "resolved")
    attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) and "raw")
    attempt("vsock", lambda: socket.socket(socket.AF_VSOCK).connect((2, 1024)) or "reached")
    # What needs a privilege, or is in no namespace: mounts, keys, sockets by io_uring.
    found["calls"] = [
        libc.mount(b"none", b"/mnt", b"tmpfs", 0, None),
        libc.umount2(b"/proc/sys", 2),
        libc.sethostname(b"owned", 5),
        libc.syscall({"x86_64": 250, "aarch64": 219}[platform.machine()], 0, -3, 1, 0, 0),
        libc.syscall(425, 8, ctypes.create_string_buffer(256)),
    ]
    inner = "mount --bind / /mnt && cat /mnt$0/secret.txt; mount -o remount,rw,bind /usr"
    unshare = ["unshare", "-Urm", "sh", "-c", inner, victim]
    found["inner"] = subprocess.run(unshare, capture_output=True).returncode
    survivor = ["setsid", "sh", "-c", "trap '' TERM HUP; while :; do date > alive; sleep 0.1; done"]
    subprocess.Popen(survivor, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    def fill():
        with open("/dev/shm/full", "wb") as file:
            for _ in range(1 << 20): file.write(bytes(1 << 20))
    attempt("memory", fill)
    # / itself is held in memory, too.
    memory, root = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), os.statvfs("/")
    found["root share"] = root.f_blocks * root.f_frsize / memory
print(json.dumps(found))
"""


def command_lines() -> list[bytes]:
    """Return the command lines of all processes of this machine."""
    found: list[bytes] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return found


@needs_bwrap
def test_what_an_agent_leaves_leads_nobody_out_of_its_sandbox(tmp_path: Path) -> None:
    """R-N6: links, depth, names and forged originals change neither this machine nor a verdict."""
    for name in ("project", "tests", "victim"):
        (tmp_path / name).mkdir()
    (tmp_path / "project" / "a.txt").write_text("A")
    (tmp_path / "tests" / "owned.txt").write_text("test")
    (tmp_path / "victim" / "secret.txt").write_text("top secret")
    (tmp_path / "agent.py").write_text(ESCAPES)
    name = f"proctor-test-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen()
    command = f"/usr/bin/python3 agent.py {{}} {tmp_path}/victim {os.getpid()} {name}"
    modes = ("link", "deep", "original", "names", "kernel")
    agents = {
        mode: {"kind": "command", "command": command.format(mode), "protocol": "text"}
        for mode in modes
    }
    suite: dict[str, Any] = {
        "sandbox": {"kind": "bwrap", "network": "none"},
        # With a setup, the state after it is what changes are compared with.
        "workspace": {"folder": "project", "setup": ["true"], "keep": ["*"]},
        "agents": agents,
        "cases": [{
            "input": "go",
            "trials": 1,
            "correctness": {
                "command": {"run": "test -e owned.txt", "add": "tests"},
                "files": [{"path": "a.txt", "unchanged": True}],
            },
        }],
    }  # fmt: skip
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    proctor("run", "suite.yaml", cwd=tmp_path)
    listener.close()
    run = package.api.open_run(next((tmp_path / "results").glob("suite/*")))
    trials = {trial.agent: trial for trial in run.trials}
    changes = {mode: changes_of(run, trials[mode]) for mode in modes}
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["secret.txt"]
    assert "top secret" not in json.dumps(changes)
    assert changes["link"]["paths"] == {"a.txt": "removed"}
    assert changes["original"]["paths"] == {"a.txt": "changed"}
    for mode in ("link", "original"):
        assert trials[mode].status is TrialStatus.HARD_FAIL, trials[mode].checks
    for mode in ("deep", "names", "kernel"):
        assert trials[mode].status is TrialStatus.PASSED, (mode, trials[mode].error)
    (deep,) = changes["deep"]["paths"]
    assert deep.startswith("d/d/d/")
    assert {"-rf", "hard", "pipe", "socket", "sparse"} < changes["names"]["paths"].keys()
    found = json.loads(str(trials["kernel"].answer))
    assert found.pop("ptrace") == -1
    assert found.pop("calls") == [-1] * 5
    assert found.pop("inner") != 0
    assert found.pop("root share") < 0.1
    refused = {"PermissionError", "FileNotFoundError", "OSError", "ConnectionRefusedError"}
    refused |= {"ProcessLookupError", "gaierror"}
    assert not any(b"> alive" in command for command in command_lines())
    assert set(found.values()) <= refused, found
    left = [p for trial in run.trials if (p := trial.workdir) is not None]
    assert not left


@needs_bwrap
async def test_an_agent_cannot_change_what_starts_the_checks(tmp_path: Path) -> None:
    """R-N6: with an allow list, the forwarder also starts the commands of checks."""
    async with running(tmp_path / "a", kind="bwrap", network=["example.com"]) as place:
        forge = "for f in .net/*.py; do printf 'raise SystemExit(0)' > $f; done; true"
        assert (await place.run(forge, seconds=60)).code == 0
        done = await place.run("echo judged; exit 3", seconds=60)
        assert (done.code, "judged" in done.output) == (3, True)
        overwritten = await place.run(f"echo > {FORWARDER}", seconds=60)
        assert overwritten.code != 0
    assert FORWARDER.stat().st_size > 1000


@needs_bwrap
def test_files_of_a_program_that_are_no_files_are_not_waited_for(tmp_path: Path) -> None:
    """R-N5, R-N6: a session that is a pipe or a link out is no session; a turn follows no link."""
    (tmp_path / "secret.jsonl").write_text('{"type": "result", "result": "top secret"}\n')
    program = tmp_path / "codex"
    program.write_text(
        "#!/bin/sh\n"
        'mkdir -p "$CODEX_HOME/sessions"\n'
        'mkfifo "$CODEX_HOME/sessions/rollout-1.jsonl" 2>/dev/null\n'
        f'ln -sf {tmp_path}/secret.jsonl "$CODEX_HOME/sessions/rollout-2.jsonl"\n'
        f'ln -sf {tmp_path}/victim "$CODEX_HOME/.keep"\n'
        "echo fine\n"
    )
    program.chmod(0o755)
    (tmp_path / "victim").write_text("before")
    agent = {"kind": "codex", "command": [str(program)], "gateway": False}
    suite = {
        "sandbox": {"kind": "bwrap", "read": [str(program)]},
        "agent": agent,
        "cases": [{"turns": ["one", "two"], "correctness": {"expected_in_answer": ["fine"]}}],
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    proctor("run", "suite.yaml", "--trials", "1", "--timeout", "120", cwd=tmp_path)
    (trial,) = package.api.open_run(next((tmp_path / "results").glob("suite/*"))).trials
    assert trial.status is TrialStatus.PASSED, (trial.error, trial.checks)
    assert (tmp_path / "victim").read_text() == "before"


@needs_bwrap
def test_programs_that_a_suite_names_are_shown_and_nothing_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-N6: a grader outside /usr is found by its name; its neighbours stay hidden."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "secret").write_text("secret")
    (tools / "grade").write_text(f"#!/bin/sh\ntest ! -e {tools}/secret && echo graded\n")
    (tools / "grade").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    (tmp_path / "suite.yaml").write_text(
        "sandbox: bwrap\nworkspace: {files: {a.txt: a}}\n"
        "agent: {kind: command, command: /bin/echo fine, protocol: text}\n"
        "cases:\n  - input: go\n    trials: 1\n"
        "    correctness: {command: {run: grade a.txt, contains: graded}}\n"
    )
    proctor("run", "suite.yaml", cwd=tmp_path)
    (trial,) = package.api.open_run(next((tmp_path / "results").glob("suite/*"))).trials
    assert trial.passed, trial.checks


@needs_bwrap
def test_the_program_of_an_agent_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-N6: a program outside /usr, also by a link; one that is missing is no agent's failure."""
    bins, tool = tmp_path / "bin", tmp_path / "elsewhere" / "tool"
    for folder in (bins, tool.parent):
        folder.mkdir()
    (tool.parent / "secret").write_text("secret")
    tool.write_text("#!/bin/sh\ntest ! -e $(dirname $0)/secret && echo fine\n")
    tool.chmod(0o755)
    (bins / "linked").symlink_to(tool)
    monkeypatch.setenv("PATH", str(bins), prepend=":")
    ours = {"command": [sys.executable, "-c", "import msgspec; print('fine')"]}
    agents = {
        "linked": {"kind": "command", "protocol": "text", "command": ["linked"]},
        "environment": {"kind": "command", "protocol": "text", **ours},
        "missing": {"kind": "command", "protocol": "text", "command": ["no-such-tool"]},
        "uninstalled": {"kind": "codex", "command": ["no-such-codex"]},
    }
    case = {"input": "go", "correctness": {"expected_in_answer": ["fine"]}}
    suite = {"sandbox": "bwrap", "agents": agents, "cases": [case]}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    proctor("run", "suite.yaml", "--trials", "1", cwd=tmp_path)
    run = package.api.open_run(next((tmp_path / "results").glob("suite/*")))
    found = {trial.agent: trial for trial in run.trials}
    assert found["linked"].passed, found["linked"].error
    assert found["environment"].passed, found["environment"].error
    for name in ("missing", "uninstalled"):
        assert found[name].status is TrialStatus.INFRA_ERROR
    error = found["uninstalled"].error
    assert error is not None
    assert "npm install -g @openai/codex" in error.message
    boxed = {"kind": "podman", "image": "an-image"}
    # What is in an image is known when it runs.
    agent_config({"kind": "codex", "command": ["no-such-codex"], "sandbox": boxed}).check()


@needs_bwrap
def test_pytest_beside_proctor_grades_in_a_sandbox(tmp_path: Path) -> None:
    """R-N6: the README's suite works in a clone, whose pytest loads Proctor from outside of it."""
    pytest_here = Path(sys.executable).with_name("pytest")
    test = "def test_it():\n    assert open('a.txt').read() == 'a'\n"
    (tmp_path / "suite.yaml").write_text(
        f"sandbox: bwrap\nworkspace: {{files: {{a.txt: a, test_a.py: {json.dumps(test)}}}}}\n"
        "agent: {kind: command, command: /bin/echo fine, protocol: text}\n"
        "cases:\n  - input: go\n    trials: 1\n"
        f"    correctness: {{command: {pytest_here} -q}}\n"
    )
    done = proctor("run", "suite.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_an_installation_is_what_a_program_needs(tmp_path: Path) -> None:
    """R-N6: packages of Node, a virtual environment with its Python, or the file alone."""
    script = tmp_path / "lib" / "node_modules" / "@x" / "cli" / "node_modules" / "y" / "cli.js"
    script.parent.mkdir(parents=True)
    script.write_text("#!/usr/bin/env no-such-interpreter\n")
    script.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cli").symlink_to(script)
    assert installation(tmp_path / "bin" / "cli") == [tmp_path / "lib" / "node_modules"]
    alone = tmp_path / "bin" / "alone"
    alone.write_bytes(b"\x7fELF")
    assert installation(alone) == [alone]
    (tmp_path / "pyvenv.cfg").write_text("")
    base = tmp_path / "pythons" / "3"
    (base / "bin").mkdir(parents=True)
    (base / "bin" / "python3").write_text("")
    (tmp_path / "bin" / "python").symlink_to(base / "bin" / "python3")
    assert installation(alone) == [tmp_path, base]
    assert installation(tmp_path / "bin" / "python") == [tmp_path, base]
    assert installation(Path("/usr/bin/env")) == []
