"""Run a TRAIL experiment: traces × one way of diagnosing, scored against gold, kept in a run.

Promise: one trace that fails does not stop the others and is named; the same command goes on
with an experiment that was interrupted. What stands beside the run (config.json, predictions/,
metrics.json, summary.md) is derived from it and can be made again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
from pydantic import Field

from proctor.diagnose.scorer import Scorecard, score
from proctor.diagnose.trail_data import Annotation, Annotations, parse_annotation, read_annotations
from proctor.errors import ProctorError
from proctor.runs.folder import RunFolder, safe_name, write_atomic
from proctor.runs.run import Run
from proctor.schema import Strict
from proctor.spec import Case, Suite
from proctor.spec.models import CustomCheck
from proctor.trail.agent import DiagnosisAgentConfig
from proctor.trail.told import TRAINED, Concluded, summary_lines
from proctor.trials.carrying import new_folder
from proctor.trials.options import RunOptions
from proctor.trials.prepare import RunContext, prepare
from proctor.trials.resume import restore

SPLITS = {"GAIA": "gaia", "SWE Bench": "swe_bench"}
"""A split's folder of traces → the end of its folder of gold annotations."""

APPROACHES = {"on": "agentic", "off": "offline"}
"""Names from elsewhere → ours."""


class TrailConfig(Strict):
    """What an experiment is: kept as config.json, and compared to know whether it is the same."""

    experiment_id: str = Field(min_length=1)
    """What the experiment is called."""
    trail_data_dir: Path
    """The folder of traces: it holds the split's folder, or is it."""
    gold_dir: Path
    """The folder of annotations: it holds the split's folder, or is it."""
    split: str = "GAIA"
    """GAIA or SWE Bench."""
    approach: str = "offline"
    """offline, rules, learned, single_pass or agentic; off and on are taken too."""
    subset: str = "full"
    """full, dev18, or a file with one trace id a line (or a JSON list)."""
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    prompt_version: str = "v2"
    notes: str = ""

    @property
    def traces(self) -> Path:
        """The folder of this split's traces."""
        return _inside(self.trail_data_dir, self.split)

    @property
    def gold(self) -> Path:
        """The folder of this split's annotations."""
        end = SPLITS.get(self.split, self.split)
        return _inside(self.gold_dir, f"processed_annotations_{end}")

    @property
    def agent(self) -> DiagnosisAgentConfig:
        """The detector."""
        return DiagnosisAgentConfig(
            method=APPROACHES.get(self.approach, self.approach),
            model=self.model,
            base_url=self.base_url,
            api_key_env=self.api_key_env,
            prompt_version=self.prompt_version,
        )


def _inside(folder: Path, name: str) -> Path:
    inner = folder / name
    return inner if inner.is_dir() else folder


# -- choosing traces -----------------------------------------------------------------------------


class Chosen(NamedTuple):
    """Trace files of an experiment, and ids that were asked for but are not there."""

    files: list[Path]
    missing: list[str]


def choose(config: TrailConfig) -> Chosen:
    """The traces of the subset, in order of name."""
    if not config.traces.is_dir():
        raise ProctorError("no such folder of traces", where=str(config.traces))
    files = {path.stem: path for path in sorted(config.traces.glob("*.json"))}
    wanted = _wanted(config)
    if wanted is not None:
        missing = [name for name in wanted if name not in files]
        files = {name: files[name] for name in sorted(set(wanted)) if name in files}
    else:
        missing = []
    if not files:
        raise ProctorError(
            f"the subset {config.subset!r} has no trace here",
            where=str(config.traces),
            hint="see --trail-data-dir, --split and --subset",
        )
    return Chosen(list(files.values()), missing)


def _wanted(config: TrailConfig) -> list[str] | None:
    """Ids of a subset; None for all there are."""
    if config.subset == "full":
        return None
    if config.subset == "dev18":
        manifest = json.loads(Path(__file__).with_name("dev18.json").read_text(encoding="utf-8"))
        return manifest.get(config.split, [])
    path = Path(config.subset)
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            return [str(item) for item in cast("list[Any]", json.loads(text))]
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ProctorError(
            f"the subset cannot be read: {why}",
            where=config.subset,
            hint="write full, dev18, or a file with one trace id a line (or a JSON list)",
        ) from None
    return [line.strip() for line in text.splitlines() if line.strip()]


# -- running -------------------------------------------------------------------------------------


class Experiment(NamedTuple):
    """An experiment made ready: carry it out with `carry_out(ready, folder)`, then `conclude`."""

    config: TrailConfig
    ready: RunContext
    folder: RunFolder
    going_on: bool
    missing: list[str]


def begin(config: TrailConfig, root: Path, max_workers: int = 4, **limits: Any) -> Experiment:
    """A new run of an experiment, or the last one if it is the same and was not finished."""
    chosen = choose(config)
    if not config.gold.is_dir():
        raise ProctorError("no such folder of annotations", where=str(config.gold))
    unfinished = _unfinished(config, root)
    if unfinished is not None:
        restored = restore(unfinished.path, concurrency=max_workers, **limits)
        return Experiment(config, restored.ready, restored.folder, True, chosen.missing)
    suite = Suite(cases=tuple(_case(path, config) for path in chosen.files))
    options = RunOptions(trials=1, concurrency=max_workers, **limits)
    ready = prepare(suite, options, agents={config.agent.method: config.agent})
    folder = new_folder(ready, root, config.experiment_id)
    write_atomic(folder.path / "config.json", _config_text(config))
    return Experiment(config, ready, folder, False, chosen.missing)


def _case(path: Path, config: TrailConfig) -> Case:
    gold = CustomCheck(
        check="proctor.trail.check:AgainstGold",
        params={"gold": str(config.gold.resolve())},
        id="joint_accuracy",
        required=False,
    )
    return Case(
        id=path.stem,
        input={"trace": str(path.resolve())},
        type=config.split,
        threshold=0.0,
        checks=(gold,),
    )


def _config_text(config: TrailConfig) -> bytes:
    return config.model_dump_json(indent=2).encode() + b"\n"


def _unfinished(config: TrailConfig, root: Path) -> RunFolder | None:
    """The last run of this experiment, when it has the same config and trials left to do."""
    earlier = sorted((root / safe_name(config.experiment_id)).glob("*/_spec_.yaml"))
    if not earlier:
        return None
    run = Run(earlier[-1].parent)
    kept = run.path / "config.json"
    if not kept.is_file() or kept.read_bytes() != _config_text(config):
        return None
    done = sum(1 for trial in run.trials() if trial.status.judged)
    asked = sum(int(cell["trials"]) for cell in run.spec["cells"])
    return run.folder if done < asked else None


# -- what it came to -----------------------------------------------------------------------------


def conclude(run: Run) -> Concluded:
    """Write predictions, metrics and summary beside a run; all of it derived."""
    config: dict[str, Any] = json.loads((run.path / "config.json").read_text(encoding="utf-8"))
    gold = read_annotations(TrailConfig.model_validate(config).gold)
    predicted, failed, fallen = _predictions(run)
    asked = {str(cell["case"]) for cell in run.spec["cells"]}
    of_gold = {name: note for name, note in gold.by_trace.items() if name in asked}
    card = score(of_gold, predicted)
    metrics = _metrics(card, gold, failed, run) | {"fallen_back": fallen}
    metrics["gold_problems"] = [p for p in gold.problems if p.split(".json:")[0] in asked]
    metrics["caution"] = None if config["approach"] == "rules" else TRAINED
    write_atomic(run.path / "metrics.json", _pretty(metrics))
    told = Concluded(config, metrics, run.path)
    write_atomic(run.path / "summary.md", "\n".join(summary_lines(told)).encode() + b"\n")
    return told


class _Predictions(NamedTuple):
    """What was predicted of each trace; why nothing was, of the others; and why it was not the
    model that answered, where it was to."""

    by_trace: dict[str, Annotation]
    failed: dict[str, str]
    fallen_back: dict[str, str]


def _predictions(run: Run) -> _Predictions:
    """The predictions of a run, written out."""
    folder = run.path / "predictions"
    folder.mkdir(exist_ok=True)
    predicted: dict[str, Annotation] = {}
    failed: dict[str, str] = {}
    fallen: dict[str, str] = {}
    for trial in run.trials():
        if trial.error is not None or trial.answer is None:
            failed[trial.case] = trial.error.message if trial.error else trial.status.value
            continue
        text = _whole_answer(run, trial)
        predicted[trial.case], _ = parse_annotation(text)
        told = json.loads(text)
        if told.get("method", trial.agent) != trial.agent:
            fallen[trial.case] = str(told.get("notes", [""])[-1])
        write_atomic(folder / f"{safe_name(trial.case)}.json", text.encode() + b"\n")
    return _Predictions(predicted, failed, fallen)


def _whole_answer(run: Run, trial: Any) -> str:
    """The answer of a trial; a very long one stands whole only in the trace."""
    try:
        json.loads(trial.answer)
    except ValueError:
        trace = run.trace(trial)
        return str(trace.response) if trace is not None else "{}"
    return str(trial.answer)


def _metrics(
    card: Scorecard, gold: Annotations, failed: dict[str, str], run: Run
) -> dict[str, Any]:
    totals = run.totals
    return {
        **card_record(card),
        "failed": failed,
        "gold_problems": gold.problems,
        "cost_usd": totals.cost_usd,
        "unpriced_calls": totals.unpriced_calls,
    }


def card_record(card: Scorecard) -> dict[str, Any]:
    """A scorecard as JSON keeps it; the categories nobody found are named."""
    return {
        "traces": card.traces,
        "joint_accuracy": card.joint_accuracy,
        "location_accuracy": card.location_accuracy,
        "weighted_f1": card.weighted_f1,
        "pair_precision": card.pair_precision,
        "pair_recall": card.pair_recall,
        "pair_f1": card.pair_f1,
        "findings_per_trace": card.findings_per_trace,
        "correlations": dict(card.correlations),
        "categories": {c.value: row._asdict() for c, row in card.categories.items()},
        "categories_at_zero": [
            c.value for c, row in card.categories.items() if row.support and not row.f1
        ],
        "without_prediction": list(card.without_prediction),
        "without_gold": list(card.without_gold),
    }


def _pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


# -- the experiment log --------------------------------------------------------------------------


def logged(root: Path, names: Sequence[str] = ()) -> list[Concluded]:
    """Experiments under a root: the log is a view of their runs. With names, those in that order.

    A name is an experiment id (its last finished run) or the folder of a run.
    """
    if names:
        return [_read(_run_of(root, name)) for name in names]
    found = sorted(path.parent for path in root.glob("*/*/metrics.json"))
    return [_read(path) for path in found]


def _run_of(root: Path, name: str) -> Path:
    if (Path(name) / "metrics.json").is_file():
        return Path(name)
    found = sorted((root / safe_name(name)).glob("*/metrics.json"))
    if not found:
        raise ProctorError(
            f"no finished experiment {name!r}",
            where=str(root),
            hint="name its folder with --output-dir; without names `proctor trail compare` lists "
            "the experiments there are",
        )
    return found[-1].parent


def _read(path: Path) -> Concluded:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        metrics = json.loads((path / "metrics.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProctorError(f"the experiment cannot be read: {error}", where=str(path)) from None
    return Concluded(config, metrics, path)
