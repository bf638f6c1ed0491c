"""Sharing: one file, secrets taken out again, and a list of what is inside."""

import hashlib
import io
import json
import re
import zipfile
from pathlib import Path

import pytest
import zstandard
from report_runs import make_run

from proctor.errors import ProctorError
from proctor.report.share import share
from proctor.runs.run import Run
from proctor.runs.trial import Trial
from proctor.trace.redact import Redactor

KEY = "sk-" + "proj-" + "A1b2C3d4" * 5
HIDDEN = "correct-horse-7-battery"
"""Only the environment tells that this is a secret."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that was stored before these secrets were known."""

    def leak(trial: Trial, _rng: object) -> None:
        trial.answer = f"the key is {KEY} and the word is {HIDDEN}"

    return Run(make_run(tmp_path / "results" / "made" / "2026-05-28_001", cases=2, change=leak))


@pytest.fixture
def redactor() -> Redactor:
    return Redactor(environ={"SHOP_PASSWORD": HIDDEN})


def unpack_page(page: str) -> str:
    """Everything a page holds, its packed blocks included."""
    import base64
    import zlib

    blocks = re.findall(r'<script type="text/plain" id="data-(?!vega)[^"]+">([^<]*)</script>', page)
    return page + "".join(zlib.decompress(base64.b64decode(each)).decode() for each in blocks)


def test_a_shared_page_holds_no_secret_and_no_name(
    run: Run, tmp_path: Path, redactor: Redactor
) -> None:
    """R-D5 R-T9: keys, words of the environment, machine, user and folders stay at home."""
    made = share(run, tmp_path / "out.html", redactor)
    whole = unpack_page(made.path.read_text(encoding="utf-8"))
    for private in (KEY, HIDDEN, "the-host-name", "the-user-name", str(tmp_path)):
        assert private not in whole, private
    assert "[redacted:" in whole
    assert made.redacted >= 12  # one answer of each trial at least
    assert made.size == made.path.stat().st_size


def test_the_same_page_at_home_names_the_machine(run: Run) -> None:
    """R-D5: what share leaves out is there in the report you keep (else the test above proves
    nothing)."""
    from proctor.report.facts import ReportFacts
    from proctor.report.html.page import render_page

    whole = unpack_page(render_page(run, ReportFacts(run), with_charts=False).text)
    assert "the-host-name" in whole
    assert HIDDEN in whole


def test_a_zip_is_a_run_without_its_secrets(run: Run, tmp_path: Path, redactor: Redactor) -> None:
    """R-D5 R-T9: every file of it, compressed traces included, and it reads as any run does."""
    made = share(run, tmp_path / "out.zip", redactor)
    with zipfile.ZipFile(made.path) as archive:
        archive.extractall(tmp_path / "there")
        names = archive.namelist()
    assert names[0] == "CONTENTS.md"
    for name in names:
        content = (tmp_path / "there" / name).read_bytes()
        if name.endswith(".zst"):
            with zstandard.ZstdDecompressor().stream_reader(
                io.BytesIO(content), read_across_frames=True
            ) as reader:
                content = reader.read()
        text = content.decode("utf-8", "replace")
        text = unpack_page(text) if name.endswith(".html") else text
        for private in (KEY, HIDDEN, "the-host-name", "the-user-name"):
            assert private not in text, f"{private} in {name}"
    copied = Run(tmp_path / "there" / "run")
    assert copied.run_id == run.run_id
    assert [cell.verdict for cell in copied.cells] == [cell.verdict for cell in run.cells]
    assert copied.totals == run.totals
    trials = list(copied.trials())
    assert len(trials) == len(list(run.trials()))
    for trial in trials:
        trace = copied.trace(trial)
        assert trace is not None
        assert trace.trace_id == trial.trace_id
        assert trace.response is not None
        assert "[redacted:" in trace.response


def test_the_list_of_contents_is_true(run: Run, tmp_path: Path, redactor: Redactor) -> None:
    """R-D5: every file with its size and hash, in the zip and on the screen."""
    made = share(run, tmp_path / "out.zip", redactor)
    with zipfile.ZipFile(made.path) as archive:
        listed = archive.read("CONTENTS.md").decode()
        for name in archive.namelist()[1:]:
            content = archive.read(name)
            row = f"| {name} | {len(content):,} | {hashlib.sha256(content).hexdigest()} |"
            assert row in listed
        assert [line.split("  ")[0] for line in made.inside] == archive.namelist()
        spec = archive.read("run/_spec_.yaml").decode()
    assert "/home/" not in spec
    assert f"and removed {made.redacted} secrets" in listed


def test_sharing_twice_gives_the_same_results(run: Run, tmp_path: Path, redactor: Redactor) -> None:
    """R-D5: redacting what is redacted changes nothing."""
    first = share(run, tmp_path / "one.zip", redactor)
    with zipfile.ZipFile(first.path) as archive:
        archive.extractall(tmp_path / "once")
    second = share(Run(tmp_path / "once" / "run"), tmp_path / "two.zip", redactor)
    assert second.redacted == 0
    with zipfile.ZipFile(first.path) as a, zipfile.ZipFile(second.path) as b:
        for name in ("run/trials.jsonl", "run/_spec_.yaml", "run/traces/000001.jsonl.zst"):
            assert a.read(name) == b.read(name), name
        document = json.loads(b.read("run/results.json"))
    assert document["run_id"] == run.run_id


def test_folders_are_made(run: Run, tmp_path: Path, redactor: Redactor) -> None:
    """R-D5: as every other command that writes does; where that cannot be it is said."""
    assert share(run, tmp_path / "a" / "b" / "run.zip", redactor).path.is_file()
    (tmp_path / "file").write_text("")
    with pytest.raises(ProctorError, match="cannot write"):
        share(run, tmp_path / "file" / "run.html", redactor)


def test_another_ending_is_refused(run: Run, tmp_path: Path, redactor: Redactor) -> None:
    """R-D5: said before anything is written."""
    with pytest.raises(ProctorError, match=r"cannot share as \.pdf") as raised:
        share(run, tmp_path / "out.pdf", redactor)
    assert raised.value.hint is not None
    assert ".html or .zip" in raised.value.hint
    assert not (tmp_path / "out.pdf").exists()
