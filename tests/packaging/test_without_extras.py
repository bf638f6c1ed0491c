"""The wheel in a clean environment, without any extra, used from outside as a user would."""

import json
import shutil
from pathlib import Path

import pytest

SUITE = """\
version: 1
agent: agent:answer
cases:
  - id: {case}
    input: Hello?
    correctness: {{expected_in_answer: [hello]}}
"""


def started(folder: Path) -> Path:
    """A folder with a suite, an agent and nothing of Proctor's sources near."""
    (folder / "agent.py").write_text(
        "import proctor\n\n@proctor.tool\ndef look(x):\n    return x\n\n"
        "def answer(question):\n    return 'hello' if look(question) else ''\n"
    )
    (folder / "suite.yaml").write_text(SUITE.format(case="greet"))
    return folder


@pytest.mark.slow
def test_what_works_without_extras(use, tmp_path: Path) -> None:
    """R-D1: suites, runs, traces, reports, comparisons and offline diagnosis need no extra."""

    def line(*args: object, code: int = 0) -> str:
        done = use(*args)
        assert done.returncode == code, (args, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout

    assert line("--version").startswith("proctor ")
    line("init")
    line("validate", "suite.yaml")
    assert "3 of 3 cases passed" in line("test", "suite.yaml")
    line("run", "suite.yaml", "--trials", 4, "--quiet")
    line("runs", "tag", "latest", "first")
    line("run", "suite.yaml", "--trials", 4, "--quiet")
    assert "NO REGRESSION" in line("gate", "latest", "--against", "first", "--margin", 0.9)
    line("compare", "first", "latest")
    assert "100" in line("leaderboard", "latest")
    assert "12" in line("sql", "select count(*) from trials where run_tags = ['first']")
    line("report", "latest", "--html", "report.html")
    assert "<!doctype html>" in (tmp_path / "report.html").read_text("utf-8")[:200].lower()
    line("report", "latest", "--markdown")
    line("runs", "share", "latest", "-o", "out/run.zip")
    line("runs", "export", "latest", "-o", "trials.parquet")
    line("runs", "import", "trials.parquet", "--name", "again")
    line("scenario", "check", "mutualism.competition")
    doctor = json.loads(line("doctor", "--json"))
    absent = {f["name"] for f in doctor["findings"] if f["area"] == "extras" and f["todo"]}
    assert absent == {
        *(
            "litellm",
            "local-llm",
            "charts",
            "frames",
            "worlds",
            "server",
            "postgres",
            "gateway",
            "acp",
            "mcp",
            "oidc",
        ),
        *("sweep", "cloud", "notify", "schedule", "ray"),
    }


@pytest.mark.slow
def test_traces_and_diagnosis(use, clean: Path, tmp_path: Path) -> None:
    """R-D1 R-G3: a trace is shown, queried, converted and diagnosed; the learned model is there."""
    found = use(
        "-c",
        "from importlib.resources import files; print(files('proctor.data')/'support_agent.json')",
        python=True,
    )
    trace = found.stdout.strip()
    assert use("trace", "show", trace).returncode == 0
    queried = use("trace", "query", trace, "{kind: tool}")
    assert queried.returncode == 0, queried.stderr
    converted = use("trace", "convert", trace, "-o", "t.jsonl", "--to", "jsonl")
    assert converted.returncode in (0, 2), converted.stderr
    done = use("diagnose", trace, "--format", "json")
    assert done.returncode in (0, 1), done.stderr
    assert "learned" in done.stdout or "offline" in done.stdout


EXTRAS = {
    "litellm": ("test", "litellm.yaml"),
    "local-llm": ("demo", "--model", "local"),
    "charts": ("report", "latest", "--charts", "charts"),
    "frames": None,
    "worlds": ("run", "lake.crossing", "--agent", "random"),
    "server": ("serve",),
    "postgres": ("store", "stats", "--store", "postgresql://nobody@127.0.0.1:9/x"),
    "sweep": ("run", "sweep.yaml", "--dry-run"),
    "cloud": ("runs", "sync", "latest", "s3://bucket/runs"),
    "notify": ("run", "suite.yaml", "--notify", "json://127.0.0.1:9"),
    "schedule": ("schedule", "add", "suite.yaml", "--cron", "0 2 * * *"),
    "ray": ("run", "suite.yaml", "--executor", "ray"),
}
"""Extra → what needs it; None is asked in Python."""


@pytest.fixture(scope="module")
def place(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands are about."""
    folder = started(tmp_path_factory.mktemp("place"))
    example = root / "examples" / "ecosystem"
    shutil.copytree(example / "catalog", folder / "catalog")
    (folder / "sweep.yaml").write_text((example / "experiments/sweep.yaml").read_text("utf-8"))
    (folder / "keeper.py").write_text((example / "keeper.py").read_text("utf-8"))
    (folder / "proctor.yaml").write_text((example / "proctor.yaml").read_text("utf-8"))
    chat = SUITE.format(case="greet").replace(
        "agent: agent:answer", "agent: {kind: chat, model: litellm/gpt-5}"
    )
    (folder / "litellm.yaml").write_text(chat)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_that_is_absent_is_one_line(use, place: Path, extra: str) -> None:
    """R-D1: what is missing and the line that brings it; no traceback, and never exit code 1."""
    if not (place / "results").exists():
        assert use("run", "suite.yaml", "--quiet", "--trials", "1", cwd=place).returncode == 0
    asked = EXTRAS[extra]
    if asked is None:
        code = "import proctor.results as r; r.query(results='results').to_pandas()"
        done = use("-c", code, cwd=place, python=True)
        told, hint = done.stderr.strip().splitlines()[-2:]
        assert "pandas is not installed" in told
        assert "ProctorError" in told
        assert hint == "hint: pip install 'proctor[frames]'"
        return
    done = use(*asked, cwd=place, OPENAI_API_KEY="sk-test-4242424242424242")
    whole = done.stdout + done.stderr
    assert done.returncode == 2, whole
    assert "Traceback" not in whole
    named = [line for line in whole.splitlines() if "pip install" in line]
    assert any(f"proctor[{extra}]" in line or extra in line for line in named), whole
    assert len(done.stderr.strip().splitlines()) <= 6, done.stderr
