"""How far a judge can be trusted: its verdicts beside the labels that people gave.

Promise: every row of the file is accounted for, as compared or as unscored; nothing is dropped
silently. Labels are pass / borderline / fail or scores 1 to 5; with a `judge` column, anything.
"""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from proctor.checks.judge import Judge, Verdict
from proctor.checks.judge_agreement import RESAMPLES, Agreement, Weights, agreement
from proctor.checks.judge_prompt import Judged
from proctor.checks.judge_rubric import HIGHEST, LOWEST, Label
from proctor.errors import ProctorError, hint_among
from proctor.llm.use import NOTHING, ModelUse

COLUMNS = ("input", "answer", "label", "expected", "context", "judge")
REQUIRED = ("input", "answer", "label")
LABELS: tuple[str, ...] = tuple(label.value for label in Label)
SCORES: tuple[str, ...] = tuple(str(score) for score in range(LOWEST, HIGHEST + 1))

MAX_FIELD_CHARS = 10_000_000
"""Answers can be long; the csv module's own limit of 131,072 is too tight for transcripts."""


class Measure(NamedTuple):
    """How kappa is weighted and its interval found."""

    weights: Weights | None = None
    seed: int = 0
    resamples: int = RESAMPLES


class Row(NamedTuple):
    """One labelled answer, and the line of the file where it begins."""

    line: int
    label: str
    judged: Judged
    judge: str | None


@dataclass(frozen=True, slots=True)
class Unscored:
    """A row the judge has no verdict for."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A row that people and the judge label differently."""

    line: int
    people: str
    judge: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result: of `rows`, how many could be compared, and how those agree.

    `borderline_as` says what a borderline verdict was counted as, where people used only pass
    and fail; None when it stood for itself.
    """

    rows: int
    agreement: Agreement
    unscored: tuple[Unscored, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    borderline_as: str | None = None
    usage: ModelUse = NOTHING


def read_labels(path: Path) -> list[Row]:
    """The rows of a CSV file with the columns of `COLUMNS`, of which `REQUIRED` must be there."""
    before = csv.field_size_limit(MAX_FIELD_CHARS)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            _check_columns(reader.fieldnames, path)
            rows: list[Row] = []
            line = reader.line_num + 1
            for record in reader:
                rows.append(_row(record, path, line))
                line = reader.line_num + 1
    except OSError as error:
        raise ProctorError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ProctorError(f"not a CSV file in UTF-8: {error}", where=str(path)) from error
    finally:
        csv.field_size_limit(before)
    if not rows:
        raise ProctorError("there are no rows below the header", where=str(path))
    return rows


def given_verdicts(rows: Sequence[Row], measure: Measure | None = None) -> Audit:
    """The audit of verdicts that stand in the file's own `judge` column."""
    pairs = [(row, row.judge) for row in rows if row.judge]
    unscored = [Unscored(row.line, "the column `judge` is empty") for row in rows if not row.judge]
    kind = _kind_of([row.label for row in rows] + [given for _, given in pairs])
    return _compare(rows, pairs, unscored, kind, measure or Measure())


async def judged_verdicts(
    rows: Sequence[Row], judge: Judge, measure: Measure | None = None, *, concurrency: int = 4
) -> Audit:
    """The audit of a judge, asked about every row."""
    kind = _kind_of([row.label for row in rows])
    if kind is None:
        odd = next(row for row in rows if row.label not in (*LABELS, *SCORES))
        raise ProctorError(
            f"the label {odd.label!r} is neither {', '.join(LABELS)} nor a score 1 to 5",
            where=f"line {odd.line}",
            hint="with a column `judge`, any labels can be compared",
        )
    turn = asyncio.Semaphore(concurrency)

    async def one(row: Row) -> Verdict:
        async with turn:
            return await judge.judge(row.judged)

    verdicts = await asyncio.gather(*(one(row) for row in rows))
    pairs: list[tuple[Row, str]] = []
    unscored: list[Unscored] = []
    for row, verdict in zip(rows, verdicts, strict=True):
        if verdict.label is None or verdict.score is None:
            unscored.append(Unscored(row.line, verdict.reason or "no verdict"))
        else:
            # A broken median goes to the lower whole score: in doubt, the stricter reading.
            score = str(int(verdict.score + 1e-9))
            pairs.append((row, score if kind is SCORES else verdict.label.value))
    usage = sum((verdict.usage for verdict in verdicts), NOTHING)
    return _compare(rows, pairs, unscored, kind, measure or Measure(), usage)


def _compare(
    rows: Sequence[Row],
    pairs: Sequence[tuple[Row, str]],
    unscored: Sequence[Unscored],
    kind: tuple[str, ...] | None,
    measure: Measure,
    usage: ModelUse = NOTHING,
) -> Audit:
    people = [row.label for row, _ in pairs]
    given = [value for _, value in pairs]
    borderline_as = None
    if kind is LABELS and not any(row.label == Label.BORDERLINE.value for row in rows):
        # People who only said pass or fail did not pass the borderline ones.
        kind = (Label.PASS.value, Label.FAIL.value)
        if Label.BORDERLINE.value in given:
            borderline_as = Label.FAIL.value
            given = [borderline_as if v == Label.BORDERLINE.value else v for v in given]
    found = agreement(people, given, categories=kind, **measure._asdict())
    return Audit(
        rows=len(rows),
        agreement=found,
        unscored=tuple(unscored),
        disagreements=tuple(
            Disagreement(row.line, row.label, value)
            for (row, _), value in zip(pairs, given, strict=True)
            if row.label != value
        ),
        borderline_as=borderline_as,
        usage=usage,
    )


def _kind_of(labels: Sequence[str]) -> tuple[str, ...] | None:
    """Which known set of labels, in order, these all belong to; None when neither."""
    for kind in (LABELS, SCORES):
        if all(label in kind for label in labels):
            return kind
    return None


def _check_columns(names: Sequence[str] | None, path: Path) -> None:
    found = list(names or ())
    for name in found:
        if name not in COLUMNS:
            raise ProctorError(
                f"unknown column {name!r}",
                where=f"{path}:1",
                hint=hint_among(name, COLUMNS),
            )
    if missing := [name for name in REQUIRED if name not in found]:
        raise ProctorError(f"the column {missing[0]!r} is missing", where=f"{path}:1")


def _row(record: Mapping[str | None, str | None], path: Path, line: int) -> Row:
    if None in record or None in record.values():
        raise ProctorError("the number of fields is not that of the header", where=f"{path}:{line}")
    label = _folded(record["label"])
    if not label:
        raise ProctorError("the label is empty", where=f"{path}:{line}")
    context = record.get("context")
    return Row(
        line=line,
        label=label,
        judge=_folded(record.get("judge")) or None,
        judged=Judged(
            input=record["input"],
            answer=record["answer"] or "",
            expected=record.get("expected") or None,
            context=(context,) if context else (),
        ),
    )


def _folded(text: str | None) -> str:
    return (text or "").strip().casefold()
