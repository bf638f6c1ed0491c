"""TRAIL experiments: real traces with gold, from the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from commands import proctor
from scipy import stats

from proctor import trail
from proctor.background import run_sync
from proctor.cli.main import cli
from proctor.errors import ProctorError
from proctor.llm import MockLLM
from proctor.runs.run import Run
from proctor.trail.experiment import ExperimentConfig, begin, select_traces
from proctor.trail.scorer import read_annotations, score
from proctor.trials.session import run_session


@pytest.fixture
def few(shared: Path, tmp_path: Path) -> Path:
    """Six of the smallest traces of a split, with their gold, and one file that is no trace."""
    source = shared / "trail"
    data = tmp_path / "data" / "GAIA"
    gold = tmp_path / "processed_annotations_gaia"
    data.mkdir(parents=True)
    gold.mkdir()
    small = sorted((source / "data" / "GAIA").glob("*.json"), key=lambda p: p.stat().st_size)[:6]
    for path in small:
        shutil.copy(path, data)
        shutil.copy(source / "processed_annotations_gaia" / path.name, gold)
    return tmp_path


def invoke(*args: str):
    return CliRunner().invoke(cli, ["trail", *args])


def run_args(few: Path, name: str, *more: str) -> list[str]:
    data = ["--trail-data-dir", str(few / "data"), "--gold-dir", str(few)]
    out = ["--output-dir", str(few / "out"), "--quiet"]
    return ["run", "--experiment-id", name, *data, *out, *more]


def test_an_experiment_is_a_run_with_metrics(few: Path) -> None:
    """R-G6: per-trace outputs, config, metrics and summary beside an ordinary run."""
    done = invoke(*run_args(few, "first", "--approach", "rules", "--notes", "a | b"))
    assert done.exit_code == 0, done.output
    (path,) = (few / "out" / "first").iterdir()
    config = json.loads((path / "config.json").read_text())
    assert (config["approach"], config["notes"]) == ("rules", "a | b")
    metrics = json.loads((path / "metrics.json").read_text())
    assert metrics["traces"] == 6
    summary = (path / "summary.md").read_text()
    assert "Never found (F1 = 0):" in summary
    assert "a \\| b" in summary
    gold = read_annotations(few / "processed_annotations_gaia").by_trace
    card = score(gold, read_annotations(path / "predictions").by_trace)
    assert metrics["joint_accuracy"] == card.joint_accuracy
    run = Run(path)
    mean = sum(trial.score or 0.0 for trial in run.trials()) / 6
    assert mean == pytest.approx(card.joint_accuracy)


def test_figures_of_a_trained_detector_say_so(few: Path) -> None:
    """R-G6: on traces the detector may know, the figures come with a note; rules have none."""
    trained = invoke(*run_args(few, "trained", "--approach", "off"))
    ruled = invoke(*run_args(few, "ruled", "--approach", "rules"))
    assert "note: the shipped detector was trained" in trained.output
    assert "note:" not in ruled.output
    (path,) = (few / "out" / "trained").iterdir()
    assert "Note: the shipped detector was trained" in (path / "summary.md").read_text()


def test_one_failing_trace_does_not_stop_it(few: Path) -> None:
    """R-G6: the trace is named, the others count; the same command tries it again."""
    broken = few / "data" / "GAIA" / "broken.json"
    broken.write_text("{")
    done = invoke(*run_args(few, "hurt", "--approach", "rules"))
    assert done.exit_code == 2
    assert "not judged: broken" in done.output
    (path,) = (few / "out" / "hurt").iterdir()
    assert json.loads((path / "metrics.json").read_text())["traces"] == 6
    good = sorted((few / "data" / "GAIA").glob("*.json"))[0]
    shutil.copy(good, broken)
    gold = few / "processed_annotations_gaia"
    shutil.copy(gold / good.name, gold / broken.name)
    again = invoke(*run_args(few, "hurt", "--approach", "rules"))
    assert again.exit_code == 0, again.output
    assert "resuming" in again.output
    assert len(list((few / "out" / "hurt").iterdir())) == 1


def test_an_interrupted_experiment_goes_on(few: Path) -> None:
    """R-G6: what was done is not done again; another config is another run."""
    config = ExperimentConfig(
        experiment_id="cut",
        trail_data_dir=few / "data",
        gold_dir=few,
        approach="rules",
        subset="full",
        output_dir=few / "out",
        max_workers=1,
    )
    first = begin(config, max_trials=2)
    run_sync(run_session(first.context, first.folder))
    assert len(list(Run(first.folder.path).trials())) == 2
    second = begin(config)
    assert second.resumed
    assert second.folder.path == first.folder.path
    other = begin(config.model_copy(update={"approach": "offline"}))
    assert not other.resumed


def test_experiments_side_by_side(few: Path) -> None:
    """R-G6: the log is a view of the runs; an unknown experiment is named."""
    invoke(*run_args(few, "one", "--approach", "rules"))
    invoke(*run_args(few, "two", "--approach", "off"))
    shown = invoke("compare", "two", "one", "--output-dir", str(few / "out"))
    heads, two, one = shown.output.splitlines()
    assert heads.split()[:4] == ["experiment", "split", "approach", "traces"]
    assert (two.split()[0], one.split()[0]) == ("two", "one")
    every = invoke("compare", "--output-dir", str(few / "out"), "--json")
    assert {row["config"]["experiment_id"] for row in json.loads(every.output)} == {"one", "two"}
    assert "model" not in heads
    flags = ["--notes", "a second try", "--subset", str(few / "ids.txt")]
    (few / "ids.txt").write_text(next((few / "data" / "GAIA").iterdir()).stem)
    invoke(*run_args(few, "four", "--approach", "rules", *flags))
    shown = invoke("compare", "one", "four", "--output-dir", str(few / "out"))
    assert "a second try" in shown.output
    assert "ids.txt" in shown.output
    missing = invoke("compare", "three", "--output-dir", str(few / "out"))
    assert "no finished experiment 'three'" in str(missing.exception)


def test_score_names_what_it_could_not_read(few: Path) -> None:
    """R-G5: repaired where unambiguous, never silently skipped; exit 2 when a file gave nothing."""
    gold = few / "processed_annotations_gaia"
    damaged = few / "damaged"
    shutil.copytree(gold, damaged)
    first, second, third, *_ = sorted(damaged.glob("*.json"))
    first.write_text('{"errors": [],}')
    second.write_text("not JSON")
    third.unlink()
    done = invoke("score", "--gold-dir", str(gold), "--generated-dir", str(damaged))
    assert done.exit_code == 2
    assert f"{first.name}: trailing comma repaired" in done.output
    assert f"{second.name}: not read" in done.output
    assert "no prediction for 2" in done.output
    perfect = invoke("score", "--gold-dir", str(gold), "--generated-dir", str(gold), "--json")
    assert json.loads(perfect.output)["pair_f1"] == 1.0


def test_what_cannot_count_is_named(few: Path) -> None:
    """R-G5: entries without a place, unknown categories, scores that are no numbers are
    reported, on both sides and by `run` too; figures stay numbers."""
    gold = few / "processed_annotations_gaia"
    damaged = few / "damaged"
    shutil.copytree(gold, damaged)
    first, second, third, *_ = sorted(damaged.glob("*.json"))
    entry = {"category": "Blue Errors", "location": "a"}
    odd = {"errors": [{"category": "Goal Deviation"}, entry], "scores": []}
    first.write_text(json.dumps(odd))
    second.write_text('{"errors": [], "scores": [{"reliability_score": NaN, "overall": "x"}]}')
    third.write_text("\N{BYTE ORDER MARK}{}", encoding="utf-8")
    done = invoke("score", "--gold-dir", str(gold), "--generated-dir", str(damaged))
    assert done.exit_code == 0
    assert f"{first.name}: errors[0]: no location, errors[1]: the category 'Blue" in done.output
    assert (
        f"{second.name}: reliability_score is not a number, overall is not a number" in done.output
    )
    assert f"{third.name}: `errors` is missing" in done.output
    assert "nan" not in done.output.split("traces\n", 1)[1].split("category")[0]
    shutil.copy(first, gold / first.name)
    run = invoke(*run_args(few, "odd", "--approach", "rules"))
    assert f"warning: gold {first.name}: errors[0]: no location" in run.output


def test_subsets(shared: Path, few: Path) -> None:
    """R-G6: dev18 is the published list, sample18 eighteen traces of each split, a file names its
    own, a bad one is refused."""
    whole: dict[str, Any] = {
        "trail_data_dir": shared / "trail" / "data",
        "gold_dir": shared / "trail",
    }
    for split in ("GAIA", "SWE Bench"):
        config = ExperimentConfig(experiment_id="x", split=split, subset="sample18", **whole)
        files, missing = select_traces(config)
        assert len(files) == 18
        assert not missing
    published = json.loads((shared / "trail" / "dev18.json").read_text())["trace_ids"]
    files, missing = select_traces(ExperimentConfig(experiment_id="x", **whole))
    assert sorted([*(path.stem for path in files), *missing]) == published
    assert len(files) == 16
    with pytest.raises(ProctorError, match="no traces of SWE Bench"):
        select_traces(ExperimentConfig(experiment_id="x", split="SWE Bench", **whole))
    ids = sorted(path.stem for path in (few / "data" / "GAIA").iterdir())[:2]
    (few / "ids.txt").write_text("\n".join([*ids, "gone"]))
    here: dict[str, Any] = {"trail_data_dir": few / "data", "gold_dir": few}
    listed = ExperimentConfig(experiment_id="x", subset=str(few / "ids.txt"), **here)
    files, missing = select_traces(listed)
    assert [path.stem for path in files] == ids
    assert missing == ["gone"]
    (few / "broken.json").write_text('["one",')
    for subset in ("nowhere.txt", str(few / "broken.json"), str(few)):
        with pytest.raises(ProctorError, match="cannot be read"):
            select_traces(ExperimentConfig(experiment_id="x", subset=subset, **here))


def test_a_model_as_the_detector(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-G6: `on` asks a model through the same run; its calls and prompt version are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(few / "cache"))
    reply = '{"errors": [], "scores": {}}'
    with MockLLM([{"text": reply, "times": "forever"}]) as server:
        flags = ["--approach", "single_pass", "--model", "openai:scripted"]
        flags += ["--base-url", server.base_url, "--prompt-version", "v1"]
        done = invoke(*run_args(few, "asked", *flags))
        assert done.exit_code == 0, done.output
        assert len(server.requests) == 6
    (path,) = (few / "out" / "asked").iterdir()
    run = Run(path)
    assert run.totals.llm_calls == 6
    assert run.spec["agents"]["single_pass"]["version"]["prompt_version"] == "v1"
    assert json.loads((path / "metrics.json").read_text())["findings_per_trace"] == 0
    assert "not the model's own" not in done.output


def test_sizes_and_effort_reach_the_model(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-G6: parts, spans in a part, characters of a prompt and the effort are settings of an
    experiment, and stored with it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(few / "cache"))
    sizes = {"prompt_size": 4000, "agents": 2, "chunk": 40, "reasoning_effort": "low"}
    with MockLLM([{"text": '{"errors": [], "scores": {}}', "times": "forever"}]) as server:
        flags = ["--approach", "agentic", "--model", "openai:o3", "--base-url", server.base_url]
        for name, value in sizes.items():
            flags += [f"--{name.replace('_', '-')}", str(value)]
        done = invoke(*run_args(few, "sized", *flags))
        assert done.exit_code == 0, done.output
        bodies = [request.body for request in server.requests]
    assert {body["reasoning_effort"] for body in bodies} == {"low"}
    assert max(len(json.dumps(body["messages"])) for body in bodies) < 30_000
    config = json.loads(next((few / "out" / "sized").glob("*/config.json")).read_text())
    assert {name: config[name] for name in sizes} == sizes


def test_an_experiment_whose_model_is_silent(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-G6: figures of traces that `offline` answered for the model are marked, not passed
    off as the model's: on the terminal, in the files and in the log; every request counts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(few / "cache"))
    with MockLLM([{"text": "no", "times": "forever"}]) as server:
        flags = ["--approach", "single_pass", "--model", "openai:scripted"]
        done = invoke(*run_args(few, "silent", *flags, "--base-url", server.base_url))
        sent = len(server.requests)
    assert done.exit_code == 2
    assert "no figures: the model answered for none of 6 traces: single_pass gave no" in done.output
    assert "joint" not in done.output
    (path,) = (few / "out" / "silent").iterdir()
    assert sent == 12  # one request and one repair for each trace
    assert Run(path).totals.llm_calls == sent
    assert len(json.loads((path / "metrics.json").read_text())["fallen_back"]) == 6
    assert "not the model's own answer for 6 traces" in (path / "summary.md").read_text()
    heads, row = invoke("compare", "--output-dir", str(few / "out")).output.splitlines()
    assert row[heads.index("fallback") :].split()[0] == "6"


def test_an_experiment_whose_model_is_not_reachable(
    few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-G6: a model that cannot be reached is exit 2 without figures; failed requests count."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(few / "cache"))
    with MockLLM([{"error": 401, "times": "forever"}]) as server:
        flags = ["--approach", "single_pass", "--model", "openai:scripted"]
        done = invoke(*run_args(few, "refused", *flags, "--base-url", server.base_url))
        sent = len(server.requests)
    assert done.exit_code == 2
    assert "no figures" in done.output
    (path,) = (few / "out" / "refused").iterdir()
    assert Run(path).totals.llm_calls == sent == 6


def test_a_gold_folder_without_these_traces(few: Path) -> None:
    """R-G6: a wrong --gold-dir is an error, not an experiment over 0 traces."""
    empty = few / "empty"
    empty.mkdir()
    args = run_args(few, "lost")
    args[args.index("--gold-dir") + 1] = str(empty)
    done = proctor("trail", *args)
    assert done.returncode == 2
    assert "no annotation of 6 selected traces" in done.stderr
    assert not (few / "out").exists()


@pytest.mark.parametrize("traces", [9, 12])
def test_correlations_carry_n_and_p(tmp_path: Path, traces: int) -> None:
    """R-G5: with n and p, as scipy computes them; none below ten traces or for a constant."""
    gold, predicted = [3, 1, 4, 1, 5, 2, 5, 3, 2, 4, 1, 5], [2, 1, 4, 2, 5, 1, 4, 3, 3, 5, 2, 4]
    for name, values in (("gold", gold), ("predicted", predicted)):
        (tmp_path / name).mkdir()
        for at, value in enumerate(values[:traces]):
            scores = {"overall": value, "security_score": 5}
            text = json.dumps({"errors": [], "scores": [scores]})
            (tmp_path / name / f"trace-{at}.json").write_text(text)
    folders = ("--gold-dir", tmp_path / "gold", "--generated-dir", tmp_path / "predicted")
    shown = proctor("trail", "score", *folders).stdout
    found = json.loads(proctor("trail", "score", *folders, "--json").stdout)["correlations"]
    overall, constant = found["overall"], found["security_score"]
    assert (overall["n"], constant["n"]) == (traces, traces)
    assert constant["coefficient"] is constant["p_value"] is None
    (line,) = [each for each in shown.splitlines() if "r(overall)" in each]
    if traces < 10:
        assert overall["coefficient"] is overall["p_value"] is None
        assert line.split(maxsplit=1)[1] == "–  n = 9: a correlation needs 10 cases, there are 9"
        return
    expected: Any = stats.pearsonr(gold, predicted)
    assert overall["coefficient"] == pytest.approx(expected.statistic)
    # A permutation test with sampled orders, so p agrees only roughly.
    assert overall["p_value"] == pytest.approx(expected.pvalue, abs=0.005)
    assert f"n = {traces}, p " in line


def test_one_call_runs_an_experiment(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-G6: `run_experiment` with the documented defaults; the log names every experiment once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(few / "cache"))
    places: dict[str, Any] = {
        "trail_data_dir": few / "data",
        "gold_dir": few,
        "output_dir": few / "out",
    }
    default = trail.ExperimentConfig(experiment_id="d", **places)
    assert (default.model, default.approach, default.subset, default.prompt_version) == (
        "openai/gpt-5-mini",
        "single_pass",
        "dev18",
        "v2",
    )
    assert (default.split, default.max_workers, default.evidence) == ("GAIA", 5, "strict")
    with MockLLM([{"text": '{"errors": [], "scores": {}}', "times": "forever"}]) as server:
        config = trail.ExperimentConfig(
            experiment_id="one", subset="full", base_url=server.base_url, **places
        )
        done = trail.run_experiment(config)
        again = trail.run_experiment(config)
        assert {request.model for request in server.requests} == {"gpt-5-mini"}
    assert done.metrics["traces"] == 6
    assert done.metrics["wall_seconds"] > 0
    assert len(done.metrics["per_trace"]) == 6
    assert {"gold_errors", "joint_accuracy"} <= done.metrics["per_trace"][0].keys()
    assert done.metrics["caution"] is None  # the model answered by itself
    log = json.loads((few / "out" / "experiment_log.json").read_text())
    assert [row["config"]["experiment_id"] for row in log] == ["one", "one"]
    assert log[0]["run"] != log[1]["run"] == f"one/{again.path.name}"
    assert log[0]["metrics"]["joint_accuracy"] == done.metrics["joint_accuracy"]


def test_an_option_without_effect_is_refused(few: Path) -> None:
    """R-G6: options of models are refused for an approach that calls none."""
    for flags in (["--model", "openai:x"], ["--leads", "offline"], ["--semantic-checks", "off"]):
        done = proctor("trail", *run_args(few, "idle", "--approach", "rules", *flags))
        assert done.returncode == 2
        assert "calls no model" in done.stderr
    flags = ["--approach", "single_pass", "--model", "openai:x", "--chunk", "5"]
    done = proctor("trail", *run_args(few, "idle", *flags))
    assert done.returncode == 2
    assert "chunk has no effect: the approach 'single_pass' investigates no parts" in done.stderr


def test_leads_are_off_unless_requested(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-G4, R-G6: a model is measured by itself; with leads, every output says so."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(few / "cache"))
    with MockLLM([{"text": '{"errors": [], "scores": {}}', "times": "forever"}]) as server:
        flags = ["--approach", "single_pass", "--model", "openai:scripted"]
        flags += ["--base-url", server.base_url]
        alone = invoke(*run_args(few, "alone", *flags))
        assert not any("LEADS" in str(request.messages) for request in server.requests)
        helped = invoke(*run_args(few, "helped", *flags, "--leads", "offline"))
        assert any("LEADS" in str(request.messages) for request in server.requests)
    assert "note:" not in alone.output
    assert "note: the shipped detector was trained" in helped.output
    (path,) = (few / "out" / "helped").iterdir()
    assert "- leads: offline" in (path / "summary.md").read_text()
    assert "leads" in (path / "predictions").glob("*.json").__next__().read_text()
    shown = invoke("compare", "--output-dir", str(few / "out"))
    assert "leads" in shown.output.splitlines()[0]


@pytest.mark.parametrize(
    ("message", "category"),
    [
        ("429 rate limit exceeded", "Rate Limiting"),
        ("401 unauthorized", "Authentication Errors"),
        ("403 forbidden", "Authentication Errors"),
        ("404 not found", "Resource Not Found"),
        ("500 internal server error", "Service Errors"),
        ("the request timed out", "Timeout Issues"),
        ("MemoryError", "Resource Exhaustion"),
    ],
)
@pytest.mark.parametrize("place", ["status", "message", "logs"])
def test_traces_without_times_are_judged(tmp_path: Path, message, category, place) -> None:
    """R-T7, R-G3: a TRAIL span needs neither times nor attributes; its error has its category."""
    span: dict[str, Any] = {"span_id": "s1", "span_name": "call", "status_code": "Unset"}
    if place == "logs":
        span["logs"] = [{"body": message}]
    else:
        span["status_message"] = f"HTTP {message}" if message[0].isdigit() else message
        span["status_code"] = "Error" if place == "status" else "Unset"
    if place == "status":
        span["status_message"] = message
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"trace_id": "t1", "spans": [span]}))
    done = proctor("diagnose", path, "--method", "rules", "--format", "json")
    assert done.returncode == 0, done.stderr
    (finding,) = json.loads(done.stdout)["errors"]
    assert (finding["category"], finding["location"]) == (category, "s1")


def test_five_identical_calls_are_abuse(tmp_path: Path) -> None:
    """R-G3: the same call five times is Resource Abuse, at the last; four times is none."""
    for times in (4, 5):
        spans = [
            {"span_id": f"s{n}", "span_name": "search", "span_attributes": {"q": "x"}}
            for n in range(times)
        ]
        path = tmp_path / f"{times}.json"
        path.write_text(json.dumps({"trace_id": "t1", "spans": spans}))
        done = proctor("diagnose", path, "--method", "rules", "--format", "json")
        found = json.loads(done.stdout)
        expected = [("Resource Abuse", "s4")] if times == 5 else []
        assert [(f["category"], f["location"]) for f in found["errors"]] == expected
        assert found["scores"] or found["notes"]
