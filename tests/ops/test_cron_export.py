"""Schedules as other schedulers write them: the same times, no secret, nothing injected."""

import re
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest
import yaml
from commands import proctor
from ops_parts import SECRET
from run_parts import write_suite

from proctor.errors import ProctorError
from proctor.ops.cron import Cron
from proctor.ops.cron_export import calendars, export
from proctor.ops.schedule import Book, Schedule

ADDED = datetime(2026, 5, 4, 12, tzinfo=UTC)


def nightly(**more: object) -> Schedule:
    given = {"target": "exp.yaml", "cron": "0 2 * * *", "added": ADDED, **more}
    return Schedule(**given)  # pyright: ignore[reportArgumentType]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize(
    "cron",
    ["0 2 * * *", "*/15 8-17 * * 1-5", "0 0 1 * *", "5 4 13 * 5", "0 3 * 2,8 0", "30 6 */2 * 1"],
)
def test_systemd_means_the_same_times(cron: str) -> None:
    """R-Q7: systemd itself, asked when the timer comes, says what the cron expression says."""
    times = Cron(cron, "Europe/Berlin")
    argv = ["systemd-analyze", "calendar", "--iterations=5", f"--base-time={ADDED:%Y-%m-%d %T} UTC"]
    found: set[datetime] = set()
    for each in calendars(times, "Europe/Berlin"):
        said = subprocess.run(
            [*argv, each], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}
        )
        found |= {
            datetime.strptime(when, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            for when in re.findall(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC", said.stdout)
        }
    assert sorted(found)[:5] == list(islice(times.after(ADDED), 5))


def test_units_call_the_schedule_by_its_name(tmp_path: Path) -> None:
    """R-Q7: paths are quoted as systemd reads them, and the policy for missed times is kept."""
    project = tmp_path / 'a "b" $c %d'
    files = export("systemd", project, {"n": nightly(missed="skip", notify=(f"json://{SECRET}",))})
    assert set(files) == {"proctor-n.service", "proctor-n.timer"}
    assert "Persistent=false" in files["proctor-n.timer"]
    assert f"WorkingDirectory={str(project).replace('%', '%%')}" in files["proctor-n.service"]
    assert files["proctor-n.service"].count('"schedule" "run" "n" "--log"') == 1
    assert "Persistent=true" in export("systemd", project, {"n": nightly()})["proctor-n.timer"]
    assert SECRET not in "".join(files.values())


def test_a_crontab_line_runs_the_schedule(tmp_path: Path) -> None:
    """R-Q7: the line does, in a shell as cron starts it, what the schedule would."""
    project = tmp_path / "it's 100% odd"
    write_suite(project, cases=1)
    book = Book(project)
    book.add("n", nightly(target="suite.yaml", tz="Europe/Berlin"))
    [text] = export("cron", project, book.schedules()).values()
    assert "CRON_TZ=Europe/Berlin\n0 2 * * * cd " in text
    line = text.splitlines()[-1].removeprefix("0 2 * * * ")
    assert re.search(r"(?<!\\)%", line) is None
    done = subprocess.run(["/bin/sh", "-c", line.replace(r"\%", "%")], check=False)
    assert done.returncode == 0
    assert book.states()["n"].exit_code == 0
    assert "1 of 1 cell passed" in (project / str(book.states()["n"].log)).read_text()


def test_a_workflow_is_yaml_that_runs_the_command() -> None:
    """R-Q7: the same command, one at a time, addresses from a secret of the repository."""
    made = nightly(options=("--agent", "it's; $(x)"), notify=(f"json://{SECRET}",))
    [text] = export("github", Path("/project"), {"n": made}).values()
    document = yaml.safe_load(text)
    assert document["on"]["schedule"] == [{"cron": "0 2 * * *"}]
    job = document["jobs"]["run"]
    assert shlex.split(job["steps"][-1]["run"])[2:] == ["exp.yaml", "--agent", "it's; $(x)"]
    assert job["env"] == {"PROCTOR_NOTIFY_TO": "${{ secrets.PROCTOR_NOTIFY_TO }}"}
    assert document["concurrency"]["cancel-in-progress"] is False
    assert SECRET not in text


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (nightly(tz="Europe/Berlin"), "workflows go by UTC"),
        (nightly(cron="0 2 L * *"), "other schedulers do not know"),
        (nightly(cron="0 2 * * 1#2"), "other schedulers do not know"),
        (nightly(options=("--name", "${{ github.token }}")), "would be read by GitHub"),
    ],
)
def test_what_another_scheduler_cannot_mean_is_refused(made: Schedule, told: str) -> None:
    """R-Q7: a wrong time would be worse than none."""
    with pytest.raises(ProctorError, match=told):
        export("github", Path("/project"), {"n": made})


def test_from_the_command_line(tmp_path: Path) -> None:
    """R-Q7: files go where they are told to, and all or one are written."""
    book = Book(tmp_path)
    assert "no schedules here" in proctor("schedule", "export", "--to", "cron", cwd=tmp_path).stderr
    for name in ("a", "b"):
        book.add(name, nightly())
    printed = proctor("schedule", "export", "--to", "cron", cwd=tmp_path)
    assert printed.stdout.count(f"{sys.executable} -m proctor schedule run") == 2
    proctor("schedule", "export", "b", "--to", "systemd", "-o", "units", cwd=tmp_path)
    names = {path.name for path in (tmp_path / "units").iterdir()}
    assert names == {"proctor-b.service", "proctor-b.timer"}
