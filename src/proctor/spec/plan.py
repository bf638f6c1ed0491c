"""From a case to the checks that will be run, in the order they are judged.

Order: what correctness can decide by itself (built-in checks, then custom ones, then assertions),
then the judges of correctness, then path, then cost. Weight and blocking are settled here, once:

| check | weighs | blocks |
|---|---|---|
| correctness | 1 | yes, unless `correctness.blocking: false` |
| custom | its `weight` (1) | unless its `required: false` |
| assertion | its `weight` (1) | only with `required: true` |
| path, cost | 0 | no |
| path, cost with `blocking: true`, or named in `required` | 1 | yes |
| `forbidden_tools` | 1 | always |

`weights` gives any of them another weight, by its id or by its layer (then each check of the layer
weighs that); `required` makes any of them block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from proctor.checks.assertions import planned_assertion
from proctor.checks.custom import custom_check
from proctor.checks.evaluate import PlannedCheck
from proctor.checks.registry import CHECKS, CheckFunction, CheckKind
from proctor.checks.result import Layer
from proctor.errors import ProctorError, did_you_mean
from proctor.spec.validation import Fault

if TYPE_CHECKING:
    from proctor.spec.suite import Case, CustomCheck

_ORDER = {Layer.CORRECTNESS: 0, Layer.PATH: 2, Layer.COST: 3}


def plan_checks(case: Case) -> tuple[PlannedCheck, ...]:
    """The checks of a case, in order, each with its weight and whether it blocks.

    Custom checks are imported here: `ProctorError` says which cannot be used, before anything runs.
    """
    checks = [
        *(_built_in(kind, options) for kind, options in _asked(case)),
        *(_custom(case, written) for written in case.checks),
        *(planned_assertion(written) for written in case.assertions),
    ]
    named = zip(checks, check_ids(case), strict=True)
    planned = [_settled(case, check._replace(id=check_id)) for check, check_id in named]
    # Sorting is stable: within each group the order is that of declaration.
    planned.sort(key=lambda c: _ORDER[c.layer] + (c.judged and c.layer == Layer.CORRECTNESS))
    return tuple(planned)


def check_ids(case: Case) -> list[str]:
    """The ids of a case's checks, as written: built-in, custom, assertions. Imports nothing."""
    names = [
        *(kind.name for kind, _ in _asked(case)),
        *(written.name for written in case.checks),
        *(planned_assertion(written).id for written in case.assertions),
    ]
    return list(_unique(names))


def unknown_names(case: Case) -> list[Fault]:
    """What `weights` and `required` name that is no check of the case."""
    if not case.weights and not case.required:
        return []
    checks = check_ids(case)
    known = [*checks, *Layer]
    written = [
        *((("required", index), name, checks) for index, name in enumerate(case.required)),
        *((("weights", name), name, known) for name in case.weights),
    ]
    return [
        Fault(loc, f"{name!r} is not a check of this case", _hint(name, among))
        for loc, name, among in written
        if name not in among
    ]


def _hint(name: str, known: list[str]) -> str:
    return did_you_mean(name, known) or (
        f"it has {', '.join(known)}" if known else "it has no checks"
    )


def _asked(case: Case) -> Iterator[tuple[CheckKind, Any]]:
    """The built-in checks a case asks for, with the layer's options.

    A case exists only once its layers are imported, and importing a layer declares its checks.
    """
    for layer, kinds in CHECKS.items():
        options = getattr(case, layer.value)
        for kind in kinds.values():
            value = getattr(options, kind.name, None)
            if value is not None and value is not False:
                yield kind, options


def _built_in(kind: CheckKind, options: Any) -> PlannedCheck:
    hard = kind.layer == Layer.CORRECTNESS
    # A layer that blocks by itself can be made soft; a check that does (forbidden tools) cannot.
    blocks = options.blocking if hard else kind.blocking or options.blocking
    return PlannedCheck(
        id=kind.name,
        check=kind.name,
        layer=kind.layer,
        options=options,
        run=kind.run,
        weight=1.0 if hard or blocks else 0.0,
        blocking=blocks,
        judged=kind.judged,
    )


def _custom(case: Case, written: CustomCheck) -> PlannedCheck:
    return PlannedCheck(
        id=written.name,
        check="custom",
        layer=Layer.CORRECTNESS,
        options=written,
        run=_imported(case, written),
        weight=written.weight,
        blocking=written.required,
    )


def _imported(case: Case, written: CustomCheck) -> CheckFunction:
    try:
        return custom_check(written.check, written.params, case.folder)
    except ProctorError as error:
        raise ProctorError(
            f"the check {written.name!r} of case {case.id!r} cannot be used: {error}",
            where=None if case.place is None else str(case.place),
            hint=error.hint,
        ) from error


def _unique(names: Iterable[str]) -> Iterator[str]:
    """Names made unique: the second of a kind is `name#2`."""
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}"


def _settled(case: Case, check: PlannedCheck) -> PlannedCheck:
    """A check with what the case says of it in `weights` and `required`."""
    weight, blocking = check.weight, check.blocking
    if check.id in case.required:
        blocking, weight = True, weight or 1.0
    weight = case.weights.get(check.id, case.weights.get(check.layer.value, weight))
    return check._replace(weight=weight, blocking=blocking)
