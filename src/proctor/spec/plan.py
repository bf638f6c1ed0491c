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
from proctor.checks.registry import CHECKS, CheckKind
from proctor.checks.result import Layer
from proctor.errors import did_you_mean
from proctor.spec.located import Fault

if TYPE_CHECKING:
    from proctor.spec.models import Case

_ORDER = {Layer.CORRECTNESS: 0, Layer.PATH: 2, Layer.COST: 3}
# A case exists only once its layers are imported, and importing a layer declares its checks.
_LAYERS = {Layer.CORRECTNESS: "correctness", Layer.PATH: "path", Layer.COST: "cost"}


def plan_checks(case: Case) -> tuple[PlannedCheck, ...]:
    """The checks of a case, in order, each with its weight and whether it blocks."""
    planned = [_settled(case, check) for check in _unique(_checks(case))]
    # Sorting is stable: within each group the order is that of declaration.
    planned.sort(key=lambda c: _ORDER[c.layer] + (c.judged and c.layer == Layer.CORRECTNESS))
    return tuple(planned)


def unknown_names(case: Case) -> list[Fault]:
    """What `weights` and `required` name that is no check of the case."""
    if not case.weights and not case.required:
        return []
    checks = [*(check.id for check in _unique(_checks(case)))]
    faults = [
        Fault(("required", index), f"{name!r} is not a check of this case", _hint(name, checks))
        for index, name in enumerate(case.required)
        if name not in checks
    ]
    known = [*checks, *_LAYERS.values()]
    faults.extend(
        Fault(("weights", name), f"{name!r} is not a check of this case", _hint(name, known))
        for name in case.weights
        if name not in known
    )
    return faults


def _hint(name: str, known: list[str]) -> str:
    return did_you_mean(name, known) or (
        f"it has {', '.join(known)}" if known else "it has no checks"
    )


def _checks(case: Case) -> Iterator[PlannedCheck]:
    """The checks in the order they are written down, before `weights` and `required`."""
    for layer, name in _LAYERS.items():
        options = getattr(case, name)
        for kind in CHECKS[layer].values():
            if _asked(options, kind.name):
                yield _built_in(kind, options)
    yield from _custom(case)
    yield from (planned_assertion(written) for written in case.assertions)


def _asked(options: Any, name: str) -> bool:
    value = getattr(options, name, None)
    return value is not None and value is not False


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


def _custom(case: Case) -> Iterator[PlannedCheck]:
    for written in case.checks:
        yield PlannedCheck(
            id=written.name,
            check="custom",
            layer=Layer.CORRECTNESS,
            options=written,
            run=custom_check(written.check, written.params, case.folder),
            weight=written.weight,
            blocking=written.required,
        )


def _unique(checks: Iterable[PlannedCheck]) -> Iterator[PlannedCheck]:
    """Ids made unique: the second of a name is `name#2`."""
    seen: dict[str, int] = {}
    for check in checks:
        seen[check.id] = seen.get(check.id, 0) + 1
        yield check if seen[check.id] == 1 else check._replace(id=f"{check.id}#{seen[check.id]}")


def _settled(case: Case, check: PlannedCheck) -> PlannedCheck:
    """A check with what the case says of it in `weights` and `required`."""
    weight, blocking = check.weight, check.blocking
    if check.id in case.required:
        blocking, weight = True, weight or 1.0
    weight = case.weights.get(check.id, case.weights.get(_LAYERS[check.layer], weight))
    return check._replace(weight=weight, blocking=blocking)
