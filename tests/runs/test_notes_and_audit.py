"""Annotations, tags and the audit log: beside the results, append-only, safe with many writers."""

import hashlib
import json
import subprocess
import sys

import pytest
from commands import proctor
from run_parts import only_run, write_suite

import proctor as package
from proctor.errors import ProctorError
from proctor.files import append_line, read_lines
from proctor.runs import annotations, audit
from proctor.runs.folder import all_runs, find_run


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two runs of one suite."""
    folder = tmp_path_factory.mktemp("noted")
    suite = write_suite(folder, cases=2)
    for _ in range(2):
        package.run(suite, results=folder / "results", trials=2)
    return folder / "results"


def contents(run):
    """Every file of a run but its notes, by a hash of what it holds."""
    return {
        path.relative_to(run): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name != annotations.FILE
    }


def test_annotations_stand_beside_the_results(results):
    """R-D5: what people say is kept with who and when; the results stay as they are."""
    run = all_runs(results)[0]
    before = contents(run)
    annotations.annotate(run, "the judge was down until noon")
    annotations.annotate(run, "look at this one", trial="case-1/bots:steady/0/1")
    first, second = annotations.annotations_of(run)
    assert (first.text, first.trial) == ("the judge was down until noon", None)
    assert (second.text, second.trial) == ("look at this one", "case-1/bots:steady/0/1")
    assert first.who
    assert first.at < second.at
    assert contents(run) == before


def test_a_secret_in_an_annotation_does_not_reach_the_disk(results):
    """R-D5: annotations are redacted like everything else that is written."""
    run = all_runs(results)[0]
    annotations.annotate(run, "works with --api-key sk-abcdefghijklmnopqrstuvwxyz123456")
    assert b"sk-abcdef" not in (run / annotations.FILE).read_bytes()


def test_trials_that_differ_by_parameters_have_names_of_their_own(tmp_path, monkeypatch):
    """R-D5, R-Q3: a report's name for a trial means that one; one that means several is refused."""
    write_suite(tmp_path, cases=1)
    (tmp_path / "grumps.py").write_text("async def wrong(input): return 'no'")
    monkeypatch.chdir(tmp_path)
    experiment = package.Experiment(
        cases=[{"suite": str(tmp_path / "suite.yaml")}],
        agents=["grumps:wrong"],
        params={"x": [1, 2]},
    )
    run = package.run(experiment, results=tmp_path / "results")
    named = [sample.trial for failure in run.failures for sample in failure.samples]
    assert set(named) == {"case-0[x=1]/grumps:wrong/0/0", "case-0[x=2]/grumps:wrong/0/0"}
    annotations.annotate(run.path, "this one", trial="case-0[x=2]/grumps:wrong/0/0")
    with pytest.raises(ProctorError, match="means 2 trials"):
        annotations.annotate(run.path, "which?", trial="case-0/grumps:wrong/0/0")
    assert [note.trial for note in annotations.annotations_of(run.path)] == [
        "case-0[x=2]/grumps:wrong/0/0"
    ]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda run: annotations.annotate(run, "  "), "empty"),
        (lambda run: annotations.annotate(run, "x" * 10_001), "10,001 characters"),
        (lambda run: annotations.annotate(run, "x", trial="case-1/bots:steady/0/9"), "no trial"),
        (lambda run: annotations.annotate(run.parent, "x"), "not a run folder"),
        (lambda run: annotations.tag(run, "two words"), "cannot be a tag"),
        (lambda run: annotations.tag(run, "-x"), "cannot be a tag"),
        (lambda run: annotations.tag(run, "basline", remove=True), "no tag 'basline'"),
    ],
)
def test_what_cannot_be_noted_is_said(results, make, said):
    """R-D5: an empty note, an unknown trial, no run, no tag: an error, and nothing written."""
    run = all_runs(results)[1]
    before = annotations.notes_of(run)
    with pytest.raises(ProctorError, match=said):
        make(run)
    assert annotations.notes_of(run) == before


def test_tags_name_runs_and_move(results):
    """R-D5: a tag finds its run; put on another it means that one; taken away it is gone."""
    first, second = all_runs(results)
    annotations.tag(first, "baseline")
    assert find_run("baseline", results) == first
    annotations.tag(second, "baseline")
    assert find_run("baseline", results) == second
    assert annotations.runs_tagged(results, "baseline") == [first, second]
    annotations.tag(second, "baseline", remove=True)
    assert annotations.tags_of(second) == ()
    assert find_run("baseline", results) == first
    assert find_run("latest", results) == second
    assert find_run(f"{first.parent.name}/{first.name}", results) == first
    with pytest.raises(ProctorError) as error:
        find_run("basline", results)
    assert "did you mean 'baseline'" in error.value.hint


def test_a_folder_of_the_same_name_does_not_hide_a_tag(results, tmp_path, monkeypatch):
    """R-D5: `baseline` is the tagged run although a folder here is called so too."""
    run = all_runs(results)[0]
    annotations.tag(run, "kept")
    (tmp_path / "kept").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_run("kept", results) == run


def test_a_torn_or_foreign_line_is_named_and_skipped(tmp_path):
    """R-D5: what a crash left of a line takes nothing else with it."""
    path = tmp_path / "log.jsonl"
    note = annotations.Note(at="now", who="me", kind="note", text="whole \ud800")
    append_line(path, note)
    with path.open("ab") as file:
        file.write(b'{"at": "now", "wh')
    append_line(path, note)
    problems = []
    found = list(read_lines(path, annotations.Note, problems))
    assert [each.who for each in found] == ["me", "me"]
    assert len(problems) == 1
    assert "log.jsonl:2" in problems[0]


WRITER = """
import sys
from proctor.runs import audit
for number in range(40):
    outcome = sys.argv[2] + "-" + str(number)
    assert audit.record("test", sys.argv[1], outcome=outcome, git={}) is None
"""


def test_many_writers_lose_nothing(tmp_path):
    """R-D5: five processes write at once; every line is there, whole."""
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), f"w{n}"]) for n in range(5)
    ]
    assert [child.wait(timeout=120) for child in children] == [0] * 5
    problems = []
    found = {entry.outcome for entry in audit.entries(tmp_path, problems)}
    assert found == {f"w{n}-{number}" for n in range(5) for number in range(40)}
    assert not problems


def test_runs_are_on_record(tmp_path):
    """R-D5: who ran what, when, with which commit and on which host; a resumed run as well."""
    suite = write_suite(tmp_path / "work", cases=1)
    git = ["git", "-C", str(tmp_path / "work"), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    root = tmp_path / "kept"
    done = proctor("run", suite, "--results", root, "--quiet", "--trials", 2, "--max-trials", 1)
    assert done.returncode == 2
    run = only_run(root)
    assert proctor("run", "--resume", run, "--quiet", "--max-trials", 5).returncode == 0
    begun, resumed = audit.entries(root)
    assert (begun.command, resumed.command) == ("run", "resume")
    assert (begun.exit_code, resumed.exit_code) == (2, 0)
    assert begun.outcome is not None
    assert begun.commit == resumed.commit == commit.stdout.strip()
    assert begun.host
    assert begun.who
    assert str(suite) in begun.line
    assert begun.run == str(run)


def test_the_log_holds_no_secret():
    """R-D5: keys, passwords and tokens in a command line are redacted wherever they stand."""
    redactor = audit.default_redactor()
    line = audit.command_line(
        ["/usr/bin/proctor", "run", "--token", "hunter2hunter2", "--password=abc123def", "s.yaml"],
        redactor,
    )
    assert "hunter2" not in line
    assert "abc123def" not in line
    assert line.startswith("proctor run --token ")
    assert line.endswith("s.yaml")


def test_a_log_that_cannot_be_written_does_not_undo_the_work(tmp_path):
    """R-D5: the run stands; what is wrong with the log is said."""
    suite = write_suite(tmp_path, cases=1)
    root = tmp_path / "kept"
    (root / audit.FILE).mkdir(parents=True)
    done = proctor("run", suite, "--results", root, "--quiet", "--trials", 1, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["exit_code"] == 0
    assert "audit log was not written" in done.stderr
