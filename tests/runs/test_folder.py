"""The run folder: journal, trace segments, lock, names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.checks.base import CheckResult, CheckStatus, Layer
from proctor.errors import ProctorError
from proctor.runs.folder import FORMAT, RunFolder, RunFolderError, safe_name
from proctor.runs.journal import Journal, Sync, read_journal
from proctor.runs.run import Run
from proctor.runs.segments import SegmentError, SegmentWriter, read_trace, trim
from proctor.runs.trial import Trial, TrialError, TrialStatus
from proctor.sanitize import json_bytes
from proctor.seeds import derive_seed
from proctor.trace import Span, Trace


def a_trial(index: int = 0, **changes: object) -> Trial:
    fields = {
        "case": "c",
        "agent": "a",
        "index": index,
        "seed": index,
        "status": TrialStatus.PASSED,
        "score": 1.0,
        "answer": "ünï\nline",
        "checks": (
            CheckResult(
                id="x", check="x", layer=Layer.PATH, status=CheckStatus.WARN, reason="r", score=0.5
            ),
        ),
    }
    return Trial(**{**fields, **changes})  # type: ignore[arg-type]


def a_trace(text: str = "hello") -> Trace:
    return Trace(trace_id="t", spans=[Span(span_id="s", trace_id="t", name=text)], query=text)


@pytest.mark.parametrize("sync", list(Sync))
def test_a_journal_reads_back_what_was_written(tmp_path: Path, sync: Sync) -> None:
    """R-D1: one line per finished trial, lossless, under every sync policy."""
    path = tmp_path / "trials.jsonl"
    trials = [a_trial(i, error=TrialError("E", "m")) for i in range(3)]
    journal = Journal(path, sync=sync)
    for trial in trials:
        journal.append(trial)
    journal.close()
    assert list(read_journal(path)) == trials
    assert path.read_bytes().count(b"\n") == 3


def test_a_torn_last_line_is_dropped_and_said_so(tmp_path: Path) -> None:
    """R-R9: a crash inside a write costs that line only, and the next line is whole."""
    path = tmp_path / "trials.jsonl"
    journal = Journal(path)
    journal.append(a_trial(0))
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    problems: list[str] = []
    assert [t.index for t in read_journal(path, problems)] == [0]
    assert len(problems) == 1
    assert "trials.jsonl:2: dropped a line" in problems[0]

    again = Journal(path)
    again.append(a_trial(1))
    again.close()
    assert [t.index for t in read_journal(path)] == [0, 1]


@given(st.binary(max_size=200))
def test_rubbish_lines_never_hide_good_ones(junk: bytes) -> None:
    """R-R9: whatever stands in a line, the trials around it are read."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trials.jsonl"
        journal = Journal(path)
        journal.append(a_trial(7))
        journal.close()
        good = path.read_bytes()
        path.write_bytes(good + junk.replace(b"\n", b" ") + b"\n" + good)
        assert [t.index for t in read_journal(path)][:1] == [7]
        assert [t.index for t in read_journal(path)][-1:] == [7]


def test_traces_read_back_by_reference(tmp_path: Path) -> None:
    """R-D1: each trace is a zstd frame of its own; `zstdcat` order is the order of writing."""
    import zstandard

    writer = SegmentWriter(tmp_path, segment_bytes=200)
    refs = [writer.append(json_bytes(a_trace(f"trace {i}" * 20))) for i in range(10)]
    writer.close()
    assert {ref.segment for ref in refs} != {1}, "small segments rotate"
    assert [read_trace(tmp_path, ref).query for ref in refs] == [
        f"trace {i}" * 20 for i in range(10)
    ]
    first = (tmp_path / "000001.jsonl.zst").read_bytes()
    reader = zstandard.ZstdDecompressor().stream_reader(first, read_across_frames=True)
    assert reader.read().count(b"\n") == sum(ref.segment == 1 for ref in refs)


def test_what_a_crash_left_behind_is_cut(tmp_path: Path) -> None:
    """R-R9: bytes that no trial refers to go; referred frames stay readable."""
    writer = SegmentWriter(tmp_path)
    kept = writer.append(json_bytes(a_trace("kept")))
    writer.append(json_bytes(a_trace("never journalled")))
    writer.close()
    (tmp_path / "000002.jsonl.zst").write_bytes(b"torn")
    said = trim(tmp_path, iter([kept]))
    assert len(said) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000001.jsonl.zst"]
    assert (tmp_path / "000001.jsonl.zst").stat().st_size == kept.length
    assert read_trace(tmp_path, kept).query == "kept"


def test_a_damaged_frame_is_an_error_with_its_place(tmp_path: Path) -> None:
    """R-D1: a trace that cannot be read says which file and byte."""
    writer = SegmentWriter(tmp_path)
    ref = writer.append(json_bytes(a_trace()))
    writer.close()
    path = tmp_path / "000001.jsonl.zst"
    path.write_bytes(b"\0" * ref.length)
    with pytest.raises(SegmentError, match="byte 0") as caught:
        read_trace(tmp_path, ref)
    assert "000001" in str(caught.value)


CREATING = """
import multiprocessing, sys
from pathlib import Path
from proctor.runs.folder import RunFolder
def create(number): return RunFolder.create(Path(sys.argv[1]), "exp").path.name
with multiprocessing.get_context("fork").Pool(6) as pool:
    print(*pool.map(create, range(24), chunksize=1))
"""


def test_two_that_start_at_once_get_two_folders(tmp_path: Path) -> None:
    """R-D1: numbering run folders is free of races."""
    # From a process without threads: a fork of one that has some may hang.
    names = subprocess.check_output([sys.executable, "-c", CREATING, str(tmp_path)], text=True)
    assert len(set(names.split())) == 24


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """R-R9: a second process refuses to write the same run; the lock dies with its holder."""
    folder = RunFolder.create(tmp_path, "exp")
    script = (
        "import sys; from pathlib import Path; from proctor.runs.folder import RunFolder\n"
        f"folder = RunFolder(Path({str(folder.path)!r}))\n"
        "with folder.lock():\n  print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(RunFolderError, match="another process is writing"), folder.lock():
        pass
    holder.kill()
    holder.wait()
    with folder.lock():
        pass


def test_a_newer_format_is_refused_with_advice(tmp_path: Path) -> None:
    """R-D1: a folder of a newer version is not guessed at."""
    folder = RunFolder.create(tmp_path, "exp")
    folder.write_spec({"format": FORMAT + 1})
    with pytest.raises(RunFolderError, match="format") as caught:
        RunFolder.open(folder.path)
    assert caught.value.hint == "upgrade proctor"
    with pytest.raises(RunFolderError, match="not a run folder"):
        RunFolder.open(tmp_path)


@given(st.text(max_size=300))
def test_any_name_is_safe_on_every_file_system(text: str) -> None:
    """R-D1: names of folders hold on Windows too: no reserved name, character or length."""
    name = safe_name(text)
    assert 0 < len(name) <= 81
    assert not set('<>:"/\\|?*\0') & set(name)
    assert not name.endswith((".", " "))
    assert name.upper().split(".")[0] not in {"CON", "PRN", "AUX", "NUL", "COM1", "LPT1"}


def test_a_file_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    """R-D1: a results root that is a file, or vanished mid-run, is one line with the place."""
    (tmp_path / "results").write_text("")
    with pytest.raises(RunFolderError, match="cannot create a run folder"):
        RunFolder.create(tmp_path / "results", "exp")
    folder = RunFolder.create(tmp_path / "r2", "exp")
    shutil.rmtree(folder.path)
    with pytest.raises(ProctorError, match="cannot write"):
        folder.write_spec({})


def test_seeds_are_derived_alike_everywhere() -> None:
    """R-R5: a trial's seed depends on its parts alone; literals pin it across versions."""
    assert derive_seed(0, "case", 0) == derive_seed(0, "case", 0)
    assert len({derive_seed(0, "case", i) for i in range(1000)}) == 1000
    assert derive_seed(1, "case", 0) != derive_seed(0, "case", 0)
    assert all(0 <= derive_seed(s, "x") < 2**63 for s in range(50))


def test_trials_of_a_run_are_a_collection(tmp_path: Path) -> None:
    """R-D1, R-R7: each trial once, with its first judged attempt, as often as it is asked for."""
    journal = Journal(RunFolder(tmp_path).journal_path)
    never = a_trial(1)
    never.status = TrialStatus.INFRA_ERROR
    journal.extend([a_trial(0), never, a_trial(0, attempt=2), a_trial(1, attempt=2)])
    journal.close()
    trials = Run(tmp_path, spec={}).trials
    for _ in range(2):
        assert sorted((trial.index, trial.attempt) for trial in trials) == [(0, 1), (1, 2)]
    assert (len(trials), trials[-1].case) == (2, "c")
