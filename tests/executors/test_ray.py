"""Trials on workers of Ray: the same results, whatever is killed, and nothing spent twice."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from executor_parts import marks, run_of, suite_of
from run_parts import clock_of, journal, only_run, rows

from proctor.cli.main import run as main
from proctor.errors import ProctorError, first_of
from proctor.spec import load_suite
from proctor.trials._ray import (
    Connection,
    Load,
    RayMember,
    Resources,
    give_back,
    let_go,
    ray_package,
    take_crew,
)
from proctor.trials.messages import Authority
from proctor.trials.options import RunOptions
from proctor.trials.pool import WorkerExecutor
from proctor.trials.prepare import prepare
from proctor.trials.session import new_folder, run_session

pytestmark = pytest.mark.slow

ON_RAY = {"executor": "ray", "workers": 2}


def statuses(run: Any) -> list[str]:
    return sorted(trial.status.value for trial in run.trials())


async def test_results_do_not_depend_on_where_trials_run(tmp_path: Path, a_ray: str) -> None:
    """R-R2, R-R5, R-R12: one process, 2 and 4 workers give the same rows but for clocks, ids."""
    path = suite_of(tmp_path, "steady", *(f"q{n}" for n in range(5)))
    places = [{}, ON_RAY, {"executor": "ray", "workers": 4}]
    runs = [await run_of(path, place, trials=40, kept=f"r{n}") for n, place in enumerate(places)]
    expected = rows(runs[0].path)
    assert len(expected) == 200
    assert rows(runs[1].path) == expected
    assert rows(runs[2].path) == expected
    summaries = [[(c.case, c.verdict, c.score_mean, c.failures) for c in r.cells] for r in runs]
    assert summaries[0] == summaries[1] == summaries[2]


async def test_a_cap_holds_for_all_workers_together(tmp_path: Path, a_ray: str) -> None:
    """R-R8, R-R12: with four workers a cap is exceeded by no more than what was in flight."""
    path = suite_of(tmp_path, "priced", "a")
    four = {"executor": "ray", "workers": 4, "concurrency": 4}
    run = await run_of(path, four, trials=100, max_cost_usd=1.0)
    assert 10 <= run.totals.trials <= 13
    assert run.stopped is not None
    assert run.stopped.startswith("cost limit reached")
    unknown = suite_of(tmp_path / "unknown", "unpriced", "a")
    stopped = await run_of(unknown, four, trials=100, max_cost_usd=1.0)
    assert stopped.totals.trials <= 4
    assert stopped.stopped is not None
    assert "cap tokens instead" in stopped.stopped


async def test_workers_are_warm(tmp_path: Path, a_ray: str) -> None:
    """R-R12: agents are loaded once a worker, and workers stay for the next run."""
    path = suite_of(tmp_path, "where", "q")
    source = "mark('loaded')\n".join(_halves(tmp_path))
    # Trials wait for both workers: on a busy machine the first one would take them all.
    waits = "    while len(open(__file__ + '.both').read()) < 2: time.sleep(0.01)\n"
    ready = f"if os.getpid() != {os.getpid()}: open(__file__ + '.both', 'a').write('x')\n"
    source = source.replace("mark('loaded')\n", f"mark('loaded')\n{ready}")
    source = source.replace("def where(input):\n", f"def where(input):\n{waits}")
    (tmp_path / "bots.py").write_text(source)
    for name in ("first", "second"):
        await run_of(path, ON_RAY, trials=12, kept=name)
    pids = marks(tmp_path, "pids")
    assert len(pids) == 24
    assert len(set(pids)) == 2
    assert len([pid for pid in marks(tmp_path, "loaded") if pid != os.getpid()]) == 2


@pytest.mark.parametrize("ours", [True, False])
def test_only_a_ray_of_our_own_keeps_workers_between_runs(ours: bool) -> None:
    """R-R12: on a Ray of others nobody holds processors while no run is going on."""
    let_go()
    connection = Connection(shares_files=True, ours=ours)
    crew = take_crew(Resources(1), connection)
    give_back(crew)
    assert (take_crew(Resources(1), connection) is crew) is ours


def _halves(folder: Path) -> list[str]:
    text = (folder / "bots.py").read_text()
    cut = text.index("async def steady")
    return [text[:cut], text[cut:]]


class Killer:
    """Kills workers that have left marks, at times of its own."""

    def __init__(self, folder: Path, kills: int) -> None:
        self.folder, self.left = folder, kills
        self.chance = random.Random(4711)
        self.killed: set[int] = set()
        self.next = 5

    def planned(self, total: int, kept: Any) -> None: ...

    def started(self, trial: Any) -> None: ...

    def skipped(self, trial: Any) -> None: ...

    def finished(self, trial: Any) -> None:
        pids = marks(self.folder, "pids")
        if self.left and len(pids) >= self.next:
            alive = [pid for pid in pids[-4:] if pid not in self.killed]
            if alive:
                self.left -= 1
                self.next = len(pids) + self.chance.randrange(5, 15)
                self.killed.add(alive[-1])
                os.kill(alive[-1], signal.SIGKILL)


async def test_a_lost_worker_costs_nothing_but_time(tmp_path: Path, a_ray: str) -> None:
    """R-R9, R-R12: SIGKILL of workers: every trial is there once, judged, with the same result."""
    path = suite_of(tmp_path, "where", "q")
    ready = prepare(load_suite(path), RunOptions(**ON_RAY, trials=60, concurrency=4))
    folder = new_folder(ready, tmp_path / "results")
    killer = Killer(tmp_path, 3)
    run = await run_session(ready, folder, observer=killer)
    assert len(killer.killed) == 3
    lines = journal(folder.path)
    assert sorted(line["index"] for line in lines) == list(range(60))
    assert statuses(run) == ["passed"] * 60
    again = [t for t in run.trials() if t.retries]
    assert 3 <= len(again) <= 3 * 4
    assert {e for t in again for e in t.retry_errors} == {"WorkerLost: its worker was lost"}


async def test_a_trial_that_ends_its_worker_is_found_out(tmp_path: Path, a_ray: str) -> None:
    """R-R1, R-R3, R-R12: it is an agent error; those beside it are not blamed."""
    path = suite_of(tmp_path, "deadly", "always", "once", "never", "never too")
    run = await run_of(path, ON_RAY, trials=1, concurrency=4, max_retries=1)
    found = {t.case: (t.status.value, t.retries > 0) for t in run.trials()}
    assert found["c0"] == ("failed", True)
    assert {found[case][0] for case in ("c1", "c2", "c3")} == {"passed"}
    (error,) = [t.error for t in run.trials() if t.error is not None]
    assert error.type == "WorkerLost"
    assert "workers were lost while they ran it" in error.message


# -- the command, in processes of its own, on the Ray that is there -------------------------------


def command(*args: Any) -> list[str]:
    return [sys.executable, "-m", "proctor", *map(str, args)]


def on_ray(path: Path, address: str, *more: Any) -> list[str]:
    return command(
        *("run", path, "--executor", "ray", "--address", address, "--workers", 2),
        *("--results", path.parent / "results", "--json", *more),
    )


def test_the_driver_is_killed_and_the_run_goes_on(tmp_path: Path, room_on_ray: str) -> None:
    """R-R9, R-R12: SIGKILL of the driver loses what ran; a resumed run has every trial once."""
    path = suite_of(tmp_path, "where", "q", "r")
    reference = proctor("run", path, "--results", tmp_path / "local", "--trials", 30, "--quiet")
    assert reference.returncode == 0, reference.stderr
    chance = random.Random(7)
    start: list[str] = on_ray(path, room_on_ray, "--trials", 30, "--concurrency", 4)
    for _ in range(2):
        count = chance.randrange(3, 20)
        with subprocess.Popen(
            start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            seen = 0
            for line in process.stderr:
                seen += line.startswith('{"event":"finished"')
                if seen >= count:
                    break
            process.kill()
            process.stderr.read()  # until its worker is gone as well
        run = only_run(tmp_path / "results")
        start = command("run", "--resume", run, "--json")
    before = {(t["case"], t["index"]): t for t in journal(run)}
    assert 0 < len(before) < 60
    done = subprocess.run(start, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    after = journal(run)
    by_key = {(t["case"], t["index"]): t for t in after}
    assert len(after) == len(by_key) == 60
    assert all(by_key[each] == trial for each, trial in before.items())
    assert rows(run) == rows(only_run(tmp_path / "local"))


@pytest.mark.parametrize(
    ("number", "agent", "code"),
    [(signal.SIGINT, "slow", 130), (signal.SIGTERM, "block_loop", 143)],
)
def test_a_signal_ends_the_run_soon(
    tmp_path: Path, room_on_ray: str, number: signal.Signals, agent: str, code: int
) -> None:
    """R-R6, R-R12: running trials are recorded as cancelled, whatever agents do on workers."""
    path = suite_of(tmp_path, agent, "q")
    more = "async def block_loop(input):\n    mark('began')\n    time.sleep(600)\n"
    (tmp_path / "bots.py").write_text((tmp_path / "bots.py").read_text() + more)
    start = on_ray(path, room_on_ray, "--trials", 4, "--concurrency", 2)
    with subprocess.Popen(
        start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while len(marks(tmp_path, "began")) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        seconds = clock_of(process)
        # To the whole group, as a terminal does.
        os.killpg(process.pid, number)
        assert seconds() < 5
        _, err = process.communicate()
    assert process.returncode == code, err
    assert [t["status"] for t in journal(only_run(tmp_path / "results"))] == ["cancelled"] * 2


def test_nothing_of_ray_is_seen(tmp_path: Path) -> None:
    """R-R6, R-R12: a Ray of the run's own says nothing, listens to nobody else, and goes."""
    if find_spec("ray") is None:
        pytest.skip("the extra `ray` is not installed")
    path = suite_of(tmp_path, "where", "q")
    (tmp_path / "bots.py").write_text(
        (tmp_path / "bots.py")
        .read_text()
        .replace("def where(input):", "def where(input):\n    listen()")
        + LISTENING
    )
    start = command(
        *("run", path, "--executor", "ray", "--workers", 1, "--trials", 2),
        *("--results", tmp_path / "results", "--quiet"),
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        start,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**clean, "HOME": str(home), "TMPDIR": "/tmp"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "ray" not in done.stdout.replace(str(tmp_path), "").lower()
    ports = (tmp_path / "listening").read_text().split()
    assert len(ports) >= 3, "Ray listens"
    assert {port for port in ports if not port.startswith(("0100007F", *LOOPBACK6))} == set()
    assert not (home / ".ray").exists()
    folder = (tmp_path / "temp").read_text()
    assert folder.startswith("/tmp/proctor-ray-")
    assert not Path(folder).exists()


LOOPBACK6 = ("0000000000000000FFFF00000100007F", "00000000000000000000000001000000")

LISTENING = '''

def listen():
    """Write down every address that a process of this Ray listens on."""
    import re
    pid, found = os.getpid(), None
    while found is None:  # up to the process of Ray that started this one
        found = re.search(r"/tmp/proctor-ray-\\w+", Path(f"/proc/{pid}/cmdline").read_text())
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    folder = found[0]
    (HERE / "temp").write_text(folder)
    wanted = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if folder.encode() not in words: continue
            for link in (process / "fd").iterdir():
                name = os.readlink(link)
                if name.startswith("socket:["): wanted.add(name[8:-1])
        except OSError: continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in wanted: found.append(words[1])
    (HERE / "listening").write_text("\\n".join(found))
'''


# -- what a user is told ---------------------------------------------------------------------------


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    """R-R12: the package is named, with the command that brings it."""
    path = suite_of(tmp_path, "plain", "q")
    code = "import sys; sys.modules['ray'] = None; from proctor.cli.main import main; main()"
    words = ["run", str(path), "--executor", "ray", "--results", str(tmp_path / "results")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "this needs the extra `ray` (package 'ray')" in done.stderr
    assert 'pip install "proctor[ray]"' in done.stderr
    assert not (tmp_path / "results").exists()  # no folder of a run that could not begin


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workers", "2"], "--address and --workers are for --executor ray"),
        (["--executor", "ray", "--workers", "0"], "--workers: must be at least 1, got 0"),
        (["--executor", "dask"], "'dask' is not one of"),
    ],
)
def test_options_that_make_no_sense(
    tmp_path: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-R12, R-R11: a slip is a usage error that names the option."""
    assert main(["run", str(suite_of(tmp_path, "plain", "q")), *words]) == 2
    assert told in capsys.readouterr().err


async def test_what_workers_cannot_do_is_said_before(tmp_path: Path, a_ray: str) -> None:
    """R-R12: a person has no terminal there, and a machine has the resources it has."""
    people = suite_of(tmp_path / "a", {"kind": "human"}, "q")
    with pytest.raises(ProctorError, match="answers at this terminal"):
        await run_of(people, ON_RAY)
    agent = {"kind": "python", "target": "bots:plain", "resources": {"cpu": 1, "tpu": 1}}
    with pytest.raises(
        ProctorError, match=r"needs cpu 1, tpu 1, and this machine has not enough tpu"
    ):
        await run_of(suite_of(tmp_path / "b", agent, "q"), ON_RAY)
    negative = {**agent, "resources": {"cpu": -1}}
    with pytest.raises(ProctorError, match="cpu must be at least 0"):
        await run_of(suite_of(tmp_path / "c", negative, "q"), ON_RAY)


async def test_workers_that_never_come_are_not_waited_for_without_end(a_ray: str) -> None:
    """R-R12: where a cluster cannot give what is asked, the run ends and says what it needed."""
    needs = Resources(custom=(("tpu", 1.0),))
    members = [RayMember(needs), RayMember(needs)]
    for member in members:
        member.to_load = Load("digest", ray_package().put(b""), b"")
    executor = WorkerExecutor(
        members,
        Authority(None),
        at_once=2,
        options=RunOptions(max_retries=1),
        ahead=False,
        keep_recorded=lambda _lines: None,
        start_timeout=0.5,
    )
    with pytest.raises(ExceptionGroup) as told:
        await executor.run(iter(()), lambda _planned, _trial, _trace: None)
    assert "no worker has started" in str(first_of(told.value))
    assert "tpu 1" in str(first_of(told.value))


async def test_resources_of_agents_are_those_of_workers(tmp_path: Path, a_ray: str) -> None:
    """R-R12: an agent that needs two processors gets a worker that holds two."""
    agent = {"kind": "python", "target": "bots:where", "resources": {"cpu": 2}}
    run = await run_of(suite_of(tmp_path, agent, "q"), ON_RAY, trials=2)
    assert statuses(run) == ["passed", "passed"]
    # Both workers stay warm, and hold all four processors.
    until = time.monotonic() + 30
    while ray_package().available_resources().get("CPU", 0.0) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert ray_package().available_resources().get("CPU", 0.0) == 0.0
    let_go()
