"""Run a TRAIL experiment: traces × one diagnosis method, scored against gold, stored as a run.

Guarantees: a trace that fails is named and does not stop the others; the same command resumes an
interrupted experiment. The other files of the run folder (config.json, predictions/, metrics.json,
summary.md) are derived and can be regenerated. Undefined values are shown as a dash, never as 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec
from pydantic import AliasChoices, ConfigDict, Field, model_validator

from proctor.agents.base import Agent, AgentConfig, AgentError, AgentReply, AgentRequest
from proctor.background import run_sync, threads
from proctor.checks.base import CheckResult, skipped, unscored
from proctor.errors import ProctorError
from proctor.files import lock_file, write_atomic
from proctor.formatting import duration_ms, p_text, percent, plural
from proctor.runs.folder import RunFolder, safe_name
from proctor.runs.run import Run
from proctor.sanitize import line, markdown
from proctor.spec import Case, Suite
from proctor.spec.suite import CustomCheck
from proctor.strict import Strict
from proctor.tables import table
from proctor.trace.capture import capture
from proctor.trail.scorer import Annotation, Scorecard, parse_annotation, read_annotations, score
from proctor.trials.options import RunOptions
from proctor.trials.prepare import RunContext, prepare
from proctor.trials.resume import restore
from proctor.trials.session import INFRA, new_folder, run_session

if TYPE_CHECKING:
    from proctor.checks.base import CheckContext
    from proctor.diagnose.finding import Diagnosis
    from proctor.diagnose.llm.detector import DetectorOptions
    from proctor.llm.chat_model import ChatModel, ChatReply, ChatRequest
    from proctor.trace import Trace


FIGURES = {
    "joint_accuracy": "joint",
    "location_accuracy": "location",
    "weighted_f1": "weighted F1",
    "pair_f1": "pair F1",
    "pair_precision": "pair precision",
    "pair_recall": "pair recall",
    "findings_per_trace": "findings/trace",
}
"""Metrics in display order, and their short names."""

WIDTH = 26
"""Column width of metric names: the longest, r(instruction_adherence), has 24."""

TRAINED = (
    "the shipped detector was trained on 97 traces of TRAIL, so these figures are far too good "
    "for them; for figures on held-out traces see docs/reference/diagnosis-measured.md"
)
"""Note for every method that uses the detector: all but the rules."""

SETTINGS = ("split", "subset", "approach", "model", "prompt_version", "evidence", "leads")

MAY_DIFFER = ("subset", "model", "prompt_version", "evidence", "leads", "notes")
"""Settings shown next to metrics where experiments differ."""


class TrailResult(NamedTuple):
    """An experiment's run with its metrics."""

    config: dict[str, Any]
    metrics: dict[str, Any]
    path: Path


def figure(value: Any) -> str:
    """Format a number."""
    # Counts are whole numbers, metrics are floats, undefined ones None.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return f"{value:.3f}" if isinstance(value, float) else "–"


def score_lines(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Format one set of predictions for the terminal: the metrics, then each category."""
    yield f"{metrics['traces']} traces"
    if metrics.get("wall_seconds") is not None:
        yield f"  {'wall time':<{WIDTH}}{duration_ms(metrics['wall_seconds'] * 1000):>8}"
    if "failed" in metrics:
        yield f"  {'traces failed':<{WIDTH}}{len(metrics['failed']):>8}"
    for key, name in FIGURES.items():
        yield f"  {name:<{WIDTH}}{figure(metrics[key]):>8}"
    for key, found in metrics["correlations"].items():
        name = f"r({key.removesuffix('_score')})"
        about = f"n = {found['n']}"
        about += f": {found['reason']}" if found["reason"] else f", p {p_text(found['p_value'])}"
        yield f"  {name:<{WIDTH}}{figure(found['coefficient']):>8}  {about}"
    yield "  category                          precision  recall      F1  traces"
    for name, row in metrics["categories"].items():
        # A category that neither side has says nothing.
        if row["support"] or row["precision"]:
            numbers = f"{row['precision']:>9.3f}{row['recall']:>8.3f}{row['f1']:>8.3f}"
            yield f"  {name:<34}{numbers}{row['support']:>8}"
    if metrics["categories_at_zero"]:
        yield f"  never found: {', '.join(metrics['categories_at_zero'])}"
    for key, words in (("without_prediction", "no prediction"), ("without_gold", "no gold")):
        if metrics[key]:
            yield f"  {words} for {len(metrics[key])}: {line(', '.join(metrics[key]), 200)}"
    yield from (f"  {each}" for each in _fallback_lines(metrics))
    if metrics.get("caution"):
        yield f"  note: {line(metrics['caution'], 300)}"


def summary_lines(result: TrailResult) -> Iterator[str]:
    """Return the summary of a run as Markdown."""
    config, metrics = result.config, result.metrics
    yield f"# {markdown(config['experiment_id'])}"
    yield ""
    for key in SETTINGS:
        if config.get(key):
            yield f"- {key.replace('_', ' ')}: {markdown(config[key])}"
    if config.get("notes"):
        yield f"- notes: {markdown(config['notes'])}"
    yield ""
    yield "| figure | value |"
    yield "|---|---:|"
    yield f"| traces | {metrics['traces']} |"
    for key, name in FIGURES.items():
        yield f"| {name} | {figure(metrics[key])} |"
    yield ""
    yield "| category | precision | recall | F1 | traces |"
    yield "|---|---:|---:|---:|---:|"
    for name, row in metrics["categories"].items():
        numbers = " | ".join(figure(row[key]) for key in ("precision", "recall", "f1", "support"))
        yield f"| {name} | {numbers} |"
    yield ""
    yield f"Never found (F1 = 0): {', '.join(metrics['categories_at_zero']) or 'none'}."
    for each in _fallback_lines(metrics):
        yield ""
        yield f"{markdown(each)}."
    if metrics.get("caution"):
        yield ""
        yield f"Note: {markdown(metrics['caution'])}."
    for name, why in metrics["failed"].items():
        yield ""
        yield f"Not judged: {markdown(name)}: {markdown(why)}"


def _fallback_lines(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Return a warning about traces answered by the fallback instead of the model."""
    if fallbacks := _fallbacks(metrics):
        why = line(next(iter(fallbacks.values())), 200)
        yield f"not the model's own answer for {plural(len(fallbacks), 'trace')}, such as: {why}"


def _fallbacks(metrics: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the fallback reasons by trace; empty for experiments of earlier versions."""
    return cast("Mapping[str, str]", metrics.get("fallen_back") or {})


def log_lines(experiments: Sequence[TrailResult]) -> Iterator[str]:
    """Format experiments as a table, one per line; settings that all share are left out."""
    # A setting that all experiments share would only widen the table.
    differing = [name for name in MAY_DIFFER if len({_setting(t, name) for t in experiments}) > 1]
    named = [name.replace("_", " ") for name in differing]
    heads = ["experiment", "split", "approach", "traces", *FIGURES.values(), "failed"]
    heads += ["fallback", *named]
    rows = [
        [
            line(result.config["experiment_id"], 32),
            line(result.config["split"], 12),
            line(result.config["approach"], 16),
            str(result.metrics["traces"]),
            *(figure(result.metrics[key]) for key in FIGURES),
            str(len(result.metrics["failed"])),
            str(len(_fallbacks(result.metrics))),
            *(line(_setting(result, name), 40) for name in differing),
        ]
        for result in experiments
    ]
    yield from table(heads, rows, indent="")


def _setting(result: TrailResult, name: str) -> str:
    """Format a setting for a table; for a file, its name."""
    value = str(result.config.get(name) or "–")
    return Path(value).name if name == "subset" else value


# A detector as an agent under test: its input is a trace, its answer a diagnosis.


class DetectorSettings(Strict):
    """Options of a detector that calls a model."""

    model: str | None = None
    """PROVIDER:MODEL, for methods that use a model."""
    base_url: str | None = None
    """Endpoint that speaks the provider's protocol."""
    api_key_env: str | None = None
    """Environment variable with the API key."""
    prompt_version: str = "v2"
    """Prompt version."""
    evidence: Literal["strict", "off"] = Field(
        default="strict", validation_alias=AliasChoices("evidence", "semantic_checks")
    )
    """Whether quotes of the model must appear verbatim in the span; also `semantic_checks`."""
    leads: Literal["none", "offline"] = "none"
    """Whether the model is shown what the offline detector found."""
    reasoning_effort: Literal["minimal", "low", "medium", "high"] | None = None
    """Effort of a model that reasons."""
    agents: int = Field(default=8, ge=1)
    """For agentic, parts investigated at most."""
    chunk: int = Field(default=12, ge=1)
    """For agentic, spans in a part."""

    def detector_fields(self, *left_out: str) -> dict[str, Any]:
        """Return these options by name."""
        return {n: getattr(self, n) for n in DetectorSettings.model_fields if n not in left_out}


class DiagnosisAgentConfig(AgentConfig, DetectorSettings):
    """Diagnose the trace named in the case's input; answer in TRAIL's JSON format."""

    kind: Literal["diagnosis"] = "diagnosis"
    method: str = "offline"
    """offline, rules, learned, single_pass or agentic."""
    limit: int = Field(default=120_000, ge=1000)
    """Maximum characters of a trace in one prompt."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """Maximum cost of one trace in dollars."""

    def create(self) -> Agent:
        """Create a detector; the model's connections are shared."""
        return DiagnosisAgent(self)

    # Cached: every trial shares the model's connections and its cache.
    @cached_property
    def model_options(self) -> DetectorOptions | None:
        """Return the model options, for methods that use a model; its requests are recorded."""
        from proctor.diagnose.methods import calls_model, detector_options
        from proctor.llm.chat_model import ChatReply, DiskCache, cache_folder
        from proctor.llm.providers import get_model

        if not calls_model(self.method):
            return None
        model = None
        if self.model is not None:
            named = get_model(self.model, base_url=self.base_url, api_key_env=self.api_key_env)
            model = _RecordedModel(named)
        return detector_options(
            model,
            **self.detector_fields("model", "base_url", "api_key_env"),
            limit=self.limit,
            max_cost_usd=self.max_cost_usd,
            cache=DiskCache(cache_folder("diagnose"), ChatReply),
        )

    @property
    def provider(self) -> str | None:
        """Return the provider whose rate limits apply."""
        from proctor.llm.rate_limits import provider_of

        return None if self.model is None else provider_of(self.model)

    def version(self) -> dict[str, Any]:
        """Return the method and, if it uses one, the model and its prompt version."""
        found: dict[str, Any] = {"method": self.method}
        if (options := self.model_options) is not None:
            found |= {"model": options.model.identity, "prompt_version": self.prompt_version}
        return found


class _RecordedModel:
    """A model whose every request is a span: also repeated and failed ones count as calls."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self.name, self.identity = model.name, model.identity

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Make one request inside a span with its tokens and cost."""
        with capture.llm_call(self.name, name="diagnose") as span:
            reply = await self._model.complete(request)
            span.input_tokens = reply.usage.input_tokens
            span.output_tokens = reply.usage.output_tokens
            span.cost_usd = reply.cost_usd
            return reply


class DiagnosisAgent:
    """Agent that diagnoses one trace."""

    def __init__(self, config: DiagnosisAgentConfig) -> None:
        self._config = config

    async def run(self, request: AgentRequest) -> AgentReply:
        """Load and diagnose the trace, and answer with the findings."""
        from proctor.diagnose.methods import adiagnose, diagnose_offline

        # Reading blocks; a thread lets other trials go on.
        trace = await threads.run(load_one, trace_path(request.input))
        if self._config.model_options is None:
            # CPU-bound: a thread keeps the event loop free.
            diagnosis: Diagnosis = await threads.run(diagnose_offline, trace, self._config.method)
        else:
            diagnosis = await adiagnose(trace, self._config.method, self._config.model_options)
        output = diagnosis.to_dict()
        return AgentReply(answer=msgspec.json.encode(output).decode(), output=output)


def trace_path(value: Any) -> Path:
    """Return the trace file of a case: its input, or the `trace` of its input."""
    path: Any = value.get("trace") if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if not isinstance(path, str):
        hint = "write `input: {trace: FILE}`"
        raise AgentError("the case does not name a trace", category="", hint=hint)
    return Path(path)


def load_one(path: Path) -> Trace:
    """Return the only trace of a file."""
    from proctor.trace.load import load_traces

    try:
        traces = load_traces(path)
    except ProctorError as error:
        raise AgentError(error.message, category="", where=error.where, hint=error.hint) from error
    if len(traces) != 1:
        message = f"the file holds {len(traces)} traces, not one"
        raise AgentError(message, category="", where=str(path))
    return traces[0]


SPLITS = {"GAIA": "gaia", "SWE Bench": "swe_bench"}
"""Trace folder of a split → suffix of its gold annotation folder."""

APPROACHES = {"on": "agentic", "off": "offline"}
"""External names → ours."""


DEFAULT_MODEL = "openai/gpt-5-mini"
"""The model of an experiment that names none."""


class ExperimentConfig(DetectorSettings):
    """Definition of an experiment: stored as config.json, and compared to detect the same one."""

    model_config = ConfigDict(populate_by_name=True)

    experiment_id: str = Field(min_length=1)
    """Name of the experiment."""
    trail_data_dir: Path
    """Trace folder: the split's folder or its parent."""
    gold_dir: Path
    """Annotation folder: the split's folder or its parent."""
    output_dir: Path = Field(default=Path("results/trail"), exclude=True)
    """Folder for the runs and the experiment log."""
    split: str = "GAIA"
    """GAIA or SWE Bench."""
    approach: str = "single_pass"
    """offline, rules, learned, single_pass or agentic; off and on are accepted too."""
    subset: str = "dev18"
    """full, dev18, sample18, or a file with one trace id per line (or a JSON list)."""
    prompt_size: int = Field(default=120_000, ge=1000)
    """Characters of a trace in one prompt."""
    max_workers: int = Field(default=5, ge=1, exclude=True)
    """Traces to diagnose at the same time."""
    notes: str = ""

    @model_validator(mode="before")
    @classmethod
    def _with_model(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Name the default model; refuse options that have no effect without one."""
        from proctor.diagnose.methods import calls_model, why_unused

        approach = given.get("approach", cls.model_fields["approach"].default)
        for name in ("prompt_size", *DetectorSettings.model_fields):
            changed = given.get(name) not in (None, cls.model_fields[name].default)
            if changed and (why := why_unused(approach, name)):
                raise ProctorError(
                    f"{name} has no effect: the approach {approach!r} {why}",
                    hint="leave it out, or use single_pass or agentic",
                )
        if not calls_model(approach):
            return given
        return {**given, "model": given.get("model") or DEFAULT_MODEL}

    @property
    def uses_detector(self) -> bool:
        """Whether the findings come from the shipped detector, or a model was shown them."""
        method = APPROACHES.get(self.approach, self.approach)
        return method in ("offline", "learned") or self.leads == "offline"

    @property
    def traces(self) -> Path:
        """Return the folder of this split's traces."""
        return _inside(self.trail_data_dir, self.split)

    @property
    def gold(self) -> Path:
        """Return the folder of this split's annotations."""
        end = SPLITS.get(self.split, self.split)
        return _inside(self.gold_dir, f"processed_annotations_{end}")

    @property
    def agent(self) -> DiagnosisAgentConfig:
        """Return the detector."""
        method = APPROACHES.get(self.approach, self.approach)
        return DiagnosisAgentConfig(method=method, limit=self.prompt_size, **self.detector_fields())


def _inside(folder: Path, name: str) -> Path:
    # Both layouts are in use: a folder of splits, and the folder of one split.
    inner = folder / name
    return inner if inner.is_dir() else folder


# -- trace selection -----------------------------------------------------------------------------


def select_traces(config: ExperimentConfig) -> tuple[list[Path], list[str]]:
    """Return the traces of the subset, ordered by name, and requested ids that are missing."""
    if not config.traces.is_dir():
        raise ProctorError("no such folder of traces", where=str(config.traces))
    files = {path.stem: path for path in sorted(config.traces.glob("*.json"))}
    missing: list[str] = []
    if (wanted := _wanted(config)) is not None:
        missing = [name for name in wanted if name not in files]
        files = {name: files[name] for name in sorted(set(wanted)) if name in files}
    if not files:
        raise ProctorError(
            f"the subset {config.subset!r} has no trace here",
            where=str(config.traces),
            hint="see --trail-data-dir, --split and --subset",
        )
    return list(files.values()), missing


def _wanted(config: ExperimentConfig) -> list[str] | None:
    """Return the ids of a subset; None for all."""
    if config.subset == "full":
        return None
    shipped = json.loads(Path(__file__).with_name("subsets.json").read_text(encoding="utf-8"))
    if config.subset in shipped:
        if config.split not in shipped[config.subset]:
            raise ProctorError(
                f"the subset {config.subset!r} has no traces of {config.split}",
                hint="use sample18, full, or a file of trace ids",
            )
        return shipped[config.subset][config.split]
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
            hint="use full, dev18, sample18, or a file with one trace id per line (or a JSON list)",
        ) from None
    return [line.strip() for line in text.splitlines() if line.strip()]


# -- running -------------------------------------------------------------------------------------


class TrailExperiment(NamedTuple):
    """A prepared experiment: run it with `run_session(context, folder)`, then `write_results`."""

    config: ExperimentConfig
    context: RunContext
    folder: RunFolder
    resumed: bool
    missing: list[str]


def begin(config: ExperimentConfig, **limits: Any) -> TrailExperiment:
    """Return a new run of an experiment, or the last one if it is the same and unfinished."""
    root, max_workers = config.output_dir, config.max_workers
    files, missing = select_traces(config)
    if not config.gold.is_dir():
        raise ProctorError("no such folder of annotations", where=str(config.gold))
    if not any((config.gold / path.name).is_file() for path in files):
        raise ProctorError(
            f"no annotation of {plural(len(files), 'selected trace')}",
            where=str(config.gold),
            hint="--gold-dir is the folder that holds processed_annotations_*, or one of these",
        )
    # The same command after a crash goes on where it stopped.
    unfinished = _unfinished(config, root)
    if unfinished is not None:
        context, folder = restore(unfinished.path, concurrency=max_workers, **limits)
        return TrailExperiment(config, context, folder, True, missing)
    gold = CustomCheck(
        check="proctor.trail.experiment:AgainstGold",
        params={"gold": str(config.gold.resolve())},
        id="joint_accuracy",
        required=False,
    )
    # Threshold 0: the score measures the detector, and no trial fails by it.
    suite = Suite(
        cases=tuple(
            Case(
                id=path.stem,
                input={"trace": str(path.resolve())},
                type=config.split,
                threshold=0.0,
                checks=(gold,),
            )
            for path in files
        )
    )
    options = RunOptions(trials=1, concurrency=max_workers, **limits)
    context = prepare(suite, options, agents={config.agent.method: config.agent})
    folder = new_folder(context, root, config.experiment_id)
    text = config.model_dump_json(indent=2) + "\n"
    write_atomic(folder.path / "config.json", text.encode())
    return TrailExperiment(config, context, folder, False, missing)


def _unfinished(config: ExperimentConfig, root: Path) -> RunFolder | None:
    """Return the last run of this experiment if it has the same config and is unfinished."""
    # Folder names begin with the time, so the last one is the newest.
    earlier = sorted((root / safe_name(config.experiment_id)).glob("*/_spec_.yaml"))
    if not earlier:
        return None
    run = Run(earlier[-1].parent)
    config_file = run.path / "config.json"
    # Any change of a setting is another experiment.
    if not config_file.is_file() or json.loads(config_file.read_bytes()) != config.model_dump(
        mode="json"
    ):
        return None
    done = sum(1 for trial in run.trials() if trial.status.judged)
    requested = sum(int(cell["trials"]) for cell in run.spec["cells"])
    return run.folder if done < requested else None


# -- results -------------------------------------------------------------------------------------


def run_experiment(config: ExperimentConfig) -> TrailResult:
    """Run a TRAIL experiment from start to end and return its metrics; resumes an unfinished one.

    done = proctor.trail.run_experiment(proctor.trail.ExperimentConfig(
        experiment_id="first", trail_data_dir="trail/data", gold_dir="trail"))
    done.metrics["joint_accuracy"]
    """
    experiment = begin(config)
    # nested: notebooks call this inside a running event loop.
    run = run_sync(run_session(experiment.context, experiment.folder, rerun=INFRA), nested=True)
    return write_results(run)


def write_results(run: Run) -> TrailResult:
    """Write the derived predictions, metrics and summary of a run, and add it to the log."""
    config: dict[str, Any] = json.loads((run.path / "config.json").read_text(encoding="utf-8"))
    settings = ExperimentConfig.model_validate(config)
    gold = read_annotations(settings.gold)
    predicted, failed, fallbacks = _predictions(run)
    # Gold of traces outside the subset would count as missing predictions.
    requested = {str(cell["case"]) for cell in run.spec["cells"]}
    gold_traces = {name: note for name, note in gold.by_trace.items() if name in requested}
    card = score(gold_traces, predicted)
    totals = run.totals
    ends = [trial.started_ns / 1e9 + (trial.duration_ms or 0) / 1e3 for trial in run.trials()]
    began = min((trial.started_ns / 1e9 for trial in run.trials()), default=0.0)
    metrics = {
        **card_record(card),
        "per_trace": [
            _trace_record(name, gold_traces[name], predicted[name])
            for name in sorted(gold_traces.keys() & predicted.keys())
        ],
        "failed": failed,
        "wall_seconds": round(max(ends) - began, 3) if ends else None,
        # Only problems of this subset: gold folders hold the whole split.
        "gold_problems": [p for p in gold.problems if p.split(".json:")[0] in requested],
        "cost_usd": totals.cost_usd,
        "unpriced_calls": totals.unpriced_calls,
        "fallen_back": fallbacks,
        "caution": TRAINED if settings.uses_detector else None,
    }
    pretty = msgspec.json.format(msgspec.json.encode(metrics), indent=2)
    write_atomic(run.path / "metrics.json", pretty + b"\n")
    result = TrailResult(config, metrics, run.path)
    _add_to_log(result)
    write_atomic(run.path / "summary.md", "\n".join(summary_lines(result)).encode() + b"\n")
    return result


def _trace_record(name: str, gold: Annotation, predicted: Annotation) -> dict[str, Any]:
    """Return the figures of one trace."""
    card = score({name: gold}, {name: predicted})
    figures = ("location_accuracy", "joint_accuracy", "pair_precision", "pair_recall", "pair_f1")
    return {
        "trace_id": name,
        "gold_errors": len(gold.marks),
        "findings": len(predicted.marks),
        **{key: getattr(card, key) for key in figures},
    }


def _add_to_log(result: TrailResult) -> None:
    """Put an experiment into `experiment_log.json` of its output folder; a run is there once."""
    path = result.path.parent.parent / "experiment_log.json"
    run = f"{result.path.parent.name}/{result.path.name}"
    with path.with_suffix(".lock").open("ab") as lock:
        lock_file(lock)
        try:
            log: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            log = []
        except ValueError as error:
            raise ProctorError(f"not JSON: {error}", where=str(path)) from None
        row = {
            "run": run,
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "config": result.config,
            "metrics": {
                key: value
                for key, value in result.metrics.items()
                if isinstance(value, int | float) or value is None
            },
            "traces_failed": len(result.metrics["failed"]),
        }
        log = [*(entry for entry in log if entry.get("run") != run), row]
        write_atomic(path, json.dumps(log, indent=2).encode() + b"\n")


def _predictions(run: Run) -> tuple[dict[str, Annotation], dict[str, str], dict[str, str]]:
    """Write the predictions of a run and return them by trace.

    The other two are the reasons of missing predictions, and of those that came from the fallback
    because the model did not answer.
    """
    from proctor.diagnose.methods import calls_model

    folder = run.path / "predictions"
    folder.mkdir(exist_ok=True)
    predicted: dict[str, Annotation] = {}
    failed: dict[str, str] = {}
    fallbacks: dict[str, str] = {}
    # Answers are written as given, so that a prediction file can be scored by other tools.
    for trial in run.trials():
        if trial.error is not None or trial.answer is None:
            failed[trial.case] = trial.error.message if trial.error else trial.status.value
            continue
        text = trial.answer
        try:
            result = json.loads(text)
        except ValueError:
            # The journal cuts very long answers; the trace has them whole.
            trace = run.trace(trial)
            text = str(trace.response) if trace is not None else "{}"
            result = json.loads(text)
        predicted[trial.case], _ = parse_annotation(text)
        # The diagnosis names the method that produced it, which is not always the one selected.
        if calls_model(trial.agent) and result.get("method", trial.agent) != trial.agent:
            fallbacks[trial.case] = str(result.get("notes", [""])[-1])
        write_atomic(folder / f"{safe_name(trial.case)}.json", text.encode() + b"\n")
    return predicted, failed, fallbacks


def card_record(card: Scorecard) -> dict[str, Any]:
    """Return a scorecard as JSON, with the names of categories never found."""
    return {
        **msgspec.to_builtins(card),
        "categories": {c.value: row._asdict() for c, row in card.categories.items()},
        "categories_at_zero": [
            c.value for c, row in card.categories.items() if row.support and not row.f1
        ],
    }


# -- the experiment log --------------------------------------------------------------------------


def load_results(root: Path, names: Sequence[str] = ()) -> list[TrailResult]:
    """Return the experiments under a root, from their runs; with names, those in that order.

    A name is an experiment id (its last finished run) or the folder of a run.
    """
    paths = [] if names else sorted(path.parent for path in root.glob("*/*/metrics.json"))
    for name in names:
        if (Path(name) / "metrics.json").is_file():
            paths.append(Path(name))
            continue
        runs = sorted((root / safe_name(name)).glob("*/metrics.json"))
        if not runs:
            raise ProctorError(
                f"no finished experiment {name!r}",
                where=str(root),
                hint="name its folder with --output-dir; without names `proctor trail compare` "
                "lists all experiments",
            )
        paths.append(runs[-1].parent)
    results: list[TrailResult] = []
    for path in paths:
        try:
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
            metrics = json.loads((path / "metrics.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ProctorError(f"the experiment cannot be read: {error}", where=str(path)) from None
        results.append(TrailResult(config, metrics, path))
    return results


# Score of a diagnosis against the gold annotation of its trace: the official metric per trace.


class AgainstGold:
    """Joint accuracy of one trace: the share of gold (span, category) pairs found."""

    def __init__(self, gold: str) -> None:
        self._gold = Path(gold)

    def __call__(self, context: CheckContext[str]) -> CheckResult:
        """Score the diagnosis in the answer; skip traces without gold."""
        name = str(context.case.id)
        path = self._gold / f"{name}.json"
        # Not every trace of a split is annotated.
        if not path.is_file():
            return skipped("no gold annotation for this trace")
        try:
            gold, _ = parse_annotation(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return unscored(f"the gold annotation cannot be read: {error}")
        result, _ = parse_annotation(context.answer)
        share = score({name: gold}, {name: result}).joint_accuracy or 0.0
        findings = len({(m.location, m.label) for m in result.marks})
        wanted = len({(m.location, m.label) for m in gold.marks})
        reason = f"{percent(share)} of {wanted} gold pairs found, with {findings} findings"
        return CheckResult(passed=share > 0 or not wanted, score=share, reason=reason)
