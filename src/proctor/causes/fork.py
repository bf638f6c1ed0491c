"""Continue a recorded trial from one of its steps, with or without a change, many times.

    context, folder = prepare_fork(run, trial, {"careful": ForkArm(step=3)}, trials=10)

Promise: the result is an ordinary run, linked to its parent by `fork_of` in its spec, which can be
resumed, compared and reported like any other. Each of its trials repeats the recorded steps before
the step (`gateway/prefix.py`) or is not judged, and says where it left the record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from proctor.agents.replay import ReplayAgentConfig
from proctor.diagnose.methods import act_at, acts_of
from proctor.errors import ProctorError
from proctor.gateway.options import ForkArm, ForkEdit, ForkPoint
from proctor.runs.folder import FORK_OF, RunFolder
from proctor.runs.run import Run
from proctor.runs.trial import Trial
from proctor.seeds import derive_seed
from proctor.spec.validation import first_fault
from proctor.trace import SpanKind, Trace
from proctor.trials.options import OF_WORKERS, RunOptions
from proctor.trials.plan import Axes
from proctor.trials.prepare import RunContext, chosen_agents, prepare, spec_record
from proctor.trials.resume import parts_of, results_folder

DEFAULT_TRIALS = 5

DIVERGED = "PrefixDiverged"
"""The error type of a trial that left the recorded prefix."""


class ForkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a trial that was continued."""

    run: str
    parent: str
    trial: str
    step: int
    change: str | None
    trials: int
    passed: int
    judged: int
    diverged: int
    """Trials that left the recorded prefix; they are not judged."""
    where: str
    """Where the first of them left it."""
    replayed_model_calls: int | None
    """Calls of the prefix in each trial that repeated it; None if none did."""
    replayed_tool_calls: int | None
    notes: tuple[str, ...]
    """Tools that returned something else when they ran again; the agent got the record."""
    stopped: str = ""
    """Why not every trial was run."""


def recorded_trace(run: Run, trial: Trial) -> Trace:
    """Return the trace of a trial, or say that there is none to continue."""
    if (trace := run.trace(trial)) is None:
        raise ProctorError(f"the trial {trial.name} has no trace", where=str(run.path))
    return trace


def checked_arm(trace: Trace, arm: ForkArm) -> ForkArm:
    """Return a fork that is possible in a trace, or say why it is not."""
    acts = acts_of(trace)
    edit = arm.edit
    if edit is None and acts and arm.step == acts[-1].number + 1:
        return arm  # one behind the last step holds everything as it was
    act = act_at(trace, arm.step)
    if edit is None:
        return arm
    model = act.span.kind is SpanKind.LLM
    if edit.kind == "result" and not act.tools:
        raise ProctorError(f"step {arm.step} calls no tool", hint="choose a step that does")
    if edit.kind == "call" and not (model or act.tools):
        raise ProctorError(f"step {arm.step} is the answer of plain code, not a call")
    calls = [one for one in acts if one.number >= arm.step and one.span.kind is SpanKind.LLM]
    if edit.kind not in ("call", "result") and not calls:
        raise ProctorError(
            f"`{edit.kind}` changes a model call, and the agent makes none from step {arm.step} on",
            hint="plain code can be forked with `call`, `result`, or without a change",
        )
    messages = [m.content for one in calls for m in one.span.input_messages if m.content]
    if edit.remove is not None and messages and not any(edit.remove in one for one in messages):
        raise ProctorError(
            f"no message that the model is shown from step {arm.step} on has the text to remove",
            hint="copy a part of one from `proctor trace show RUN:TRIAL --json`",
        )
    if edit.kind == "answer" and not model:
        raise ProctorError(f"step {arm.step} is no model call", hint="use `call` for a tool call")
    return arm


def prepare_fork(
    run: Run,
    trial: Trial,
    arms: Mapping[str, ForkArm],
    *,
    trials: int = DEFAULT_TRIALS,
    results: str | Path | None = None,
    name: str = "fork",
    **options: Any,
) -> tuple[RunContext, RunFolder]:
    """Prepare a run that continues a trial, once for each arm; arms are names of its agent."""
    trace = recorded_trace(run, trial)
    if "imported" in run.spec:
        raise ProctorError("the run was imported: its agent is not here", where=str(run.path))
    suite, before, configuration, design = parts_of(run.spec, str(run.folder.spec_path))
    config = chosen_agents(suite, configuration, None).get(trial.agent)
    if config is None or isinstance(config.config, ReplayAgentConfig) or trial.agent == "human":
        raise ProctorError(
            f"the agent {trial.agent} cannot continue: it is a recording or a person",
            where=str(run.path),
        )
    point = ForkPoint(
        run=str(run.path.resolve()),
        trial=trial.name,
        arms={arm: checked_arm(trace, each) for arm, each in arms.items()},
    )
    one = next(iter(arms.values()))
    dropped = ("more_trials", "early_stop", "max_trials", "max_seconds", "max_cost_usd")
    dropped += ("max_tokens", "record_to", "replay_from", "executor", *OF_WORKERS)
    ours: dict[str, Any] = {
        **{name: value for name, value in before.record().items() if name not in dropped},
        "trials": trials,
        "seed": derive_seed(trial.seed, "fork", one.step),
        # Those that leave the record are reported by the fork itself.
        "max_not_judged": 1.0,
        "fork": point,
        **{name: value for name, value in options.items() if value is not None},
    }
    if design is not None:
        axes = Axes(None, (trial.params,))
        design = dataclasses.replace(design, axes=axes, research=None)
    context = prepare(
        suite,
        RunOptions(**ours),
        agents=dict.fromkeys(arms, config),
        cases=[case for case in suite.cases if case.id == trial.case],
        configuration=configuration,
        design=design,
    )
    root = results_folder(run) if results is None else Path(results)
    own = str(run.spec.get("name") or context.name)
    folder = RunFolder.create(root, f"{own}-{name}")
    link = {"run": run.run_id, "path": str(run.path), "trial": trial.name, "step": one.step}
    folder.write_spec({**spec_record(context), "name": f"{own}-{name}", FORK_OF: link})
    return context, folder


def fork_result(run: Run, parent: Run, trial: Trial, arm: ForkArm) -> ForkResult:
    """Return what a finished fork shows."""
    trials = list(run.trials())
    diverged = [one for one in trials if one.error is not None and one.error.type == DIVERGED]
    replayed: dict[str, int] | None = None
    notes: dict[str, None] = {}
    for one in trials:
        trace = run.readable_trace(one, [])
        if one.status.judged and trace is not None and "fork" in trace.metadata:
            about = trace.metadata["fork"]
            replayed = about["replayed"]
            notes |= dict.fromkeys(about.get("notes", ()))
    return ForkResult(
        run=str(run.path),
        parent=str(parent.path),
        trial=trial.name,
        step=arm.step,
        change=None if arm.edit is None else str(arm.edit),
        trials=len(trials),
        passed=sum(one.passed for one in trials),
        judged=sum(one.status.judged for one in trials),
        diverged=len(diverged),
        where=diverged[0].error.message if diverged and diverged[0].error else "",
        replayed_model_calls=None if replayed is None else replayed["model_calls"],
        replayed_tool_calls=None if replayed is None else replayed["tool_calls"],
        notes=tuple(notes),
        stopped=run.stopped or "",
    )


def edit_from(text: str) -> ForkEdit:
    """Return the change that a text describes: `hint=…`, `call=TOOL {…}`, `temperature=0`."""
    key, sign, value = text.partition("=")
    key = key.strip()
    if not sign or key not in ForkEdit.model_fields:
        raise ProctorError(
            f"{key!r} is no change of a fork",
            where=f"--edit {text}",
            hint=f"write KEY=VALUE with one of {', '.join(ForkEdit.model_fields)}",
        )
    if value.startswith("@"):
        try:
            value = Path(value[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProctorError(f"cannot be read: {error}", where=value[1:]) from None
    tool, _, arguments = value.strip().partition(" ")
    given: Any = (arguments or "{}") if key == "call" else value
    if key in ("call", "temperature", "result"):
        with contextlib.suppress(ValueError):
            given = json.loads(given)
    if key == "call":
        given = {"tool": tool, "arguments": given}
    try:
        return ForkEdit.model_validate({key: given})
    except ValidationError as error:
        hint = 'write call=TOOL {"NAME": VALUE}' if key == "call" else None
        raise ProctorError(first_fault(error).message, where=f"--edit {text}", hint=hint) from None
