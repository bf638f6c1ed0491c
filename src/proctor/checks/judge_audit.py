"""Compare a judge with human labels: confusion table, raw agreement, Cohen's kappa.

Every row of the file counts, as compared or as unscored; none is dropped silently. Labels are
pass / borderline / fail or scores 1 to 5; with a `judge` column, any labels.
"""

from __future__ import annotations

import asyncio
import csv
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from proctor.checks.judge import HIGHEST, LOWEST, Judge, JudgeInput, JudgeVerdict, Label
from proctor.errors import ProctorError, hint_among
from proctor.llm.chat_model import NOTHING, ModelUse

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# -- agreement of two raters ---------------------------------------------------------------------

Weights = Literal["linear", "quadratic"]
Category = TypeVar("Category", bound=Hashable)

RESAMPLES = 2000
"""Enough for the ends of a 95 % interval to be stable in the second digit."""

LEVEL = 0.95
"""Confidence level of the interval of kappa."""

_CELLS_AT_ONCE = 4_000_000
"""Resampled row numbers held in memory at a time: about 32 MB."""


@dataclass(frozen=True, slots=True)
class KappaInterval:
    """A bootstrap percentile interval; `undefined` resamples had no kappa and are left out."""

    low: float
    high: float
    level: float
    resamples: int
    undefined: int
    seed: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two raters agree. `table[i][j]` counts rows the first put in i and the second in j."""

    categories: tuple[Any, ...]
    table: tuple[tuple[int, ...], ...]
    n: int
    agreed: int
    raw: float | None
    kappa: float | None
    weights: str | None
    interval: KappaInterval | None


def cohen_kappa(
    first: Sequence[Category],
    second: Sequence[Category],
    *,
    weights: Weights | None = None,
    categories: Sequence[Category] | None = None,
) -> float | None:
    """Return Cohen's kappa, the agreement of two raters beyond chance.

    None when it is not defined: no rows, or both raters use one and the same category throughout.
    With `weights`, a disagreement counts by the distance of its categories in the order of
    `categories` (or of its square); without that order, the sorted one is taken.
    """
    return agreement(first, second, weights=weights, categories=categories, resamples=0).kappa


def agreement(
    first: Sequence[Category],
    second: Sequence[Category],
    *,
    weights: Weights | None = None,
    categories: Sequence[Category] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Agreement:
    """Return the confusion table of two raters, their raw agreement, and kappa.

    Its interval is bootstrapped over rows, with a seed, so that it can be reproduced.
    """
    import numpy as np

    order = _order(first, second, categories)
    n, k = len(first), len(order)
    if n == 0:
        empty = tuple(tuple(0 for _ in order) for _ in order)
        return Agreement(tuple(order), empty, 0, 0, None, None, weights, None)
    place = {category: position for position, category in enumerate(order)}
    pairs = list(zip(first, second, strict=True))
    # Each row as one number, the cell of the table it falls in: resampling then counts integers.
    codes = np.array([place[a] * k + place[b] for a, b in pairs], dtype=np.int64)
    table = _tables(codes[None, :], k)
    kappa = float(_kappas(table, weights)[0])
    defined = not math.isnan(kappa)
    agreed = sum(a == b for a, b in pairs)
    return Agreement(
        categories=tuple(order),
        table=tuple(tuple(int(count) for count in row) for row in table[0]),
        n=n,
        agreed=agreed,
        raw=agreed / n,
        kappa=kappa if defined else None,
        weights=weights,
        interval=_bootstrap(codes, k, weights, seed, resamples) if defined and resamples else None,
    )


def _order(
    first: Sequence[Category], second: Sequence[Category], categories: Sequence[Category] | None
) -> list[Category]:
    if len(first) != len(second):
        raise ProctorError(
            f"two raters of the same rows give lists of one length, not {len(first)} and "
            f"{len(second)}"
        )
    seen = {*first, *second}
    if categories is None:
        # By type first: values of different types have no order.
        return sorted(seen, key=lambda value: (str(type(value)), value))  # pyright: ignore[reportArgumentType, reportCallIssue]
    order = list(dict.fromkeys(categories))
    if outside := [value for value in seen if value not in order]:
        raise ProctorError(f"{outside[0]!r} is not among the categories")
    return order


def _tables(codes: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Return the confusion tables of many samples of rows: samples × k × k."""
    import numpy as np

    samples = codes.shape[0]
    # Each sample counts in a range of its own, so that one bincount serves all.
    shifted = codes + (np.arange(samples, dtype=np.int64) * k * k)[:, None]
    counts = np.bincount(shifted.ravel(), minlength=samples * k * k)
    return counts.reshape(samples, k, k).astype(np.float64)


def _kappas(tables: NDArray[np.float64], weights: Weights | None) -> NDArray[np.float64]:
    """Return kappa of each table: 1 - observed / expected disagreement; NaN where undefined."""
    import numpy as np

    k = tables.shape[1]
    place = np.arange(k, dtype=np.float64)
    distance = np.abs(place[:, None] - place[None, :])
    if weights is None:
        distance = (distance > 0).astype(np.float64)
    elif weights == "quadratic":
        distance = distance**2
    n = tables.sum(axis=(1, 2))
    observed = (tables * distance).sum(axis=(1, 2)) / n
    by_chance = tables.sum(axis=2)[:, :, None] * tables.sum(axis=1)[:, None, :]
    expected = (by_chance * distance).sum(axis=(1, 2)) / n**2
    result = np.full(len(tables), np.nan)
    # Both raters used one and the same category: chance alone explains every agreement.
    defined = expected > 0
    result[defined] = 1 - observed[defined] / expected[defined]
    return result


def _bootstrap(
    codes: NDArray[np.int64], k: int, weights: Weights | None, seed: int, resamples: int
) -> KappaInterval | None:
    import numpy as np

    rng = np.random.default_rng(seed)
    n = len(codes)
    batch = max(1, _CELLS_AT_ONCE // n)  # all resamples at once would not fit in memory
    values: list[NDArray[np.float64]] = []
    for start in range(0, resamples, batch):
        rows = rng.integers(0, n, size=(min(batch, resamples - start), n))
        values.append(_kappas(_tables(codes[rows], k), weights))
    kappas = np.concatenate(values)
    defined = kappas[~np.isnan(kappas)]
    if not len(defined):
        return None
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    undefined = resamples - len(defined)
    return KappaInterval(float(low), float(high), LEVEL, resamples, undefined, seed)


def krippendorff_alpha(units: Iterable[Sequence[Hashable]]) -> float | None:
    """Return Krippendorff's alpha of nominal ratings: the ratings of each unit, by any raters.

    Unlike kappa, it takes any number of raters, and units that not all of them rated. None when it
    is not defined: no unit has two ratings, or all ratings are the same.

        krippendorff_alpha([("pass", "pass"), ("fail", "pass"), ("fail", "fail", "fail")])
    """
    pairable = [Counter(unit) for unit in units if len(unit) > 1]
    totals = sum(pairable, Counter[Hashable]())
    n = totals.total()
    expected = n * n - sum(count * count for count in totals.values())
    if not expected:
        return None
    observed = math.fsum(
        (unit.total() ** 2 - sum(count * count for count in unit.values())) / (unit.total() - 1)
        for unit in pairable
    )
    return 1 - (n - 1) * observed / expected


# -- auditing a judge ----------------------------------------------------------------------------

COLUMNS = ("input", "answer", "label", "expected", "context", "judge")
REQUIRED = ("input", "answer", "label")
LABELS: tuple[str, ...] = tuple(label.value for label in Label)
SCORES: tuple[str, ...] = tuple(str(score) for score in range(LOWEST, HIGHEST + 1))

MAX_FIELD_CHARS = 10_000_000
"""Answers can be long; the csv module's own limit of 131,072 is too tight for transcripts."""


class Measure(NamedTuple):
    """How kappa is weighted, and the bootstrap of its interval."""

    weights: Weights | None = None
    seed: int = 0
    resamples: int = RESAMPLES


class LabelledAnswer(NamedTuple):
    """One labelled answer, and the line of the file where it starts."""

    line: int
    label: str
    judged: JudgeInput
    judge: str | None


@dataclass(frozen=True, slots=True)
class Unscored:
    """A row without a verdict of the judge."""

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

    `borderline_as` is the label a borderline verdict was counted as, where people used only pass
    and fail; None when it was counted as itself.
    """

    rows: int
    agreement: Agreement
    unscored: tuple[Unscored, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    borderline_as: str | None = None
    usage: ModelUse = NOTHING


def read_labels(path: Path) -> list[LabelledAnswer]:
    """Read a CSV file with the columns of `COLUMNS`, of which `REQUIRED` must exist."""
    # The limit belongs to the process, so it is restored below.
    before = csv.field_size_limit(MAX_FIELD_CHARS)
    try:
        # utf-8-sig: spreadsheets write a byte order mark.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = list(reader.fieldnames or ())
            for name in names:
                if name not in COLUMNS:
                    hint = hint_among(name, COLUMNS)
                    raise ProctorError(f"unknown column {name!r}", where=f"{path}:1", hint=hint)
            if missing := [name for name in REQUIRED if name not in names]:
                raise ProctorError(f"the column {missing[0]!r} is missing", where=f"{path}:1")
            rows: list[LabelledAnswer] = []
            line = reader.line_num + 1
            for record in reader:
                rows.append(_row(record, path, line))
                line = reader.line_num + 1  # a record may span lines: the next starts after it
    except OSError as error:
        raise ProctorError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ProctorError(f"not a CSV file in UTF-8: {error}", where=str(path)) from error
    finally:
        csv.field_size_limit(before)
    if not rows:
        raise ProctorError("there are no rows below the header", where=str(path))
    return rows


def given_verdicts(rows: Sequence[LabelledAnswer], measure: Measure | None = None) -> Audit:
    """Audit the verdicts in the file's own `judge` column."""
    pairs = [(row, row.judge) for row in rows if row.judge]
    unscored = [Unscored(row.line, "the column `judge` is empty") for row in rows if not row.judge]
    kind = _kind_of([row.label for row in rows] + [given for _, given in pairs])
    return _compare(rows, pairs, unscored, kind, measure or Measure())


async def judged_verdicts(
    rows: Sequence[LabelledAnswer],
    judge: Judge,
    measure: Measure | None = None,
    *,
    concurrency: int = 4,
) -> Audit:
    """Audit a judge by having it judge every row."""
    kind = _kind_of([row.label for row in rows])
    if kind is None:
        wrong = next((row for row in rows if row.label not in (*LABELS, *SCORES)), None)
        if wrong is not None:
            problem = f"is neither {', '.join(LABELS)} nor a score 1 to 5"
        else:
            label = next(row for row in rows if row.label in LABELS)
            wrong = next(row for row in rows if row.label in SCORES)
            problem = f"is a score, {label.label!r} in line {label.line} is not"
        raise ProctorError(
            f"the label {wrong.label!r} {problem}",
            where=f"line {wrong.line}",
            hint="with a column `judge`, any labels can be compared",
        )
    slots = asyncio.Semaphore(concurrency)

    async def one(row: LabelledAnswer) -> JudgeVerdict:
        async with slots:
            return await judge.judge(row.judged)

    verdicts = await asyncio.gather(*(one(row) for row in rows))
    pairs: list[tuple[LabelledAnswer, str]] = []
    unscored: list[Unscored] = []
    for row, verdict in zip(rows, verdicts, strict=True):
        if verdict.label is None or verdict.score is None:
            unscored.append(Unscored(row.line, verdict.reason or "no verdict"))
        else:
            # A fractional median is rounded down: when in doubt, the stricter score.
            # 1e-9: a mean of weights may be 3.9999999 instead of 4.
            score = str(int(verdict.score + 1e-9))
            pairs.append((row, score if kind is SCORES else verdict.label.value))
    usage = sum((verdict.usage for verdict in verdicts), NOTHING)
    return _compare(rows, pairs, unscored, kind, measure or Measure(), usage)


def _compare(
    rows: Sequence[LabelledAnswer],
    pairs: Sequence[tuple[LabelledAnswer, str]],
    unscored: Sequence[Unscored],
    kind: tuple[str, ...] | None,
    measure: Measure,
    usage: ModelUse = NOTHING,
) -> Audit:
    people = [row.label for row, _ in pairs]
    given = [value for _, value in pairs]
    borderline_as = None
    if kind is LABELS and not any(row.label == Label.BORDERLINE.value for row in rows):
        # Where people only used pass and fail, they failed what a judge calls borderline.
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
    """Return the known set of labels, in order, that holds all of these; None if neither does."""
    # Text in both cases, since labels are read from a CSV file.
    kinds = (LABELS, SCORES)
    return next((kind for kind in kinds if all(label in kind for label in labels)), None)


def _row(record: Mapping[str | None, str | None], path: Path, line: int) -> LabelledAnswer:
    if None in record or None in record.values():
        raise ProctorError("the number of fields is not that of the header", where=f"{path}:{line}")
    label = _folded(record["label"])
    if not label:
        raise ProctorError("the label is empty", where=f"{path}:{line}")
    context = record.get("context")
    return LabelledAnswer(
        line=line,
        label=label,
        judge=_folded(record.get("judge")) or None,
        judged=JudgeInput(
            input=record["input"],
            answer=record["answer"] or "",
            expected=record.get("expected") or None,
            context=(context,) if context else (),
        ),
    )


def _folded(text: str | None) -> str:
    return (text or "").strip().casefold()
