"""The list of runs says how those under way are doing."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
from run_parts import write_suite
from server_parts import serving

import proctor as api
from proctor.runs.heartbeat import NAME
from proctor.server.app import Service


def test_the_list_of_runs_says_which_are_dead(tmp_path: Path) -> None:
    """R-D7, R-R6: stopped by a limit is stopped; a run whose process is gone is dead."""
    run = api.run(write_suite(tmp_path), trials=2, limits={"max_trials": 1}, results=tmp_path / "r")
    with serving(Service(results=tmp_path / "r")) as running:
        assert '<span class="chip odd">stopped</span>' in httpx.get(f"{running.url}/runs").text
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        beat = json.loads((run.path / NAME).read_text())
        (run.path / NAME).write_text(json.dumps({**beat, "state": "running", "pid": gone.pid}))
        assert '<span class="chip odd">dead</span>' in httpx.get(f"{running.url}/runs").text
        cell = f"{running.url}/runs/suite/{run.path.name}/cell?case=case-1&agent=bots:steady"
        assert '<span class="chip odd">NOT RUN</span>' in httpx.get(cell).text
