"""Baselines: saved traces of an agent for each case, under a version, to compare with later.

Guarantees: a file is written whole or not at all, holds the identity it was saved under, and is
never replaced by another case, agent or version, whatever their names. One JSON file per case, so
that a review shows what changed; the cost is that listing opens every file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

import proctor
from proctor.errors import ProctorError, did_you_mean
from proctor.files import read_bounded, write_atomic
from proctor.runs.folder import safe_name
from proctor.runs.segments import MAX_TRACE
from proctor.runs.trial import TrialStatus
from proctor.sanitize import without_surrogates
from proctor.trace import Trace
from proctor.trace.assemble import Collector
from proctor.trace.formats import native

FORMAT = 1
"""Version of the file format; a newer one is refused."""

MAX_PART = 60
"""Maximum characters of a name in a path: three parts and a folder stay under Windows' 260."""

HASH_CHARS = 8
"""Hex digits of SHA-256 after a changed name: 32 bits distinguish the cases of a suite."""


class BaselineError(ProctorError):
    """A baseline that cannot be read or written."""


class Precheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Check results of the saved trial.

    `judged` counts the correctness checks with a result; with none the answer was never checked.
    `forced` means it was saved although it did not pass.
    """

    status: TrialStatus
    judged: int = 0
    score: float | None = None
    forced: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the trial passed."""
        return self.status == TrialStatus.PASSED


class Baseline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Metadata of one saved trial; its trace is read separately by `BaselineStore.load`."""

    agent: str
    version: str
    case: str
    saved: Annotated[datetime, msgspec.Meta(tz=True)]
    spec_hash: str
    precheck: Precheck
    models: tuple[str, ...] = ()
    proctor: str = proctor.__version__
    answer: str | None = None


class LoadedBaseline(NamedTuple):
    """A baseline with its trace and its file."""

    baseline: Baseline
    trace: Trace
    path: Path


class Listing(NamedTuple):
    """Every readable baseline, and a line for each unreadable one."""

    baselines: list[Baseline]
    problems: list[str]


class _File(Baseline, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a file: metadata, then the trace in Proctor's own format."""

    proctor_baseline: int = 0
    # Raw, so that a listing does not decode traces.
    trace: msgspec.Raw = msgspec.Raw(b"null")


class BaselineStore:
    """The baselines folder of one or more suites.

    baselines/
      <agent>/                  safe_name(agent), with a hash when that changed the name
        <version>/              the same for the version
          <case>.json           metadata, answer, and the redacted trace

    The file states its own identity; its path is only where to look first.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def path_of(self, agent: str, version: str, case: str) -> Path:
        """Return the path of a baseline, existing or not."""
        return self.root / part_name(agent) / part_name(version) / f"{part_name(case)}.json"

    def save(self, baseline: Baseline, trace: Trace, *, force: bool = False) -> Path:
        """Write a baseline and return its path. `trace` must be redacted already.

        An existing one is replaced only with `force`, and only when it is of the same case.
        """
        path = self.path_of(baseline.agent, baseline.version, baseline.case)
        if path.exists():
            self._refuse(path, baseline, force=force)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BaselineError(
                f"cannot make the folder: {error.strerror}", where=str(path.parent)
            ) from None
        write_atomic(path, _encoded(baseline, trace))
        return path

    def exists(self, agent: str, version: str, case: str) -> bool:
        """Return whether a case has been saved under a version."""
        return self.path_of(agent, version, case).exists()

    def load(
        self,
        agent: str,
        case: str,
        version: str | None = None,
        *,
        problems: list[str] | None = None,
    ) -> LoadedBaseline | None:
        """Return the baseline of a case; None without.

        The default is the newest version by time whose trial passed: one that was saved by force
        although it failed must be named. A damaged file is an error when it was requested
        explicitly, otherwise listed in `problems`.
        """
        if version is not None:
            path = self.path_of(agent, version, case)
            return self._read(path, agent=agent, version=version, case=case)
        found: list[LoadedBaseline] = []
        for path in self._files(part_name(agent), f"{part_name(case)}.json"):
            try:
                loaded = self._read(path, agent=agent, case=case)
            except BaselineError as error:
                if problems is not None:
                    problems.append(str(error))
            else:
                found += [loaded] if loaded is not None and loaded.baseline.precheck.passed else []
        # By time, since versions are names of the user's own and have no order.
        return max(found, key=lambda each: each.baseline.saved, default=None)

    def list(self, agent: str | None = None) -> Listing:
        """Return every baseline of one agent or of all, by agent, time and case."""
        listing = Listing([], [])
        for path in self._files("*" if agent is None else part_name(agent), "*.json"):
            try:
                listing.baselines.append(_metadata(_decoded(path)))
            except BaselineError as error:
                listing.problems.append(str(error))
        # Versions are listed by their first case: one may be extended after the next was begun.
        first: dict[tuple[str, str], datetime] = {}
        for each in listing.baselines:
            key = (each.agent, each.version)
            first[key] = min(each.saved, first.get(key, each.saved))
        listing.baselines.sort(
            key=lambda b: (b.agent, first[b.agent, b.version], b.version, b.case)
        )
        return listing

    def versions(self, agent: str) -> list[str]:
        """Return the versions of an agent, by the time they were started."""
        return list(dict.fromkeys(each.version for each in self.list(agent).baselines))

    def missing(
        self, agent: str, version: str, case: str, versions: Sequence[str] | None = None
    ) -> str:
        """Return one line on why a baseline is missing, and what to do.

        `versions` of the agent, where they are known: finding them opens every file.
        """
        versions = self.versions(agent) if versions is None else versions
        if version in versions:
            save = f"proctor baseline save --version {version}"
            return f"{version} has no case {case!r}: save it with `{save}`"
        near = did_you_mean(version, versions)
        known = near or (f"known: {', '.join(versions)}" if versions else "none is saved yet")
        return f"agent {agent!r} has no version {version!r} in {self.root}: {known}"

    # -- files ------------------------------------------------------------------------------------

    def _files(self, agent: str, case: str) -> Iterator[Path]:
        # Names contain only letters, digits, dots and dashes: no glob patterns.
        return iter(sorted(p for p in self.root.glob(f"{agent}/*/{case}") if p.is_file()))

    def _read(self, path: Path, **expected: str) -> LoadedBaseline | None:
        if not path.exists():
            return None
        file = _decoded(path)
        if any(getattr(file, key) != value for key, value in expected.items()):
            return None  # the file of another case, at the path this name would use
        out = Collector(str(path))
        native.read(msgspec.json.decode(file.trace), out)
        if out.problems or not out.finished:
            # A partial trace would show up as a change of behaviour.
            reason = out.problems[0].message if out.problems else "it holds no trace"
            raise BaselineError(f"damaged baseline: {reason}", where=str(path))
        return LoadedBaseline(_metadata(file), out.finished[0], path)

    def _refuse(self, path: Path, baseline: Baseline, *, force: bool) -> None:
        """Raise if a file must not be replaced."""
        if not force:
            raise BaselineError(
                f"case {baseline.case!r} is already saved as {baseline.version}",
                where=str(path),
                hint="choose another --version, or replace it with --force",
            )
        try:
            there = _decoded(path)
        except BaselineError:
            return  # damaged, and requested explicitly
        mine = (baseline.agent, baseline.version, baseline.case)
        if (there.agent, there.version, there.case) != mine:
            raise BaselineError(
                f"holds {there.case!r} of agent {there.agent!r}, version {there.version!r}",
                where=str(path),
                hint="rename one of the two: their file names are the same",
            )


def part_name(text: str) -> str:
    """Return one path component for a user-given name.

    Different names get different paths, also on file systems that ignore case or rewrite accents: a
    name that is not plain lower-case ASCII carries a hash of the whole.
    """
    name = safe_name(text)[:MAX_PART].rstrip("-. ")
    if name == text and name.isascii() and name == name.lower():
        return name
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name}-{digest[:HASH_CHARS]}"


def now() -> datetime:
    """Return the time of saving, to the millisecond."""
    time = datetime.now(UTC)
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def models_of(trace: Trace) -> tuple[str, ...]:
    """Return the models a trace called, each once, by first call."""
    return tuple(dict.fromkeys(span.model for span in trace.llm_calls if span.model))


def _encoded(baseline: Baseline, trace: Trace) -> bytes:
    document = {
        "proctor_baseline": FORMAT,
        **without_surrogates(msgspec.to_builtins(baseline)),
        "trace": msgspec.Raw(native.encode_trace(trace).rstrip(b"\n")),
    }
    # Indented, so that a review shows what changed line by line.
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _decoded(path: Path) -> _File:
    try:
        file = msgspec.json.decode(read_bounded(path, MAX_TRACE), type=_File)
    except (OSError, ProctorError) as error:
        raise BaselineError(f"cannot be read: {error}", where=str(path)) from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BaselineError(f"damaged baseline: {error}", where=str(path)) from None
    if file.proctor_baseline != FORMAT:
        raise BaselineError(
            f"has format {file.proctor_baseline}, this version reads {FORMAT}",
            where=str(path),
            hint="save it again, or upgrade proctor",
        )
    return file


def _metadata(file: _File) -> Baseline:
    return Baseline(**{name: getattr(file, name) for name in Baseline.__struct_fields__})
