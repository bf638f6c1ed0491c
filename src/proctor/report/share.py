"""Share a run as one page or as a zip of its folder, redacted again.

    OUT.zip
      CONTENTS.md          list of files with sizes and SHA-256
      report.html  report.md
      run/                 an ordinary run folder: `proctor report run/` reads it

Guarantees: every text of every file passes the redactor with the current patterns and the secrets
of the current environment; names of the machine, the user and local folders are left out.
Trade-off: a secret without a recognisable shape, name or pattern is missed, so check before
sending.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError
from proctor.files import write_atomic
from proctor.formatting import byte_size, plural
from proctor.report import _markdown
from proctor.report.facts import ReportFacts
from proctor.report.html.page import render_page
from proctor.report.html.trial_data import PageTexts
from proctor.results.metadata import finalise
from proctor.runs.folder import RunFolder, run_name
from proctor.runs.journal import Sync
from proctor.runs.run import Run
from proctor.runs.segments import SegmentWriter
from proctor.runs.trial import Trial
from proctor.sanitize import json_bytes, map_texts
from proctor.trace.redact import Redactor
from proctor.user_dirs import with_folder

PRIVATE = ("host", "user", "platform")
"""Provenance that identifies a machine or a person and says nothing about the run."""

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every zip entry, so that equal runs give equal files."""

_HOMES = re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s\"':]+")


class Shared(NamedTuple):
    """The written file, its size, its contents, and the number of redacted secrets."""

    path: Path
    size: int
    inside: tuple[str, ...]
    redacted: int


def share(run: Run, target: Path, redactor: Redactor) -> Shared:
    """Write a run to one file; the suffix `.html` or `.zip` selects the format."""
    suffix = target.suffix.lower()
    if suffix == ".zip":
        return _share_zip(run, with_folder(target), redactor)
    if suffix != ".html":
        raise ProctorError(
            f"cannot share as {target.suffix or 'a file without a suffix'}",
            where=str(target),
            hint="name a file that ends in .html or .zip",
        )
    page = render_page(run, without_private(ReportFacts(run)), redactor=redactor)
    write_atomic(with_folder(target), page.text.encode())
    return Shared(target, page.size, page.inside, page.redacted)


def without_private(facts: ReportFacts) -> ReportFacts:
    """Return the facts without the machine, the user and the location of the run."""
    known = {name: value for name, value in facts.provenance.items() if name not in PRIVATE}
    place = run_name(Path(facts.path))
    return facts.replace(provenance=known, path=place)


# -- a zip -------------------------------------------------------------------------------------


def _share_zip(run: Run, target: Path, redactor: Redactor) -> Shared:
    texts = PageTexts(redactor)
    with tempfile.TemporaryDirectory(prefix="proctor-share-") as place:
        folder = RunFolder(Path(place) / "run")
        folder.path.mkdir()
        unreadable = copy_run(run, folder, texts)
        copied = Run(folder.path)
        # Reports are written from the redacted copy, so nothing reaches them unredacted.
        facts = without_private(ReportFacts(copied))
        facts.path = "run"
        page = render_page(copied, facts, redactor=redactor)
        files = {
            "report.html": page.text.encode(),
            "report.md": _markdown.render(facts).encode(),
            # Hidden files, such as the lock, are no part of a run.
            **{
                f"run/{path.relative_to(folder.path).as_posix()}": path.read_bytes()
                for path in sorted(folder.path.rglob("*"))
                if path.is_file() and not path.name.startswith(".")
            },
        }
    redacted = texts.redacted + page.redacted
    files = {"CONTENTS.md": _contents(facts, files, redacted).encode(), **files}
    # The temporary file moves to disk where the archive is large.
    with tempfile.SpooledTemporaryFile(max_size=64 << 20) as aside:
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, content in files.items():
                archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
        aside.seek(0)
        write_atomic(target, aside.read())
    inside = tuple(f"{name}  {byte_size(len(content))}" for name, content in files.items())
    inside += tuple(f"not in it: the trace of {line}" for line in unreadable)
    return Shared(target, target.stat().st_size, inside, redacted)


def copy_run(run: Run, target: RunFolder, texts: PageTexts) -> list[str]:
    """Copy the trials and traces of a run, each redacted, to another folder.

    Return the traces that cannot be read: they are not in the copy.
    """
    unreadable: list[str] = []
    target.write_spec(_spec(run.spec, texts))
    # A crash loses only this copy, so nothing is forced to disk.
    journal = target.journal(Sync.NEVER)
    segments = SegmentWriter(target.traces_path)
    try:
        for trial in run.trials():
            trace = run.readable_trace(trial, unreadable)
            redacted: Trial = texts.redact(trial)
            # Redaction changes lengths, so traces get new places; working folders stay here.
            place = None if trace is None else segments.append(json_bytes(texts.redact(trace)))
            journal.append(msgspec.structs.replace(redacted, trace=place, workdir=None))
    finally:
        segments.close()
        journal.close()
    finalise(target)
    return unreadable


def _spec(spec: dict[str, Any], texts: PageTexts) -> dict[str, Any]:
    # The copy gets its own format number; the base folder exists only on this machine.
    kept = {name: value for name, value in spec.items() if name not in ("format", "base_dir")}
    provenance = cast("dict[str, Any]", kept.get("provenance") or {})
    kept["provenance"] = {k: v for k, v in provenance.items() if k not in PRIVATE}
    return map_texts(texts.redact(kept), lambda text: _HOMES.sub("~", text))


def _contents(facts: ReportFacts, files: dict[str, bytes], redacted: int) -> str:
    lines = [
        f"# Contents: {facts.name}",
        "",
        f"Run {facts.run_id}: {facts.headline}.",
        f"Redaction was applied again and removed {plural(redacted, 'secret')}.",
        f"Left out: {', '.join(PRIVATE)}, working folders, notes.",
        "",
        "| file | bytes | sha256 |",
        "| --- | ---: | --- |",
        *(
            f"| {name} | {len(content):,} | {hashlib.sha256(content).hexdigest()} |"
            for name, content in files.items()
        ),
        "",
        "Open report.html in a browser, or unpack and use `proctor report run`.",
    ]
    return "\n".join(lines) + "\n"
