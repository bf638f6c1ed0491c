"""Notes, tags and labels on runs, stored with the results.

Guarantees: results are never changed. A note is a line of `notes.jsonl` in the run folder and stays
there; removing a tag appends a line too, so the history of who wrote what and when is complete. A
label, what a person says of a trial, is a line of `labels.jsonl`; the last one of a rater counts.
What experiments showed about the steps of a trial is in `tested.jsonl`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec

from proctor.errors import ProctorError, did_you_mean
from proctor.files import append_line, read_lines
from proctor.runs.folder import RunFolder
from proctor.runs.journal import has_checksums
from proctor.runs.provenance import who
from proctor.runs.trial import Trial, named_trial
from proctor.trace.redact import default_redactor

FILE = "notes.jsonl"
LABELS = "labels.jsonl"
TESTED = "tested.jsonl"

MAX_TEXT = 10_000
"""Maximum characters of a note: a page or two; longer texts belong in a linked document."""

# A tag is given where a path may be given too, so it must not look like one.
_TAG = re.compile(r"[\w][\w.+-]{0,63}")


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: a note on the run or on one trial, or a tag added or removed."""

    at: str
    who: str
    kind: Literal["note", "tag", "untag"]
    text: str
    trial: str | None = None


class Tagged(NamedTuple):
    """A tagged run and the time of tagging."""

    name: str
    run: Path
    at: str
    who: str


def annotate(run: Path | str, text: str, *, trial: str | None = None) -> Note:
    """Add a note to a run, or to one of its trials (named as in reports)."""
    folder = RunFolder.open(run)
    text = text.strip()
    if not text:
        raise ProctorError("the annotation is empty", hint="say what the next reader should know")
    if len(text) > MAX_TEXT:
        raise ProctorError(
            f"the annotation has {len(text):,} characters", hint=f"at most {MAX_TEXT:,}"
        )
    if trial is not None:
        trial = named_trial(folder.trials(), trial, str(folder.path)).name
    # A note may quote a trace, secrets included.
    return _add(folder, kind="note", text=default_redactor().text(text), trial=trial)


def tag(run: Path | str, name: str, *, remove: bool = False) -> Note:
    """Add a tag such as `main` to a run, or remove it."""
    folder = RunFolder.open(run)
    if not _TAG.fullmatch(name):
        raise ProctorError(
            f"{name!r} cannot be a tag",
            hint="a letter or digit, then letters, digits, `.`, `_`, `+` or `-`, at most 64",
        )
    if remove and name not in (tags := tags_of(folder.path)):
        near = did_you_mean(name, tags)
        known = near or (f"it has {', '.join(tags)}" if tags else "it has no tag")
        raise ProctorError(f"the run has no tag {name!r}", where=str(folder.path), hint=known)
    return _add(folder, kind="untag" if remove else "tag", text=name)


def _add(
    folder: RunFolder, *, kind: Literal["note", "tag", "untag"], text: str, trial: str | None = None
) -> Note:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    note = Note(at=now, who=who(), kind=kind, text=text, trial=trial)
    append_line(folder.path / FILE, note)
    return note


def notes_of(run: Path | str, problems: list[str] | None = None) -> list[Note]:
    """Return all notes and tag changes of a run, oldest first."""
    path = Path(run) / FILE
    return list(read_lines(path, Note, problems, checked=has_checksums(path.parent)))


def annotations_of(run: Path | str, problems: list[str] | None = None) -> list[Note]:
    """Return the notes on a run and its trials, without tags."""
    return [note for note in notes_of(run, problems) if note.kind == "note"]


def tags_of(run: Path | str, problems: list[str] | None = None) -> tuple[str, ...]:
    """Return the current tags of a run, in the order they were added."""
    return tuple(_tags(run, problems))


def _tags(run: Path | str, problems: list[str] | None) -> dict[str, Note]:
    current: dict[str, Note] = {}
    for note in notes_of(run, problems):
        if note.kind != "note":
            # Removed also before it is added, so that a tag added again comes last.
            current.pop(note.text, None)
        if note.kind == "tag":
            current[note.text] = note
    return current


def tagged(root: Path | str, problems: list[str] | None = None) -> list[Tagged]:
    """Return every tag in a results folder, the most recent last."""
    found = [
        Tagged(name, path.parent, note.at, note.who)
        for path in sorted(Path(root).glob(f"**/{FILE}"))
        if (path.parent / "_spec_.yaml").is_file()
        for name, note in _tags(path.parent, problems).items()
    ]
    return sorted(found, key=lambda each: (each.at, str(each.run)))


def runs_tagged(root: Path | str, name: str) -> list[Path]:
    """Return the runs with a tag, the most recently tagged last."""
    return [each.run for each in tagged(root) if each.name == name]


# -- labels ----------------------------------------------------------------------------------------

SamplingRule = Literal["random", "uncertain", "disagreement", "cluster", "chosen", "sample"]
"""Why a trial was labelled: a rule of the review queue, chosen by the rater, or `sample`: one of a
random sample that was drawn elsewhere."""

LabelVerdict = Literal["pass", "fail", "skip"]


class HumanLabel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: what a rater says of a trial. `skip` is a trial that the rater cannot judge."""

    at: str
    rater: str
    trial: str
    verdict: LabelVerdict
    category: str = ""
    comment: str = ""
    rule: SamplingRule = "chosen"
    blind: bool = False
    """Whether the rater saw neither the judge's verdict nor other labels."""


def label(
    run: Path | str,
    trial: str,
    verdict: LabelVerdict,
    *,
    rater: str | None = None,
    category: str = "",
    comment: str = "",
    rule: SamplingRule = "chosen",
    blind: bool = False,
) -> HumanLabel:
    """Label a trial, named as in reports; another label of the same rater replaces it.

    label("results/shop/2026-01-31_001", "refund/fast/0/2", "fail", comment="wrong amount")
    """
    folder = RunFolder.open(run)
    rater = (who() if rater is None else rater).strip()
    if not rater or len(rater) > 200 or len(category) > 200 or len(comment) > MAX_TEXT:
        raise ProctorError(
            "the label has no rater, or a text that is too long",
            hint=f"a rater and a category have at most 200 characters, a comment {MAX_TEXT:,}",
        )
    redacted = default_redactor().text
    found = HumanLabel(
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        rater=rater,
        trial=named_trial(folder.trials(), trial, str(folder.path)).name,
        verdict=verdict,
        category=redacted(category.strip()),
        comment=redacted(comment.strip()),
        rule=rule,
        blind=blind,
    )
    append_line(folder.path / LABELS, found)
    return found


def labels_of(run: Path | str, problems: list[str] | None = None) -> list[HumanLabel]:
    """Return the current labels of a run, one for each trial and rater, the oldest first."""
    path = Path(run) / LABELS
    current: dict[tuple[str, str], HumanLabel] = {}
    for each in read_lines(path, HumanLabel, problems, checked=True):
        current.pop((each.trial, each.rater), None)
        current[each.trial, each.rater] = each
    return list(current.values())


class Tested(msgspec.Struct, frozen=True):
    """What an experiment showed about a step of a trial; see `causes.why`."""

    trial: str
    step: int
    outcome: str
    text: str


def add_tested(run: Path | str, tested: Tested) -> None:
    """Store the result of an experiment; a later one about the same step replaces it."""
    append_line(RunFolder.open(run).path / TESTED, tested)


def experiments_of(run: Path | str) -> dict[tuple[str, int], Tested]:
    """Return what was tested in a run, by trial and step."""
    lines = read_lines(Path(run) / TESTED, Tested, [], checked=True)
    return {(each.trial, each.step): each for each in lines}


Reviewed = TypeVar("Reviewed", bound=Trial)


def in_random_order(trials: Iterable[Reviewed], run_id: str) -> list[Reviewed]:
    """Return trials in the random order of the review queue, the same for every rater."""

    def place(trial: Reviewed) -> str:
        return hashlib.sha256(f"{run_id}\0{trial.key}".encode("utf-8", "replace")).hexdigest()

    return sorted(trials, key=place)


def sampled_labels(
    trials: Iterable[Trial], labels: Iterable[HumanLabel], run_id: str
) -> dict[str, float]:
    """Return the mean label of each trial of the random sample, by trial name.

    The sample is what the random queue has passed: every labelled trial up to its last one, also
    those that another rule brought up before. Labels beyond say nothing about the others: a trial
    that looks odd is no random one. Labels with the rule `sample` count wherever they are.
    """
    given: dict[str, list[HumanLabel]] = {}
    for each in labels:
        if each.verdict != "skip":
            given.setdefault(each.trial, []).append(each)
    if not given:
        return {}
    names = [trial.name for trial in in_random_order(trials, run_id)]
    reached = max(
        (
            at
            for at, name in enumerate(names)
            if any(e.rule == "random" for e in given.get(name, ()))
        ),
        default=-1,
    )
    return {
        name: sum(each.verdict == "pass" for each in given[name]) / len(given[name])
        for at, name in enumerate(names)
        if name in given and (at <= reached or any(e.rule == "sample" for e in given[name]))
    }
