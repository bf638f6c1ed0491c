"""From a case to its check objects, in the order they are judged.

Order: what correctness can decide without a model (the layer, then `checks`, then assertions),
then the judges of correctness, then path, then cost. Weight and blocking are settled here, once:

| check | weight | blocks |
|---|---|---|
| correctness | 1 | yes, unless `correctness.blocking: false` |
| custom | its `weight` (1) | unless its `required: false` |
| assertion | its `weight` (1) | only with `required: true` |
| path, cost | 0 | no |
| path, cost with `blocking: true`, or named in `required` | 1 | yes |
| `forbidden_tools` | 1 | always |

`weights` gives any of them another weight, by its id or by its layer (then each check of the layer
has that weight); `required` makes any of them block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from proctor.checks.base import Check, CheckContext, CheckResults, Layer, unique
from proctor.checks.custom import FunctionCheck, custom_check
from proctor.checks.evaluate import evaluate
from proctor.checks.layers import assertion_check
from proctor.errors import ProctorError, did_you_mean
from proctor.spec.validation import Fault

if TYPE_CHECKING:
    from proctor.checks.judge import Judge
    from proctor.spec.suite import Case, CustomCheck, Turn
    from proctor.trace import Trace

# 1 is for the judges of correctness: they run after the checks that need no model.
_ORDER = {Layer.CORRECTNESS: 0, Layer.PATH: 2, Layer.COST: 3}


def checks_of(case: Case) -> tuple[Check, ...]:
    """Return the checks of a case, in order, each with its id, weight and whether it blocks.

    Custom checks are imported here: `ProctorError` says which cannot be used, before a trial runs.
    """
    declared = _written(case, case)
    if case.turns or case.user or case.state or case.approvals:
        from proctor.conversations.checks import UserFidelity, turn_check

        for number, turn in enumerate(cast("Sequence[Turn]", case.turns), 1):
            declared += [turn_check(number, check) for check in _written(turn, case)]
        expected = [each and each.expect for each in (case.state, case.approvals)]
        declared += [check for check in expected if check is not None]
        if case.user is not None and case.user.model is not None:
            declared.append(UserFidelity())
    settled: list[Check] = []
    for check, check_id in zip(declared, check_ids(case), strict=True):
        blocking, weight = check.blocking, check.counted
        if check_id in case.required:
            # A check that blocks also counts, even one of weight 0 such as path and cost.
            blocking, weight = True, weight or 1.0
        weight = case.weights.get(check_id, case.weights.get(check.layer.value, weight))
        settled.append(check.with_(id=check_id, weight=weight, required=blocking))
    # Sorting is stable: within each group the order is that of declaration.
    settled.sort(key=lambda c: _ORDER[c.layer] + (c.judged and c.layer is Layer.CORRECTNESS))
    return tuple(settled)


def _written(part: Case | Turn, case: Case) -> list[Check]:
    return [
        *(check for layer in (part.correctness, part.path, part.cost) for check in layer.checks()),
        *(_custom(case, written) for written in cast("Sequence[CustomCheck]", part.checks)),
        *(assertion_check(written) for written in part.assertions),
    ]


def check_ids(case: Case) -> list[str]:
    """Return the ids of a case's checks, as written: layers, custom, assertions, turns, state."""
    ids = _ids(case)
    for number, turn in enumerate(cast("Sequence[Turn]", case.turns), 1):
        ids += [f"turn{number}.{name}" for name in unique(_ids(turn))]
    expected = [each and each.expect for each in (case.state, case.approvals)]
    ids += [check.id or check.check for check in expected if check is not None]
    if case.user is not None and case.user.model is not None:
        ids.append("user_fidelity")
    return unique(ids)


def _ids(part: Case | Turn) -> list[str]:
    return [
        *(c.check for layer in (part.correctness, part.path, part.cost) for c in layer.checks()),
        *(written.name for written in cast("Sequence[CustomCheck]", part.checks)),
        *(str(assertion_check(written).id) for written in part.assertions),
    ]


def unknown_names(case: Case) -> list[Fault]:
    """Return a fault for each name in `weights` and `required` that is no check of the case."""
    checks = check_ids(case)
    known = [*checks, *Layer]
    written = [
        *((("required", index), name, checks) for index, name in enumerate(case.required)),
        *((("weights", name), name, known) for name in case.weights),
    ]
    return [
        Fault(
            loc,
            f"{name!r} is not a check of this case",
            did_you_mean(name, among)
            or (f"it has {', '.join(among)}" if among else "it has no checks"),
        )
        for loc, name, among in written
        if name not in among
    ]


async def check_trace(
    trace: Trace,
    case: Case,
    *,
    answer: str | None = None,
    baseline: Trace | None = None,
    judges: Mapping[str, Judge] | None = None,
) -> CheckResults:
    """Evaluate the checks of a case over one trace, without a run.

    `answer` replaces the trace's response; a structured response is checked as its JSON text.
    """
    response: Any = trace.response
    if answer is None:
        from proctor.agents.base import as_reply

        answer = as_reply(response).answer
    # Checks of structured output need the value, not its text.
    value = None if response is None or isinstance(response, str) else response
    ctx = CheckContext[Any](case, trace, answer, baseline, judges or {}, value)
    return await evaluate(checks_of(case), ctx)


def _custom(case: Case, written: CustomCheck) -> Check:
    try:
        check = custom_check(written.check, written.params, case.folder)
    except ProctorError as error:
        raise ProctorError(
            f"the check {written.name!r} of case {case.id!r} cannot be used: {error}",
            where=None if case.place is None else str(case.place),
            hint=error.hint,
        ) from error
    # A check object has its own weight and blocking; a function uses those of its entry.
    entry = isinstance(check, FunctionCheck)
    given = {"weight", "required"} if entry else written.model_fields_set
    changes = {key: getattr(written, key) for key in ("weight", "required") if key in given}
    return check.with_(**changes)
