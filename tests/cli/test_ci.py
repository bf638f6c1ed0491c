"""`proctor ci` and the action: run, gate against main, one comment; against a local GitHub API."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from commands import proctor
from github_parts import READS, GitHub, Job

BIN = Path(sys.executable).parent

AGENT = """
import random

def answer(input: str, seed: int) -> str:
    return input if random.Random(seed).random() < {rate} else "no <b>idea</b> @everyone"
"""

SUITE = """
version: 1
agent: bot:answer
cases:
  - {id: one, input: alpha, correctness: {expected_in_answer: [alpha]}}
  - {id: two, input: beta, correctness: {expected_in_answer: [beta]}}
"""

MARKER = "<!-- proctor-ci: suite -->"


@pytest.fixture
def github():
    server = GitHub()
    yield server
    server.close()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(SUITE)
    agent(tmp_path, 1.0)
    return tmp_path


def agent(work: Path, rate: float) -> None:
    # Bytecode is matched by size and whole seconds: two agents of one second would share it.
    shutil.rmtree(work / "__pycache__", ignore_errors=True)
    (work / "bot.py").write_text(AGENT.format(rate=rate))


@pytest.mark.slow
def test_the_action_from_the_first_push_to_the_fifth(
    github: GitHub, work: Path, root: Path
) -> None:
    """R-N13: main's run is the reference; a good change, a regression and an inconclusive one get
    their verdicts in one comment over five pushes; a fork falls back to the summary."""
    number = 100

    def push(rate: float, *, trials: int = 40, inputs: dict | None = None, **job):
        nonlocal number
        number += 1
        agent(work, rate)
        one = Job(github, work, number=number, **job)
        given = {"suite": "suite.yaml", "trials": str(trials), "margin": "0.15", "install": "false"}
        return one, one.run(root / "action.yml", BIN, **given, **(inputs or {}))

    # The first pull request: main has no run yet, so the run itself is judged.
    job, done = push(1.0)
    assert done.code == 0, done.printed
    assert done.outputs["verdict"] == "PASS"
    assert "main has no run yet" in job.summary
    assert len(github.comments) == 1

    _, done = push(1.0, pull_request=False)
    assert done.code == 0, done.printed
    assert [a["workflow_run"]["head_branch"] for a in github.artifacts] == ["main", "change"]
    assert Path(done.outputs["report"]).read_text("utf-8").startswith("<!doctype html>")

    # A newer run of a fork's branch `main` is not the reference: it would decide the verdict.
    github.add_artifact("proctor-suite", Path(done.outputs["run"]), "main", 1, head_repository_id=2)
    github.archives[3] = b"no archive"

    job, done = push(1.0)
    assert (done.code, done.outputs["verdict"]) == (0, "NO REGRESSION"), done.printed
    assert done.annotations == [("notice", "NO REGRESSION")]

    job, done = push(0.4)
    assert (done.code, done.outputs["verdict"]) == (1, "REGRESSION"), done.printed
    levels = [level for level, _ in done.annotations]
    assert levels == ["error", "warning", "warning"]
    assert "file=suite.yaml,line=5" in done.printed
    (comment,) = github.comments
    assert done.outputs["comment-url"] == comment["html_url"]
    body = comment["body"]
    assert body.startswith(f"{MARKER}\n## ❌ REGRESSION: suite")
    assert "| case | main 0000000000 | this change | change |" in body
    assert "| one | 40/40 |" in body
    assert "| cost |" in body
    assert f"https://github.com/acme/shop/actions/runs/{number}#artifacts" in body
    assert "<b>" not in body
    assert "@everyone" not in body
    assert body.removeprefix(f"{MARKER}\n").strip() in job.summary

    # Too few trials to tell: it passes unless the team decides otherwise.
    job, done = push(1.0, trials=3)
    assert (done.code, done.outputs["verdict"]) == (0, "INCONCLUSIVE"), done.printed
    assert done.annotations[0] == ("warning", "INCONCLUSIVE")
    _, done = push(1.0, trials=3, inputs={"inconclusive": "fail"})
    assert done.code == 1

    # Five pushes to the pull request, one comment, which has the last verdict.
    assert number == 106
    assert len(github.comments) == 1
    assert "INCONCLUSIVE" in github.comments[0]["body"]

    # The job of a fork may read and not write: the verdict is the same, in the summary.
    before = len(github.requests)
    job, done = push(0.4, fork=True)
    assert (done.code, done.outputs["verdict"]) == (1, "REGRESSION"), done.printed
    assert "❌ REGRESSION" in job.summary
    assert "the job of a fork may not comment" in job.summary.replace("\\", "")
    assert {method for method, _ in github.requests[before:]} == {"GET"}
    assert "INCONCLUSIVE" in github.comments[0]["body"]
    assert github.leaked == []


def ci(job: Job, *args: object, **env: str):
    return proctor(
        *("ci", "suite.yaml", "--trials", 3, *args),
        cwd=job.folder,
        env={**job.environ(BIN), "GITHUB_TOKEN": job.token, **env},
    )


def test_what_github_refuses_is_no_failure_of_the_job(github: GitHub, work: Path) -> None:
    """R-N13: a read-only token, other people's comments and transient errors: same verdict."""
    job = Job(github, work, number=1, token=READS)
    done = ci(job)
    assert done.returncode == 0, done.stderr
    assert "Resource not accessible by integration" in done.stdout
    assert "PASS: suite" in job.summary
    # A page of comments, and one that pretends to be ours.
    for at in range(120):
        github.add_comment(f"{MARKER}\nmine" if at == 7 else "hello", "somebody")
    github.failures = [503, 502]
    done = ci(Job(github, work, number=2))
    assert done.returncode == 0, done.stderr
    assert len(github.comments) == 121
    assert github.comments[7]["body"] == f"{MARKER}\nmine"
    assert MARKER in github.comments[120]["body"]
    done = ci(Job(github, work, number=3), "--no-comment", "-o", "out/comment.md")
    assert len(github.comments) == 121
    assert (work / "out/comment.md").read_text("utf-8").startswith("## ✅ PASS: suite")


def test_a_reference_that_cannot_be_read_is_not_a_pass(github: GitHub, work: Path) -> None:
    """R-N13: the gate was not judged (exit code 2), and the message names the permission."""
    done = ci(Job(github, work, number=1, token="wrong"))
    assert done.returncode == 2, done.stdout
    assert "the run of main could not be fetched: " in done.stderr
    assert "actions: read" in done.stderr
    (work / "empty").mkdir()
    (work / "empty" / "a.txt").write_text("no run")
    github.add_artifact("proctor-suite", work / "empty", "main", 1)
    done = ci(Job(github, work, number=2))
    assert done.returncode == 2, done.stdout
    assert "there is no run in the artifact" in done.stderr


def test_gitlab_and_elsewhere(github: GitHub, work: Path) -> None:
    """R-N13: on GitLab the comment is a note; anywhere, it is a Markdown file."""
    notes = []

    def answer(method, target, token, body):
        path = target.partition("?")[0]
        if path == "/user":
            return 200, {"id": 5}, {}
        if path == "/projects/9/merge_requests/3/notes" and method == "GET":
            return 200, notes, {}
        if method == "POST":
            notes.append({"id": 31, "body": body["body"], "author": {"id": 5}})
            return 201, notes[-1], {}
        assert (method, path) == ("PUT", "/projects/9/merge_requests/3/notes/31")
        notes[0]["body"] = body["body"]
        return 200, notes[0], {}

    github.answer = answer
    env = {
        "GITLAB_CI": "true",
        "CI_API_V4_URL": github.url,
        "CI_PROJECT_ID": "9",
        "CI_MERGE_REQUEST_IID": "3",
        "CI_JOB_URL": "https://gitlab.com/a/b/-/jobs/1",
    }
    plain = {k: v for k, v in Job(github, work, number=1).environ(BIN).items() if "GITHUB" not in k}
    args = ("ci", "suite.yaml", "--trials", 2)
    done = proctor(*args, cwd=work, env={**plain, **env})
    assert done.returncode == 0, done.stderr
    assert "no GITLAB_TOKEN" in done.stdout
    assert proctor("runs", "tag", "latest", "main", cwd=work, env=plain).returncode == 0
    for _ in range(2):
        done = proctor(
            *args, "--against", "main", cwd=work, env={**plain, **env, "GITLAB_TOKEN": "x"}
        )
        assert done.returncode == 0, done.stderr
    assert len(notes) == 1
    assert "INCONCLUSIVE: suite" in notes[0]["body"]
    assert "https://gitlab.com/a/b/-/jobs/1" in notes[0]["body"]


def test_run_and_gate_report_to_actions(github: GitHub, work: Path) -> None:
    """R-N13: in a job, `run` annotates each case once with its counts, `gate` its verdict; both
    write the step summary, and JSON stays one document."""
    job = Job(github, work, number=1)
    env = job.environ(BIN)
    agent(work, 1.0)
    assert proctor("run", "suite.yaml", "--trials", 30, cwd=work, env=env).returncode == 0
    proctor("runs", "tag", "latest", "main", cwd=work, env=env)
    assert "PASS: suite" in job.summary
    agent(work, 0.5)
    done = proctor("run", "suite.yaml", "--trials", 30, "--json", cwd=work, env=env)
    assert json.loads(done.stdout)
    lines = [line for line in done.stderr.splitlines() if line.startswith("::")]
    assert len(lines) == 2
    assert lines[0].startswith("::error file=suite.yaml,line=5,col=5,title=one%3A")
    assert "of 30 judged trials passed%0Aexpected_in_answer failed" in lines[0]
    done = proctor("gate", "latest", "--against", "main", cwd=work, env=env)
    assert done.returncode == 1
    assert "\n::error title=REGRESSION::" in done.stdout
    assert job.summary.count("## ") == 3 + job.summary.count("### ")
    assert "## ❌ REGRESSION" in job.summary
