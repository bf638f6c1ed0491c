"""`proctor --version` and `--help` start about as fast as Python itself.

How long they take is measured in benchmarks/startup.py; here is what makes it so: what they
import, and that they open no socket.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Runs `python -m proctor ARGS` while watching; reports as JSON on standard error.
WATCH = """
import json, runpy, sys
before, sockets = set(sys.modules), []
sys.addaudithook(lambda event, args: event.startswith("socket.") and sockets.append(event))
code = None
try:
    runpy.run_module("proctor", run_name="__main__", alter_sys=True)
except SystemExit as stop:
    code = stop.code
report = {"imported": sorted(set(sys.modules) - before), "sockets": sockets, "code": code}
print(json.dumps(report), file=sys.stderr)
"""

# Slow to import, or a sign that something is about to do more than print help.
HEAVY_STDLIB = {
    "asyncio",
    "concurrent",
    "email",
    "http",
    "logging",
    "multiprocessing",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "unittest",
    "urllib",
    "xml",
}


def watch(*args: str) -> tuple[str, dict[str, list[str]]]:
    done = subprocess.run(
        [sys.executable, "-c", WATCH, *args], capture_output=True, text=True, check=True
    )
    return done.stdout, json.loads(done.stderr)


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["-h"]])
def test_imports_nothing_heavy_and_opens_no_socket(args: list[str]) -> None:
    _, report = watch(*args)
    top = {name.partition(".")[0] for name in report["imported"]}
    assert top - sys.stdlib_module_names == {"proctor", "click"}
    assert top & HEAVY_STDLIB == set()
    assert [name for name in report["imported"] if name.startswith("proctor.")] == [
        "proctor._lazy",
        "proctor.cli",
        "proctor.cli._command",
        "proctor.cli.main",
        "proctor.errors",
        "proctor.sanitize",
    ]
    assert report["sockets"] == []
    assert report["code"] == 0


def test_the_watch_sees_sockets_and_imports(tmp_path: Path) -> None:
    spy = "import socket, yaml; socket.socket().close()"
    code = WATCH.replace('runpy.run_module("proctor", run_name="__main__", alter_sys=True)', spy)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    report = json.loads(done.stderr)
    assert report["sockets"] == ["socket.__new__"]
    assert {"socket", "yaml"} <= set(report["imported"])


def test_importing_the_package_imports_no_other_package() -> None:
    code = "import sys; b = set(sys.modules); import proctor; print(*(set(sys.modules) - b))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    top = {name.partition(".")[0] for name in done.stdout.split()}
    assert top - sys.stdlib_module_names == {"proctor"}


def test_help_lists_every_command_with_examples() -> None:
    out, _ = watch("--help")
    listed = out.partition("Start:")[2].partition("Examples:")[0].splitlines()
    from proctor.cli.main import cli

    names = [line.split()[0] for line in listed if re.match(r"  \S", line)]
    assert sorted(names) == sorted(cli.table)
    assert "proctor demo" in out.partition("Examples:")[2]
