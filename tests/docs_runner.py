"""Runs the steps of a page as its reader would: in an empty folder, from the top.

Commands of `proctor` run inside this process (a start costs half a second and pages have
hundreds), so a page belongs to a process of its own, forked from one that has the imports.
Whatever else a page runs (pytest, python, a pipe) is a process as usual.
"""

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from docs_blocks import ROOT, Command, PageError, Step, steps, words

import proctor
import proctor.results
from proctor.agents.registry import agent_config
from proctor.checks.judge import rubric_from
from proctor.checks.quality import QualityConfig
from proctor.cli.main import run as run_command
from proctor.llm.mock import load_script
from proctor.spec import load_configuration, load_suite
from proctor.spec.load import load_experiments
from proctor.trace import parse_query

START = ROOT / "tests" / "docs" / "start"
NOWHERE = "http://127.0.0.1:9"
"""A proxy that is not there: a page that reaches for the network fails at once."""

SERVER_PATIENCE = 60.0
"""Seconds until a server must have said where it is; machines in CI are slow."""

LOOSE = [
    (r"\d{4}-\d\d-\d\d_\d{3}", r"\d{4}-\d\d-\d\d_\d{3}"),
    (r"\d{4}-\d\d-\d\d", r"\d{4}-\d\d-\d\d"),
    (r"\b\d[\d,.]*(?: ?(?:ns|µs|ms|s|min|kB|MB)\b)", r"[\d,.]+ ?(?:ns|µs|ms|s|min|kB|MB)"),
    (r"\b[0-9a-f]{8,}\b", "[0-9a-f]{8,}"),
    (r"127\.0\.0\.1:\d+|localhost:\d+", r"(?:127\.0\.0\.1|localhost):\d+"),
    (r"…", ".*"),
    (r"\s+", r"\s+"),
]
"""What may differ between a shown line and the real one: days, times, sizes, ids, ports, cuts."""


def run_page(page: Path, folder: Path, report: Path) -> None:
    """Run every step of a page and write what went wrong, if anything, to the report."""
    problem = None
    runner = Runner(folder)
    try:
        for step in steps(page):
            runner.step(step)
    except PageError as error:
        problem = str(error)
    except Exception:  # noqa: BLE001  told to whoever waits for this process
        problem = traceback.format_exc()
    finally:
        runner.close()
    report.write_text(json.dumps({"problem": problem, "ran": runner.ran}), encoding="utf-8")


class Runner:
    """A reader at work: a folder, an environment, what Python knows, servers that were started."""

    def __init__(self, folder: Path) -> None:
        self.cwd = self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.servers: list[subprocess.Popen[bytes]] = []
        self.ran = 0
        folder.mkdir(parents=True)
        os.chdir(folder)
        home = folder.with_name("home")
        _set_environment(home)
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = True  # a module that a page writes twice within a second
        self._log = home / "output"
        self._log.touch()
        target = os.open(self._log, os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(target, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (open as long as the process)
        sys.stdout, sys.stderr = (
            open(stream, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115 (open as long as the process)
            for stream in (1, 2)
        )

    def close(self) -> None:
        """Stop the servers of the page."""
        for server in self.servers:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()

    def step(self, step: Step) -> None:
        """Run one step, or say where and why it does not work."""
        try:
            if "not run" not in step.notes:
                self._step(step)
                self.ran += 1
        except PageError:
            raise
        except Exception as error:
            told = traceback.format_exc() if step.language == "python" else str(error)
            raise PageError(f"line {step.line} ({step.language}): {told}") from error

    def _step(self, step: Step) -> None:
        if not step.language:
            raise PageError(f"line {step.line}: a block without a language (for output: `text`)")
        if step.language == "start":
            self._start(step.text)
        elif step.title is not None:
            path = self.cwd / step.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
            if path.suffix == ".py":
                ast.parse(step.text)
        elif step.language in ("bash", "console", "first"):
            self._commands(step)
        elif step.language == "python":
            self._python(step)
        elif step.language == "text":
            _check_text(step)
        elif step.language in FRAGMENTS:
            FRAGMENTS[step.language](step, self.cwd)
        else:
            raise PageError(f"line {step.line}: nothing is known of {step.language!r} blocks")

    def _start(self, names: str) -> None:
        """Copy the files a page begins with, and run what its reader has run before."""
        for name in names.split():
            if name.startswith("examples/"):  # of a clone of this repository
                skipped = shutil.ignore_patterns("results", "__pycache__", ".proctor")
                shutil.copytree(ROOT / name, self.folder / name, ignore=skipped)
            else:
                shutil.copytree(START / name, self.folder, dirs_exist_ok=True)
        first = self.folder / "first.txt"
        if first.exists():
            self._commands(Step(0, "first", first.read_text(encoding="utf-8")))
            first.unlink()

    # --- commands ----------------------------------------------------------------------------

    def _commands(self, step: Step) -> None:
        commands = step.commands
        if not commands:
            raise PageError(f"line {step.line}: no command in it")
        for number, (command, code) in enumerate(
            zip(commands, step.codes(len(commands)), strict=True)
        ):
            if "serves" in step.notes and number == len(commands) - 1:
                told = self._serve(command, step.notes["serves"])
            else:
                got, told = self._run(command)
                before = step.language == "first" and got == 1  # agents that fail, as some must
                if got != code and not before:
                    what = f"line {command.line}: `{command.text}` ended with {got}, not {code}"
                    raise PageError(f"{what}\n{told}")
            _compare(command, told)

    def _run(self, command: Command) -> tuple[int, str]:
        start = self._mark()
        parts = words(command.text)
        if parts and parts[0] == "cd":
            self.cwd = (self.cwd / parts[1]).resolve()
            os.chdir(self.cwd)
            sys.path.insert(0, str(self.cwd))
            code = 0
        elif "pip install" in command.text:
            code = _known_extras(command)
        elif parts and parts[0] == "proctor":
            self._forget_modules()
            code = run_command(parts[1:])
        else:
            code = subprocess.run(
                ["bash", "-c", command.text], cwd=self.cwd, check=False, timeout=200
            ).returncode
        return code, self._told(start)

    def _serve(self, command: Command, options: str) -> str:
        start = self._mark()
        server = subprocess.Popen(["bash", "-c", f"exec {command.text} {options}"], cwd=self.cwd)
        self.servers.append(server)
        end = time.monotonic() + SERVER_PATIENCE
        while "http://" not in (told := self._told(start)):
            if server.poll() is not None or time.monotonic() > end:
                raise PageError(f"line {command.line}: `{command.text}` serves nothing\n{told}")
            time.sleep(0.05)
        # What it says to set, its reader sets.
        os.environ.update(re.findall(r"^export (\w+)=(\S+)$", told, re.MULTILINE))
        return told

    def _mark(self) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        return self._log.stat().st_size

    def _told(self, start: int) -> str:
        self._mark()
        return self._log.read_bytes()[start:].decode("utf-8", "replace")

    def _forget_modules(self) -> None:
        """The next command imports the agents of the page anew, as a new process would."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(self.folder)):
                del sys.modules[name]
        importlib.invalidate_caches()

    # --- Python ------------------------------------------------------------------------------

    def _python(self, step: Step) -> None:
        self._forget_modules()
        if ">>> " in step.text:
            self._doctest(step)
            return
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile("\n" * step.line + step.text, "page", "exec", flags=flags)
        if code.co_flags & inspect.CO_COROUTINE:
            raise PageError(f"line {step.line}: `await` outside of a function: nobody can paste it")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, self.names)

    def _doctest(self, step: Step) -> None:
        told: list[str] = []
        test = doctest.DocTestParser().get_doctest(step.text, self.names, "page", None, step.line)
        test.globs = self.names
        result = doctest.DocTestRunner(verbose=False).run(test, out=told.append, clear_globs=False)
        if result.failed:
            raise PageError("".join(told))


def _set_environment(home: Path) -> None:
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
    environ = {name: os.environ[name] for name in kept if name in os.environ}
    for part in ("config", "cache", "data", "state"):
        environ[f"XDG_{part.upper()}_HOME"] = str(home / part)
    environ |= {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        "NO_COLOR": "1",
        "REPOSITORY": str(ROOT),  # for hidden commands; no page shows it
        "COLUMNS": "100",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the plugins of this environment: seconds a start
        "PYTEST_PLUGINS": "proctor.pytest_plugin",
        "HTTP_PROXY": NOWHERE,
        "HTTPS_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1,localhost",
    }
    home.mkdir()
    os.environ.clear()
    os.environ.update(environ)


def _compare(command: Command, told: str) -> None:
    """Whether every line shown stands in the output, in this order."""
    at = 0
    for line in command.shown:
        if line.strip() == "…":
            continue
        match = re.compile(_pattern(line.strip()), re.MULTILINE).search(told, at)
        if match is None:
            raise PageError(
                f"line {command.line}: `{command.text}` does not print\n  {line}\nbut\n{told}"
            )
        at = match.end()


def _pattern(line: str) -> str:
    """The shown line as a pattern in which what may differ does."""
    loose = re.compile("|".join(f"(?P<g{n}>{what})" for n, (what, _) in enumerate(LOOSE)))
    made, at = [r"^\s*"], 0
    for match in loose.finditer(line):
        made += [re.escape(line[at : match.start()]), LOOSE[int((match.lastgroup or "g0")[1:])][1]]
        at = match.end()
    return "".join([*made, re.escape(line[at:]), r"\s*$"])


def _known_extras(command: Command) -> int:
    """Nothing is installed here; the extras that are named must be there to install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for named in re.findall(r"proctor\[([\w,-]+)\]", command.text):
        unknown = set(named.split(",")) - {*project["optional-dependencies"]}
        if unknown:
            raise PageError(f"line {command.line}: no such extra: {sorted(unknown)}")
    return 0


def _check_text(step: Step) -> None:
    if re.search(r"^(\$ |proctor |pip |pytest )", step.text, re.MULTILINE):
        raise PageError(f"line {step.line}: commands are `bash` or `console`, not `text`")


# --- fragments: blocks that are no file and no command ---------------------------------------


def _suite(text: str, cwd: Path) -> None:
    path = cwd / "fragment.suite.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        load_suite(path)
    finally:
        path.unlink()


def _experiment(text: str, cwd: Path) -> None:
    path = cwd / "fragment.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        load_experiments(path)
    finally:
        path.unlink()


def _settings(text: str, cwd: Path) -> None:
    folder = cwd / "fragment"
    folder.mkdir()
    (folder / "proctor.yaml").write_text(text, encoding="utf-8")
    try:
        load_configuration(folder, environ=_AnyVariable())
    finally:
        shutil.rmtree(folder)


class _AnyVariable(dict[str, str]):
    """An environment in which every variable that a fragment refers to is set."""

    def __contains__(self, name: object) -> bool:
        return not str(name).startswith("PROCTOR_")

    def get(self, name: str, default: Any = None) -> Any:
        return default if name.startswith(("PROCTOR_", "XDG_", "HOME")) else "value"

    def __missing__(self, name: str) -> str:
        return "value"


def _cases(text: str, cwd: Path) -> None:
    _suite(f"agent: agent:answer\n{text}", cwd)


def _case(text: str, cwd: Path, layer: str | None = None) -> None:
    part = yaml.safe_load(text)
    case = {"input": "What?", **({layer: part} if layer else part)}
    whole = {
        "agent": "agent:answer",
        "judges": {"strict": {"model": "openai:gpt-4o-mini"}},
        "cases": [case],
    }
    _suite(yaml.safe_dump(whole, allow_unicode=True), cwd)


def _template(text: str, cwd: Path) -> None:
    path = cwd / "fragment" / "part" / "spec.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    try:
        proctor.scenarios.build("part", seed=1, catalog=cwd / "fragment")
    finally:
        shutil.rmtree(cwd / "fragment")


KINDS: dict[str, Callable[[str, Path], Any]] = {
    "suite": _suite,
    "experiment": _experiment,
    "settings": _settings,
    "cases": _cases,
    "case": _case,
    "correctness": lambda text, cwd: _case(text, cwd, "correctness"),
    "path": lambda text, cwd: _case(text, cwd, "path"),
    "agent": lambda text, cwd: agent_config(yaml.safe_load(text)),
    "query": lambda text, cwd: parse_query(yaml.safe_load(text)),
    "rubric": lambda text, cwd: rubric_from(yaml.safe_load(text)),
    "script": lambda text, cwd: load_script(yaml.safe_load(text)),
    "quality": lambda text, cwd: QualityConfig.model_validate(yaml.safe_load(text)),
    "template": _template,
    "yaml": lambda text, cwd: yaml.safe_load(text),
}
"""What a YAML block without a file name may be."""


def _yaml(step: Step, cwd: Path) -> None:
    kind = step.notes.get("is") or step.notes.get("every yaml is")
    if kind not in KINDS:
        told = f"not {kind!r}" if kind else "in a comment before it"
        raise PageError(f"line {step.line}: say what it is ({', '.join(KINDS)}), {told}")
    KINDS[kind](step.text, cwd)


def _jsonl(step: Step, cwd: Path) -> None:
    for line in step.text.splitlines():
        json.loads(line)


FRAGMENTS: dict[str, Callable[[Step, Path], Any]] = {
    "yaml": _yaml,
    "json": lambda step, cwd: json.loads(step.text),
    "jsonl": _jsonl,
    "toml": lambda step, cwd: tomllib.loads(step.text),
}
