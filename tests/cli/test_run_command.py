"""`proctor run` from outside: what it prints, where, and with which exit code."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import proctor
from run_parts import journal, only_run, write_suite

from proctor.runs.run import Run
from proctor.trials.options import RunOptions

FLAKY = """
import pathlib
from proctor.agents.base import AgentError
here = pathlib.Path(__file__).parent

def wrong_then_right(input):
    return input if (here / "right").exists() else "wrong"

def down_then_up(input):
    if not (here / "up").exists(): raise AgentError("no route", category="")
    print("agents print what they like")
    return input
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "flaky.py").write_text(FLAKY)
    return write_suite(tmp_path, cases=2, trials=2)


def run(suite: Path, *args: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    return proctor("run", suite, "--results", suite.parent / "results", *args, **more)


def test_a_good_run_ends_with_0_and_a_table(suite: Path) -> None:
    """R-R11, R-R13: a row for each cell with its denominator, and where everything is."""
    done = run(suite)
    assert (done.returncode, done.stderr) == (0, "")
    folder = only_run(suite.parent / "results")
    assert re.search(r"case-0 +bots:steady +PASS +2/2 +1\.00", done.stdout)
    assert "2 of 2 cells passed; 4 of 4 judged trials" in done.stdout
    assert f"stored in {folder}" in done.stdout
    assert {path.name for path in folder.iterdir()} == {
        *("_spec_.yaml", "trials.jsonl", "results.parquet", "results.json", "summary.csv"),
        *("traces", "facts.json", "checksums.json", "heartbeat.json", ".lock"),
    }


def test_a_failed_gate_is_1_with_what_broke(suite: Path) -> None:
    """R-R10, R-R11: failures by check, with counts, rates and an example."""
    done = run(suite, "--agent", "flaky:wrong_then_right")
    assert done.returncode == 1
    assert "HARD FAIL" in done.stdout
    assert "expected_in_answer: 4 of 4 trials (100 %), blocks" in done.stdout
    assert "case-0/flaky:wrong_then_right/0/0: the answer lacks 'word0'" in done.stdout


def test_what_could_not_be_judged_is_2_and_can_be_tried_again(suite: Path) -> None:
    """R-R7, R-R11: --retry-infra runs those trials again and no others."""
    done = run(suite, "--agent", "flaky:down_then_up")
    assert done.returncode == 2
    assert "INFRA_ERROR" in done.stdout
    folder = only_run(suite.parent / "results")
    assert f"proctor run --retry-infra {folder}" in done.stdout
    (suite.parent / "up").touch()
    assert proctor("run", "--resume", folder).returncode == 2, "they are finished, not missing"
    again = proctor("run", "--retry-infra", folder)
    assert again.returncode == 0, again.stderr
    assert "agents print" not in again.stdout
    trials = list(Run(folder).trials())
    assert [t.attempt for t in trials] == [2] * 4
    assert len(journal(folder)) == 8


def test_only_what_failed_is_tried_again(suite: Path) -> None:
    """R-R7: --retry-failed keeps what passed; the exit code stays that of the first attempts."""
    assert run(suite, "--agent", "flaky:wrong_then_right").returncode == 1
    folder = only_run(suite.parent / "results")
    (suite.parent / "right").touch()
    again = proctor("run", "--retry-failed", folder)
    assert again.returncode == 1
    assert "after retries: " in again.stdout
    lines = len(journal(folder))
    assert proctor("run", "--retry-failed", folder).returncode == 1
    assert len(journal(folder)) == lines, "nothing is left to try"


def test_a_run_is_resumed_from_its_folder_alone(suite: Path) -> None:
    """R-R7, R-R9: the suite file may change or go; flags of the first sitting hold."""
    args = ("--trials", 6, "--seed", 9, "--filter", "id:case-1", "--max-trials", 2, "--quiet")
    assert run(suite, *args).returncode == 2
    folder = only_run(suite.parent / "results")
    suite.unlink()
    done = proctor("run", "--resume", folder, "--max-trials", 100, "--quiet")
    assert done.returncode == 0, done.stderr
    whole = Run(folder)
    assert {(t.case, t.index) for t in whole.trials()} == {("case-1", i) for i in range(6)}
    for change in (("--trials", 9), ("--seed", 1), ("--early-stop",)):
        refused = proctor("run", "--resume", folder, *change)
        assert refused.returncode == 2
        assert "keeps its" in refused.stderr


@pytest.mark.parametrize("written_in", ["suite", "settings"])
def test_secrets_stay_out_of_the_folder(suite: Path, written_in: str) -> None:
    """R-D1: the spec holds references to variables, which are read again on resume."""
    raw = yaml.safe_load(suite.read_text())
    code = "import os, sys; sys.stdin.read(); print(os.environ['TOKEN'][::-1])"
    agent = {
        "kind": "command",
        "command": [sys.executable, "-c", code],
        "protocol": "text",
        "env": {"TOKEN": "${THE_TOKEN}"},
    }
    raw["agent"] = agent if written_in == "suite" else "mine"
    if written_in == "settings":
        settings = {"agents": {"mine": agent}}
        (suite.parent / "proctor.yaml").write_text(yaml.safe_dump(settings))
    raw["cases"] = [{"id": "c", "input": "q", "correctness": {"regex_match": "terces"}}]
    suite.write_text(yaml.safe_dump(raw))
    env = {**os.environ, "THE_TOKEN": "a-very-secret-4711"}
    assert run(suite, "--max-trials", 1, "--quiet", env=env).returncode == 2
    folder = only_run(suite.parent / "results")
    held = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"a-very-secret-4711" not in held
    assert b"${THE_TOKEN}" in held
    refused = proctor("run", "--resume", folder, "--max-trials", 9)
    assert refused.returncode == 2
    assert "THE_TOKEN" in refused.stderr
    assert proctor("run", "--resume", folder, "--max-trials", 9, env=env).returncode == 0


def test_json_is_one_document_and_events(suite: Path) -> None:
    """R-R6: stdout holds one document, stderr one event a line, whatever agents print."""
    (suite.parent / "up").touch()
    done = run(suite, "--agent", "flaky:down_then_up", "--json", "--concurrency", 1)
    document = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode == 0
    assert document["totals"]["passed"] == 4
    assert [cell["verdict"] for cell in document["cells"]] == ["PASS", "PASS"]
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [event["event"] for event in events] == ["planned", *["started", "finished"] * 4]
    assert [event["done"] for event in events if event["event"] == "finished"] == [1, 2, 3, 4]


def test_a_dry_run_runs_nothing_and_estimates_from_earlier_runs(suite: Path) -> None:
    """R-R7: the plan and its size; cost and time unknown until a run tells."""
    (suite.parent / "paid.py").write_text(
        "import proctor\n"
        "def agent(input):\n"
        "    with proctor.capture.llm_call('m', cost_usd=0.25): return input\n"
    )
    args = ("--agent", "paid:agent", "--trials", 10, "--dry-run")
    done = run(suite, *args)
    assert done.returncode == 0
    assert "20 trials: 2 cases × 1 agent, 4 at a time, seed 0" in done.stdout
    assert "cost: unknown" in done.stdout
    assert "time: unknown" in done.stdout
    assert "imported to check them, but not called: paid:agent" in done.stdout
    assert not (suite.parent / "results").exists()
    assert run(suite, "--agent", "paid:agent", "--filter", "id:case-0").returncode == 0
    expected = run(suite, *args).stdout
    assert "cost: about $2.50 for 10 of 20 trials, unknown for the others" in expected
    estimate = json.loads(run(suite, *args, "--json").stdout)["estimate"]
    assert (estimate["cost_usd"], estimate["priced"], estimate["trials"]) == (2.5, 10, 20)
    (suite.parent / "paid.py").write_text("import no_such_module_anywhere")
    broken = run(suite, *args)
    assert broken.returncode == 2
    assert "no_such_module_anywhere" in broken.stderr


def test_a_dry_run_of_a_resumed_run_shows_what_is_left(suite: Path) -> None:
    """R-R7: how many of the plan are still to be run, where, and what that may cost."""
    run(suite, "--agent", "flaky:wrong_then_right", "--max-trials", 3, "--concurrency", 1)
    folder = only_run(suite.parent / "results")
    left = proctor("run", "--resume", folder, "--dry-run")
    assert left.returncode == 0
    assert left.stdout.splitlines()[:4] == [
        "1 of 4 trials left",
        "  case    agent                   trials",
        "  case-1  flaky:wrong_then_right  1",
        "1 trial: 2 cases × 1 agent, 1 at a time, seed 0",
    ]
    assert "time: about" in left.stdout
    again = proctor("run", "--retry-failed", folder, "--dry-run", "--json")
    assert json.loads(again.stdout)["estimate"]["trials"] == 4
    assert len(journal(folder)) == 3
    assert proctor("run", "--resume", folder).returncode == 1
    nothing = proctor("run", "--resume", folder, "--dry-run")
    assert (nothing.returncode, nothing.stdout) == (0, "0 of 4 trials left\n")


def test_directories_of_trials_are_kept_when_asked(suite: Path) -> None:
    """R-A3: those of trials that did not pass, and the command says where; all others are gone."""
    (suite.parent / "writes.py").write_text(
        "def agent(input, seed, workdir):\n"
        "    (workdir / 'note.txt').write_text(str(workdir))\n"
        "    (workdir.parent / f'{workdir.name}.seen').touch()\n"
        "    return 'wrong' if input.endswith('0') else input\n"
    )
    place = suite.parent / "temporary"
    place.mkdir()
    options = ("--agent", "writes:agent", "--trials", 1)
    environ = {**os.environ, "TMPDIR": str(place)}
    assert run(suite, *options, env=environ).returncode == 1
    assert [path.suffix for path in place.iterdir()] == [".seen"] * 2
    done = run(suite, *options, "--keep-workdirs", env=environ)
    (kept,) = [path for path in place.iterdir() if path.is_dir()]
    assert (kept / "note.txt").read_text() == str(kept)
    assert f"kept 1 directory of trials that did not pass: {kept}\n" in done.stdout


def test_a_smoke_run_is_one_trial_per_agent(suite: Path) -> None:
    """R-R7: each agent once, kept apart from the experiment."""
    agents = ("--agent", "bots:steady", "--agent", "bots:instant")
    assert run(suite, *agents, "--smoke", "--quiet").returncode == 0
    (folder,) = (suite.parent / "results" / "suite-smoke").iterdir()
    assert sorted((t.agent, t.index) for t in Run(folder).trials()) == [
        ("bots:instant", 0),
        ("bots:steady", 0),
    ]


def test_settings_give_defaults_and_flags_win(suite: Path) -> None:
    """R-R2: trials of cases that do not say, limits, the results folder and registered agents."""
    raw = yaml.safe_load(suite.read_text())
    del raw["agent"], raw["defaults"]
    raw["cases"][0]["trials"] = 5
    suite.write_text(yaml.safe_dump(raw))
    settings = {
        "results": "elsewhere",
        "agent": "mine",
        "agents": {"mine": {"kind": "python", "target": "bots:instant"}},
        "limits": {"trials": 7, "max_trials": 9},
    }
    (suite.parent / "proctor.yaml").write_text(yaml.safe_dump(settings))
    assert proctor("run", suite, "--quiet", "--max-trials", 100).returncode == 0
    folder = only_run(suite.parent / "elsewhere")
    cells = {cell.case: (cell.agent, cell.trials) for cell in Run(folder).cells}
    assert cells == {"case-0": ("mine", 5), "case-1": ("mine", 7)}
    assert proctor("run", "--resume", folder, "--quiet").returncode == 0
    (suite.parent / "proctor.yaml").unlink()
    assert proctor("run", "--retry-failed", folder, "--quiet").returncode == 0
    assert proctor("run", suite).returncode == 2, "now no agent is named"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--trials", "0"], "--trials"),
        (["--max-cost", "nan"], "--max-cost"),
        (["--timeout", "0"], "--timeout"),
        (["--agent", "nobody"], "there is no agent 'nobody'"),
        (["--filter", "id:nothing"], "none of 2 cases"),
        (["--resume", "."], "name what to run"),
    ],
)
def test_wrong_use_is_2_and_named(suite: Path, args: list[str], expected: str) -> None:
    """R-R11: usage errors never look like a failed gate."""
    done = run(suite, *args)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_every_option_of_a_run_is_an_option_of_the_command() -> None:
    """R-R8: whatever Python can ask of a run, the command line can, in the same words."""
    from proctor.cli.run import SPELLED
    from proctor.cli.run import run as command

    options = {o.name: o for o in command.params}
    for name, field in RunOptions.model_fields.items():
        # What only the record holds, and what the command line does not leave to choose.
        if name not in ("default_trials", "more_trials", "isolation", "fork"):
            option = options[name]
            assert SPELLED.get(name, "--" + name.replace("_", "-")) in option.opts
            assert getattr(option, "help", None) == field.description


def test_progress_lives_on_a_terminal_and_leaves_it_clean(suite: Path) -> None:
    """R-R6: done, running, pass rate with its denominator, written over in place."""
    (suite.parent / "slow.py").write_text(
        "import asyncio\nasync def agent(input):\n    await asyncio.sleep(0.15)\n    return input\n"
    )
    main, other = pty.openpty()
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "proctor", "run", str(suite), "--agent", "slow:agent"),
            *("--trials", "3", "--concurrency", "1", "--results", str(suite.parent / "r")),
        ],
        stdout=subprocess.PIPE,
        stderr=other,
    )
    os.close(other)
    shown = b""
    while chunk := _read(main):
        shown += chunk
    assert child.wait() == 0
    text = shown.decode()
    assert "\n" not in text, "one line only"
    assert re.search(r"[1-5]/6 done · 1 running · (\d)/\1 passed \(100 %\) · about \d s left", text)
    assert text.endswith("\r\x1b[2K")


def _read(file: int) -> bytes:
    try:
        return os.read(file, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


def test_hostile_names_and_answers_do_not_reach_the_terminal(suite: Path) -> None:
    """R-R10: what an agent says is shown, not obeyed."""
    (suite.parent / "evil.py").write_text(
        "def agent(input): return '\\x1b]0;owned\\x07\\x1b[31m'\n"
    )
    done = run(suite, "--agent", "evil:agent", "--quiet")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout


def test_quiet_prints_the_verdict_only(suite: Path) -> None:
    """R-R1: one line however many cases there are: the verdict, the counts, the folder."""
    done = run(suite, "--quiet")
    (told,) = done.stdout.splitlines()
    folder = only_run(suite.parent / "results")
    assert told.startswith(("PASS: ", "FAIL: ", "NOT JUDGED: "))
    assert "judged trial" in told or "passed" in told
    assert told.endswith(f"{folder.name})")
    assert not done.stderr


def test_few_open_files_lower_the_concurrency_and_lose_no_trial(tmp_path: Path) -> None:
    """R-R11: with 128 open files at most, 64 commands at a time become 8, and all pass."""
    suite = tmp_path / "suite.yaml"
    command = [sys.executable, "-c", "print('yes')"]
    suite.write_text(
        yaml.safe_dump(
            {
                "version": 1,
                "agent": {"kind": "command", "command": command, "protocol": "text"},
                "defaults": {"trials": 70},
                "cases": [
                    {"id": "a", "input": "x", "correctness": {"expected_in_answer": ["yes"]}}
                ],
            }
        )
    )
    run_it = [sys.executable, "-m", "proctor", "run", str(suite), "--concurrency", "64"]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh", *run_it, "--results", tmp_path / "r"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "only 128 files may be open: 8 trials at a time, not 64" in done.stderr
    assert "70 of 70 judged trials" in done.stdout, done.stdout + done.stderr


def test_formulas_in_names_are_text_in_the_summary(tmp_path: Path) -> None:
    """R-R13: a case that is named like a formula does not start one in a spreadsheet."""
    (tmp_path / "grades.csv").write_text('case,agent,passed\n"=cmd|x",a,true\n')
    proctor("runs", "import", tmp_path / "grades.csv", "--results", tmp_path / "results")
    folder = only_run(tmp_path / "results")
    rows = (folder / "summary.csv").read_text().splitlines()
    assert rows[1].startswith("'=cmd|x,")
    assert journal(folder)[0]["case"] == "=cmd|x", "the stored name is unchanged"


@pytest.mark.parametrize(("sharing", "mode"), [("", 0o700), ("group", 0o750)])
def test_a_run_folder_is_private_unless_a_group_shares_it(
    suite: Path, sharing: str, mode: int
) -> None:
    """R-R13: other users of the machine cannot read what agents answered."""
    command = [sys.executable, "-m", "proctor", "run", str(suite), "--quiet", "--results"]
    subprocess.run(
        ["sh", "-c", 'umask 022 && exec "$@"', "sh", *command, str(suite.parent / "results")],
        env={**os.environ, "PROCTOR_SHARING": sharing},
        check=True,
        capture_output=True,
    )
    run = only_run(suite.parent / "results")
    assert run.stat().st_mode & 0o777 == mode
    found = {path.name: path.stat().st_mode & 0o777 for path in run.rglob("*")}
    assert found.pop("traces") == mode
    assert {"trials.jsonl", "results.parquet", "000001.jsonl.zst", ".lock"} <= found.keys()
    assert set(found.values()) == {mode & 0o660}, found
