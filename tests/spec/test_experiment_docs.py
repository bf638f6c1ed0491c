"""The pages about experiments say what the code does."""

import re
from pathlib import Path

import pytest

from proctor import Experiment
from proctor.runs.run import Run
from proctor.spec.experiment import OUTPUT_TOKENS, ExperimentLimits
from proctor.spec.load import load_experiments
from proctor.trials.resolve_experiment import prepare_experiment

PAGES = ("docs/reference/experiments.md", "docs/how-to/run-an-experiment.md")


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(
        rf"^```{kind}[^\n]*\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_examples_can_be_copied(root: Path, tmp_path: Path) -> None:
    """R-S3: every YAML and Python file of the pages is planned."""
    (tmp_path / "support.yaml").write_text("cases: [{id: a, input: x, tags: [slow]}]\nagent: m:f\n")
    planned = 0
    for page in PAGES:
        for kind, suffix in (("yaml", "yaml"), ("python", "py")):
            for number, text in enumerate(blocks(root / page, kind)):
                if kind == "python" and "def experiments" not in text:
                    continue
                path = tmp_path / f"example_{planned}_{number}.{suffix}"
                path.write_text(text)
                found = load_experiments(path)
                # Its parameters are those of scenarios, which a suite's cases do not have.
                planned += sum(bool(prepare_experiment(each).plan.trials) for each in found)
    assert planned == 1 + 2 + 3 + 2


def test_python_in_the_guide_runs(root: Path) -> None:
    """R-S3: the calls of the guide work as they stand."""
    (text,) = blocks(root / "docs/how-to/run-an-experiment.md", "python")
    names: dict[str, object] = {}
    exec(compile(text, "guide", "exec"), names)
    assert isinstance(names["run"], Run)
    assert names["run"].totals.trials == 4
    assert isinstance(names["solved"], Run)
    assert len({trial.case for trial in names["solved"].trials}) >= 6


def test_every_key_is_in_the_reference(root: Path) -> None:
    """R-S3: no key of an experiment goes without a line."""
    page = (root / PAGES[0]).read_text("utf-8")
    keys = [*Experiment.model_fields, *ExperimentLimits.model_fields]
    assert [key for key in keys if f"`{key}`" not in page] == []
    assert [token for token in OUTPUT_TOKENS if f"{{{token}}}" not in page] == []
