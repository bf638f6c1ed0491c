"""The page about research says what the code does, and its examples can be copied."""

import re
import shutil
from pathlib import Path

import pytest

from proctor.runs.run import Run
from proctor.spec.experiment import (
    Ablation,
    Adaptive,
    Curriculum,
    DifficultyLevel,
    Promotion,
    Scale,
    Sweep,
)
from proctor.spec.load import load_experiments
from proctor.trials.resolve_experiment import prepare_experiment

PAGE = "docs/how-to/research.md"


@pytest.fixture
def ecosystem(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy = shutil.copytree(
        root / "examples/ecosystem",
        tmp_path / "ecosystem",
        ignore=shutil.ignore_patterns("results", "__pycache__"),
    )
    monkeypatch.chdir(copy)
    return copy


def blocks(root: Path, kind: str) -> list[str]:
    text = (root / PAGE).read_text("utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_every_example_is_planned(root: Path, ecosystem: Path) -> None:
    """R-Q8: the YAML of the page and of the example folder is what the code takes."""
    pytest.importorskip("optuna")
    written = list(ecosystem.glob("experiments/*.yaml"))
    for number, text in enumerate(blocks(root, "yaml")):
        written.append(ecosystem / f"experiments/page_{number}.yaml")
        written[-1].write_text(text)
    kinds: set[str] = set()
    for path in written:
        for experiment in load_experiments(path):
            ready = prepare_experiment(experiment)
            assert ready.plan.trials
            if ready.unfolding is not None:
                kinds.add(ready.unfolding.kind)
    assert kinds == {"curriculum", "adaptive", "ablation", "sweep"}


def test_the_python_of_the_page_runs(root: Path, ecosystem: Path) -> None:
    """R-Q8: the same object from Python."""
    (text,) = blocks(root, "python")
    names: dict[str, object] = {}
    exec(compile(text, "page", "exec"), names)
    run = names["run"]
    assert isinstance(run, Run)
    assert run.path.is_relative_to(ecosystem)
    assert run.totals.trials <= 12


def test_every_key_is_on_the_page(root: Path) -> None:
    """R-Q8: no option of research goes without a word."""
    page = (root / PAGE).read_text("utf-8")
    models = (Curriculum, Promotion, DifficultyLevel, Adaptive, Scale, Ablation, Sweep)
    keys = {key for model in models for key in model.model_fields}
    assert [key for key in sorted(keys) if not re.search(rf"\b{key}\b", page)] == []
