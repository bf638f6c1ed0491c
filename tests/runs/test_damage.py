"""Run folders that were damaged, or made to harm their readers, through the command line."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import msgspec
import pytest
import yaml
import zstandard
from commands import proctor
from result_parts import trial, write_run

from proctor import api
from proctor.files import add_checksum, checksum_ok, load_yaml
from proctor.runs.folder import RunFolder
from proctor.runs.journal import Journal, JournalIndex, read_journal
from proctor.runs.segments import SegmentWriter
from proctor.sanitize import json_bytes
from proctor.trace import Trace

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_no_damage_changes_a_verdict_silently() -> None:
    """R-R9: a sample of `benchmarks/faults.py`: random bytes, deleted, repeated, swapped lines."""
    done = subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "faults.py", "--only", "damage"),
            *("--damages", "50", "--deletions", "25"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^ +0 failed$", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_a_short_campaign_of_faults_finds_nothing() -> None:
    """R-R9, R-R11: kills, a full disk, clock jumps, hostile agents, files and clients."""
    faults = ["kills", "disk", "clocks", "agents", "files", "clients"]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "faults.py", "--quick", "--only", *faults],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried = re.findall(r"^ +[1-9]\d* ([a-z]+)", done.stdout, re.MULTILINE)
    assert set(tried) == set(faults), done.stdout


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunFolder, RunFolder]:
    """Two equal runs, in the results folder of the working folder."""
    monkeypatch.chdir(tmp_path)
    trials = [trial(case, index=i) for case in ("greet", "add") for i in range(20)]
    first, second = (write_run(tmp_path / "results", trials, name=n) for n in ("one", "two"))
    return first, second


def edit(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


READERS = {
    "gate": ("gate", "{run}", "--against", "{other}"),
    "report": ("report", "{run}"),
    "html": ("report", "{run}", "--html", "page.html"),
    "compare": ("compare", "{other}", "{run}"),
    "results": ("results",),
    "sql": ("sql", "select count(*) from trials"),
    "leaderboard": ("leaderboard", "{run}"),
    "share": ("runs", "share", "{run}"),
    "export": ("runs", "export", "{run}", "-o", "out.csv"),
    "diagnose": ("diagnose", "{run}"),
    "verify": ("runs", "verify", "{run}"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_changed_value_is_reported_by_every_reader(
    runs: tuple[RunFolder, RunFolder], reader: str
) -> None:
    """R-R9, R-D2: a line that still is JSON, but not as it was written, is never counted."""
    first, second = runs
    edit(second.journal_path, b'"status":"passed"', b'"status":"failed"')
    words = [word.format(run=second.path, other=first.path) for word in READERS[reader]]
    done = proctor(*words)
    assert "not as it was written" in done.stdout + done.stderr, done
    if reader in ("gate", "verify"):
        assert done.returncode == 2


@pytest.mark.parametrize(
    "name", ["results.parquet", "results.json", "summary.csv", "facts.json", "checksums.json"]
)
def test_a_changed_file_blocks_a_green_gate(runs: tuple[RunFolder, RunFolder], name: str) -> None:
    """R-R9, R-N7: every derived file has a checksum; `run --resume` would write it again."""
    first, second = runs
    assert proctor("gate", str(second.path), "--against", str(first.path)).returncode == 0
    path = second.path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done = proctor("gate", str(second.path), "--against", str(first.path))
    assert (done.returncode, "cannot be read" in done.stdout + done.stderr) == (2, True), done
    listed = proctor("runs", "verify", str(first.path), str(second.path))
    assert listed.returncode == 2
    assert f"{first.path}: verified" in listed.stdout
    assert f"{path}: damaged" in listed.stdout
    assert "writes it again" in listed.stdout


def test_lines_are_numbered(tmp_path: Path) -> None:
    """R-R9: deleted, swapped and repeated lines are found, and a resumed journal goes on."""
    folder = write_run(tmp_path, [trial(index=i) for i in range(6)], name="six")
    lines = folder.journal_path.read_bytes().splitlines(keepends=True)
    for changed, damaged, trials in (
        (lines[:2] + lines[3:], 1, 5),
        ([*lines[:2], lines[1], *lines[2:]], 1, 6),
        ([lines[1], lines[0], *lines[2:]], 2, 5),
    ):
        folder.journal_path.write_bytes(b"".join(changed))
        index = JournalIndex(folder.journal_path)
        assert (index.reader.damaged, len(index.lines)) == (damaged, trials)
    folder.journal_path.write_bytes(b"".join(lines[:4]))
    journal = Journal(folder.journal_path)
    journal.append(trial(index=4))
    journal.close()
    problems: list[str] = []
    assert len(list(read_journal(folder.journal_path, problems))) == 5
    assert not problems


def test_a_missing_end_is_found_by_the_checksums(runs: tuple[RunFolder, RunFolder]) -> None:
    """R-R9: a journal without its last lines looks like one that was never longer."""
    first, second = runs
    lines = second.journal_path.read_bytes().splitlines(keepends=True)
    second.journal_path.write_bytes(b"".join(lines[:-3]))
    done = proctor("gate", str(second.path), "--against", str(first.path))
    assert done.returncode == 2
    assert "3 of its lines are missing at its end" in done.stderr


def test_a_damaged_spec_is_not_resumed(runs: tuple[RunFolder, RunFolder]) -> None:
    """R-R9: what would run is not what ran, so --resume and rerun refuse."""
    edit(runs[1].spec_path, b"threshold: 0.8", b"threshold: 0.1")
    for words in (["run", "--resume", str(runs[1].path)], ["rerun", str(runs[1].path)]):
        done = proctor(*words)
        assert done.returncode == 2
        assert "cannot read the spec: it is not as it was written" in done.stderr


def test_one_corrupt_frame_costs_one_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-T7, R-D4, R-N7: `trace show`, `diagnose` and the page use the other traces, and name it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bots.py").write_text("def steady(question):\n    return 'yes'\n")
    (tmp_path / "suite.yaml").write_text(
        "version: 1\nagent: bots:steady\ncases:\n"
        "  - {id: a, input: q, correctness: {expected_in_answer: ['yes']}}\n"
    )
    run = api.run("suite.yaml", trials=3, results="results").path
    segment = run / "traces" / "000001.jsonl.zst"
    second = next(trial for trial in RunFolder(run).trials() if trial.index == 1)
    assert second.trace is not None
    content = bytearray(segment.read_bytes())
    content[second.trace.offset + second.trace.length // 2] ^= 0x55
    segment.write_bytes(content)
    shown = proctor("trace", "show", str(run))
    assert "a trace cannot be read" in shown.stderr
    assert shown.stdout
    diagnosed = proctor("diagnose", str(run), "--format", "json")
    assert diagnosed.returncode == 0
    document = json.loads(diagnosed.stdout)
    assert (len(document["trials"]), len(document["unreadable"])) == (2, 1)
    assert "1 trace skipped" in diagnosed.stderr
    page = proctor("report", str(run), "--html", "page.html")
    assert "cannot read the trace" in page.stderr
    shared = proctor("runs", "share", str(run))
    assert "not in it: the trace of a/bots:steady/0/1" in shared.stdout


def test_older_runs_are_not_verified(tmp_path: Path) -> None:
    """R-R9: a run without checksums is read as before, and `verify` says so."""
    old = tmp_path / "results"
    shutil.copytree(Path(__file__).parents[1] / "compat" / "project" / "results", old)
    done = proctor("runs", "verify", str(old / "shop" / "2026-11-17_001"))
    assert done.returncode == 0
    assert "not verified (an older version wrote it without checksums)" in done.stdout


# -- files that harm their readers -------------------------------------------------------------

ALIASES = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 40)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ALIASES, "more than 5,000,000 values"),
        ("a: " + "[" * 200_000, "nested more than 100 deep"),
    ],
)
def test_a_hostile_spec_hides_no_other_run(
    runs: tuple[RunFolder, RunFolder], text: str, reason: str
) -> None:
    """R-D2, R-N7: it is skipped by name, in megabytes of memory; the run beside it is read."""
    bad = runs[1].path
    (bad / "_spec_.yaml").write_text(f"format: 1\n{text}")
    limit = 2 << 30  # the aliases alone would take more
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}));"
        "from proctor.cli.main import main; main(['results', '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{bad.parent.name}/{bad.name}: skipped" in done.stderr
    assert reason in done.stderr
    assert [group["key"]["run"][:3] for group in json.loads(done.stdout)["groups"]] == ["one"]


@pytest.mark.parametrize("part", ["cells", "cases", "suite", "trials"])
def test_a_spec_that_lacks_a_part_is_one_line(runs: tuple[RunFolder, RunFolder], part: str) -> None:
    """R-R9: a spec of an older version has no checksum, so each part is looked at."""
    first = runs[0]
    spec = yaml.safe_load(first.spec_path.read_text())
    spec["format"] = 1
    if part == "cases":
        spec["suite"]["cases"] = [-1]
    elif part == "trials":
        del spec["cells"][0]["trials"]
    else:
        del spec[part]
    first.spec_path.write_text(yaml.safe_dump(spec))
    for command in (["report", first.path], ["compare", first.path, runs[1].path]):
        done = proctor(*command)
        assert done.returncode == 2, done.stdout
        assert "cannot read the spec: " in done.stderr
        assert part in done.stderr


def test_yaml_means_the_same_as_with_pyyaml() -> None:
    """R-S1: the bounded loader differs from PyYAML's only in what it refuses."""
    for text in (
        "a: &x {q: 1}\nb: {<<: *x, q: 2}\nc: [*x]\n",
        "- 0x1f\n- 1_000\n- yes\n- ~\n- 2026-11-17\n- '3'\n- !!int '3'\n- .inf\n- 1e3\n",
        "text: |\n  one\n  two\n'': {}\n",
        "",
    ):
        assert load_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize("ref", [[1, 0, 2**40], [1, 2**62, 5], [1, -5, 10], [9, 0, 5]])
def test_a_hostile_reference_is_refused(tmp_path: Path, ref: list[int]) -> None:
    """R-T7, R-N7: a reference to a terabyte is an unreadable trace, not a MemoryError."""
    folder = write_run(tmp_path, [trial(index=i) for i in range(2)], name="run")
    writer = SegmentWriter(folder.traces_path)
    writer.append(json_bytes(Trace(trace_id="t")))
    writer.close()
    line = folder.journal_path.read_bytes().splitlines()[0]
    body = msgspec.json.decode(line)
    del body["crc"], body["seq"]
    body["trace"] = ref
    encoded = msgspec.json.encode({**body, "seq": 1})
    rest = folder.journal_path.read_bytes().splitlines(keepends=True)[1:]
    folder.journal_path.write_bytes(b"".join([add_checksum(encoded), b"\n", *rest]))
    done = proctor("diagnose", str(folder.path))
    assert "1 trace skipped" in done.stderr
    assert "cannot read the trace at byte" in done.stderr


def test_a_frame_that_claims_100_gigabytes_is_refused(tmp_path: Path) -> None:
    """R-T7: the claim alone must not allocate."""
    frame = bytearray(zstandard.ZstdCompressor().compress(b"x" * 70_000))
    # Magic, descriptor for a content size of 8 bytes without a window, then the size.
    hostile = bytes(frame[:4]) + b"\xe0" + (100 << 30).to_bytes(8, "little") + bytes(frame[9:])
    folder = write_run(tmp_path, [trial(index=0)], name="run")
    folder.traces_path.mkdir()
    (folder.traces_path / "000001.jsonl.zst").write_bytes(hostile)
    body = msgspec.json.decode(folder.journal_path.read_bytes().splitlines()[0])
    del body["crc"], body["seq"]
    body["trace"] = [1, 0, len(hostile), zlib.crc32(hostile)]
    line = add_checksum(msgspec.json.encode({**body, "seq": 1}))
    assert checksum_ok(line)
    folder.journal_path.write_bytes(line + b"\n")
    done = proctor("diagnose", str(folder.path))
    assert "it claims 107,374,182,400 bytes" in done.stderr


def test_an_archive_of_gigabytes_is_not_imported(tmp_path: Path) -> None:
    """R-D6: an Inspect log is bounded in total and per sample, before anything is unpacked."""
    log = tmp_path / "log.eval"
    with zipfile.ZipFile(log, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", '{"eval": {"task": "t", "model": "m"}}')
        for number in range(9):
            with archive.open(f"samples/{number}.json", "w") as sample:
                for _ in range(250):
                    sample.write(b" " * (1 << 20))
    done = proctor("runs", "import", str(log), "--results", str(tmp_path / "results"))
    assert done.returncode == 2
    assert "unpacks to more than 2,147,483,648 bytes" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
@pytest.mark.parametrize("name", ["_spec_.yaml", "checksums.json", "trials.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_file_that_never_ends_is_damage(
    runs: tuple[RunFolder, RunFolder], name: str, kind: str
) -> None:
    """R-R9, R-R11: a pipe in place of a file holds up no command and hides no other run."""
    first = runs[0].path
    path = first / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    done = proctor("runs", "verify", first, timeout=120)
    assert done.returncode == 2, done.stdout
    assert path.name in done.stdout + done.stderr
    for command in (["report", first], ["compare", first, runs[1].path], ["results"]):
        done = proctor(*command, timeout=120)
        assert done.returncode in (0, 2), done.stderr
        assert "this is a bug" not in done.stderr
    assert runs[1].path.name in done.stdout


def test_deep_json_is_a_dropped_line(runs: tuple[RunFolder, RunFolder]) -> None:
    """R-D2: nesting beyond the stack ends one line, not the command."""
    with runs[1].journal_path.open("ab") as file:
        file.write(b'{"case":' + b"[" * 100_000 + b"\n")
    done = proctor("results")
    assert done.returncode == 0
    assert "dropped a line" in done.stderr
