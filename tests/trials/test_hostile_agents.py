"""Agents that attack their process: each is its own failure, and changes nothing beside it.

Every variant runs through the command line, among trials that do nothing wrong: they keep the
results they have without it, and the command reports what happened with the exit code of a
failed cell.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import proctor
from run_parts import journal, only_run

from proctor.processes import ProcessGroup, remove_left_groups

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses /proc and signals of Linux")

ERROR, TIMEOUT, RESOURCES = "agent_error", "timeout", "resource_limit"

HEAD = """
import asyncio, atexit, builtins, ctypes, gc, json, locale, os, resource, signal, socket
import subprocess, sys, threading, time, weakref
import msgspec
from pathlib import Path

HERE = Path(__file__).parent

class Odd(BaseException): pass

def send_garbage():
    for fd in range(3, 64):
        try: socket.socket(fileno=os.dup(fd)).send(b'\\xff' * 64)
        except OSError: pass

def later(function, seconds=0.02):
    threading.Timer(seconds, function).start()

"""

FORGE = """
import random, re, tempfile
from proctor.agents.base import AgentReply
from proctor.trials import messages

HELD = []
HOARD = "kept = bytearray(2 ** 30); import time; time.sleep(60)"

class Mute(Exception):
    def __str__(self): raise Odd
    __repr__ = __str__

class Unreadable(Exception):
    @property
    def status_code(self): raise ValueError('no')

def forge(message):
    for fd in range(3, 64):
        try: socket.socket(fileno=os.dup(fd)).send(messages.frame(message))
        except OSError: pass

def forge_trial(key): forge(messages.Parcel(done=(messages.Done(key, b'no'),)))
def forge_request(*args): forge(messages.Parcel(asks=(messages.Ask(1, 'save', args),)))
def lose(loop): loop._ready.clear(), loop._scheduled.clear()

def close_trials():
    for each in gc.get_objects():
        if type(each).__name__ == 'coroutine' and each.cr_code.co_name == 'run_trial':
            try: each.close()
            except BaseException: pass

def nested_groups():
    error = ValueError('deep')
    for _ in range(50_000): error = ExceptionGroup('group', [error])
    return error

def use_descriptors():
    try:
        while True: HELD.append(open(os.devnull))
    except OSError: pass

def stop_lanes():
    from proctor.trials.worker import TrialLoop
    for each in gc.get_objects():
        if isinstance(each, TrialLoop): each._stopping = True

def write_garbage():
    for fd in range(3, 64):
        try: os.write(fd, b'\\0' * 64)
        except OSError: pass

"""

# How the agent attacks, and the category of its failure. The code stands in an async function, and
# with "plain" before its name in a plain one, which runs in a thread.
ATTACKS: dict[str, tuple[str, str]] = {
    "os._exit(0)": ("os._exit(0)", ERROR),
    "os._exit(1)": ("os._exit(1)", ERROR),
    "plain os._exit(0)": ("os._exit(0)", ERROR),
    "exit of a thread": ("later(lambda: os._exit(0)); await asyncio.sleep(60)", ERROR),
    "segfault": ("ctypes.string_at(0)", ERROR),
    "plain segfault": ("ctypes.string_at(0)", ERROR),
    "abort": ("os.abort()", ERROR),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", RESOURCES),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); await asyncio.sleep(60)", ERROR),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", ERROR),
    "SIGSTOP": ("os.kill(os.getpid(), signal.SIGSTOP)", TIMEOUT),
    "kill the parent": ("os.kill(os.getppid(), signal.SIGKILL); await asyncio.sleep(60)", ERROR),
    "kill the group": ("os.killpg(0, signal.SIGKILL)", RESOURCES),
    "blocked loop": ("time.sleep(60)", TIMEOUT),
    "endless loop": ("while True: pass", TIMEOUT),
    "a little too long": ("time.sleep(1.5)", TIMEOUT),
    "plain endless loop": ("while True: time.sleep(0.001)", TIMEOUT),
    "swallowed cancellation": (
        "while True:\n        try: await asyncio.sleep(60)\n        except BaseException: pass",
        TIMEOUT,
    ),
    "sys.exit": ("sys.exit(0)", ERROR),
    "plain sys.exit": ("sys.exit(0)", ERROR),
    "BaseException": ("raise Odd('odd')", ERROR),
    "plain BaseException": ("raise Odd('odd')", ERROR),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", ERROR),
    "plain KeyboardInterrupt": ("raise KeyboardInterrupt", ERROR),
    "CancelledError": ("raise asyncio.CancelledError", ERROR),
    "recursion": ("deep = lambda: deep(); deep()", ERROR),
    "MemoryError": ("raise MemoryError", RESOURCES),
    "stop the loop": ("asyncio.get_running_loop().stop(); await asyncio.sleep(60)", ERROR),
    "chdir": ("os.chdir('/')", ERROR),
    "plain chdir": ("os.chdir('/')", ERROR),
    "deleted folder": ("(HERE / 'gone').mkdir(); os.chdir(HERE / 'gone'); os.rmdir('.')", ERROR),
    "closed descriptors": ("os.closerange(3, 256)", ERROR),
    "plain closed descriptors": ("os.closerange(3, 256)", ERROR),
    "all descriptors closed": ("os.closerange(0, 256)", ERROR),
    "closed stdout": ("os.close(1)", ERROR),
    "no files allowed": ("resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))", ERROR),
    "no recursion allowed": ("sys.setrecursionlimit(90)", ERROR),
    "patched asyncio": ("asyncio.wait = None; asyncio.sleep = None", ERROR),
    "patched json": ("json.dumps = json.loads = lambda *a, **k: '\"no\"'", ERROR),
    "patched checks": ("import proctor.checks.base as c; c.Check.evaluate = None", ERROR),
    "patched encoder": ("import msgspec; msgspec.json.encode = lambda *a: b'{}'", ERROR),
    "patched time": ("time.perf_counter = time.monotonic = lambda: 0.0", ERROR),
    "patched open": ("builtins.open = None", ERROR),
    "removed modules": ("sys.modules.pop('asyncio'); sys.modules.pop('os')", ERROR),
    "garbage to the driver": ("send_garbage()", ERROR),
}

# What an agent may do, as long as nothing beside it notices.
NUISANCES = {
    "signal handlers": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "exit handler that hangs": "atexit.register(time.sleep, 600)",
    "exit handler with a code": "atexit.register(os._exit, 0)",
    "threads that never end": "threading.Thread(target=time.sleep, args=(600,)).start()",
    "environment": "os.environ['LANG'] = 'xx'; os.environ.pop('PATH', None)",
    "locale": "locale.setlocale(locale.LC_ALL, 'C')",
    "escaped child": "subprocess.Popen(['sleep', '613'], start_new_session=True)",
    "double fork": (
        "if os.fork() == 0:\n"
        "        if os.fork() == 0: os.setsid(); os.execvp('sleep', ['sleep', '613'])\n"
        "        os._exit(0)"
    ),
    "child without environment": "subprocess.Popen(['/bin/sleep', '613'], env={})",
    "much output": "sys.stdout.write('x' * 5_000_000)",
    "cleared import hooks": "sys.meta_path.clear()",
    "instrumented library": (
        "import functools\n"
        "    threading.Thread.start = functools.wraps(threading.Thread.start)("
        "lambda self, start=threading.Thread.start: start(self))\n"
        "    json.dumps = functools.wraps(json.dumps)(lambda *a, f=json.dumps, **k: f(*a, **k))"
    ),
    "answer of its own class": (
        "return type('Text', (str,), {'__len__': lambda _: -1, '__str__': None})('yes')"
    ),
}


def suite(folder: Path, body: str, *, plain: bool = False, **options: Any) -> None:
    """One case that attacks among six that do not; they take a little, so that they meet it."""
    call = "asyncio.to_thread(hostile, input)" if plain else "hostile(input)"
    (folder / "bots.py").write_text(
        f"{HEAD}{'' if plain else 'async '}def hostile(input):\n    {body}\n    return 'yes'\n\n"
        "async def innocent(input):\n    await asyncio.sleep(0.05)\n    return 'yes'\n\n"
        "async def bot(input):\n"
        "    if input != 'attack': return await innocent(input)\n"
        f"    return await {call}\n"
    )
    cases = [
        {"id": text, "input": text, "correctness": {"expected_in_answer": ["yes"]}}
        for text in ("i0", "i1", "attack", "i2", "i3", "i4", "i5")
    ]
    written = {"version": 1, "agent": "bots:bot", "cases": cases, **options}
    (folder / "suite.yaml").write_text(yaml.safe_dump(written))


def results(folder: Path, *args: Any, limit: float = 1) -> dict[str, dict[str, Any]]:
    """Run the suite; its trials by case, each exactly once."""
    line = ("run", "suite.yaml", "--trials", 1, "--timeout", limit, "--quiet", *args)
    done = proctor(*line, cwd=folder, timeout=180)
    assert done.returncode in (0, 1), done.stderr
    trials = journal(only_run(folder / "results"))
    assert sorted(t["case"] for t in trials) == ["attack", "i0", "i1", "i2", "i3", "i4", "i5"]
    found = {t["case"]: t for t in trials}
    innocent = [found[name] for name in found if name != "attack"]
    assert {(t["status"], t["score"], t["answer"]) for t in innocent} == {("passed", 1.0, "yes")}
    assert (found["attack"]["status"] == "passed") == (done.returncode == 0)
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_a_failure_of_its_own_trial(tmp_path: Path, name: str) -> None:
    """R-R1, R-R3, R-R11: the trial fails with the category of the attack; the others pass."""
    body, category = ATTACKS[name]
    suite(tmp_path, body, plain=name.startswith("plain"))
    attack = results(tmp_path)["attack"]
    assert (attack["status"], attack.get("category")) == ("failed", category), attack


# More of them, several in one run. They break the loop from within, stop or replace the process,
# fake its messages, or use up a resource.
TOGETHER: dict[str, dict[str, tuple[str, str]]] = {
    "loop": {
        "cancel all tasks": (
            "[task.cancel() for task in asyncio.all_tasks()]; await asyncio.sleep(60)",
            ERROR,
        ),
        "lost timers": (
            "lose(asyncio.get_running_loop()); await asyncio.sleep(60)",
            ERROR,
        ),
        "method of the loop": (
            "asyncio.get_running_loop().call_soon = print; await asyncio.sleep(60)",
            TIMEOUT,
        ),
        "class of the loop": ("asyncio.base_events.BaseEventLoop.call_later = None", ERROR),
        "patched Proctor": ("import proctor.trials.run_trial as r; r.evaluate = None", ERROR),
        "method of Proctor": ("import proctor.trace.capture as c; c.Recorder.__exit__ = 0", ERROR),
        "code of a function": (
            "import proctor.checks.evaluate as e; e.evaluate.__code__ = lose.__code__",
            ERROR,
        ),
        "method of a library": ("threading.Thread.start = print", ERROR),
        "closed coroutines": ("close_trials(); await asyncio.sleep(60)", ERROR),
        "lanes stopped": ("stop_lanes(); await asyncio.sleep(60)", TIMEOUT),
        "no more threads": (
            "import concurrent.futures.thread as t; t._shutdown = True; await asyncio.sleep(60)",
            ERROR,
        ),
        "GeneratorExit": ("raise GeneratorExit", ERROR),
        "error that cannot be printed": ("raise Mute", ERROR),
        "another running loop": (
            "asyncio._set_running_loop(asyncio.new_event_loop()); await asyncio.sleep(60)",
            ERROR,
        ),
        "deep group": ("raise nested_groups()", ERROR),
        "error that cannot be read": ("raise Unreadable", ERROR),
        "reply of other types": ("return AgentReply(answer='yes', trace=7)", ERROR),
    },
    "shared": {
        "umask": ("os.umask(0o777)", ERROR),
        "temporary files": ("tempfile.tempdir = '/nowhere'", ERROR),
        "patched re": ("re.search = lambda *a, **k: None", ERROR),
        "patched random": ("random.random = lambda: 0.5", ERROR),
        "patched subprocess": ("subprocess.Popen.wait = print", ERROR),
        "all descriptors used": ("use_descriptors()", ERROR),
    },
    "process": {
        "stopped parent": ("os.kill(os.getppid(), signal.SIGSTOP); os._exit(0)", ERROR),
        "stopped parent and blocked": (
            "os.kill(os.getppid(), signal.SIGSTOP); time.sleep(60)",
            TIMEOUT,
        ),
        "another program": ("os.execvp('true', ['true'])", ERROR),
        "forked and returned": ("os.fork(); await asyncio.sleep(60)", TIMEOUT),
        "timer": ("signal.setitimer(signal.ITIMER_REAL, 0.01); await asyncio.sleep(60)", ERROR),
        "no files to write": ("resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))", ERROR),
        "standard input": ("input()", ERROR),
    },
    "messages": {
        "forged message": ("forge(messages.Loaded()); await asyncio.sleep(60)", ERROR),
        "forged trial": (
            "forge_trial(request.trial); await asyncio.sleep(60)",
            TIMEOUT,
        ),
        "forged request": (
            "forge_request(1, 2, 3, 4); await asyncio.sleep(60)",
            TIMEOUT,
        ),
        # The keeper that replaces the one killed is forked while the journal is open.
        "killed keeper": ("os.kill(os.getppid(), signal.SIGKILL); await asyncio.sleep(60)", ERROR),
        "bytes to every descriptor": ("write_garbage(); await asyncio.sleep(60)", ERROR),
        "sockets closed": (
            "[each.close() for each in gc.get_objects() if isinstance(each, socket.socket)]",
            ERROR,
        ),
    },
    "resources": {
        "memory": ("kept = bytearray(2 ** 30); await asyncio.sleep(60)", RESOURCES),
        "memory of a child": (
            "subprocess.Popen([sys.executable, '-c', HOARD]); await asyncio.sleep(60)",
            RESOURCES,
        ),
        "endless output": (
            "while True: print('x' * 10_000); await asyncio.sleep(0)",
            RESOURCES,
        ),
        "output of a child": (
            "subprocess.Popen(['yes']); await asyncio.sleep(60)",
            RESOURCES,
        ),
        "fork bomb": (
            "while True:\n            if os.fork() == 0: time.sleep(60)",
            RESOURCES,
        ),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("group", TOGETHER)
def test_many_attacks_in_one_run(tmp_path: Path, group: str) -> None:
    """R-R1, R-R3, R-R11: each attack fails its own trial; the limits are those of the settings."""
    attacks = {name.replace(" ", "-"): attack for name, attack in TOGETHER[group].items()}
    limit = 20 if group == "resources" else 1
    if group == "resources":
        (tmp_path / "proctor.yaml").write_text(
            "limits: {worker_memory_mb: 700, worker_output_mb: 8, worker_processes: 100}\n"
        )
    branches = "".join(
        f"    if input == {name!r}:\n        {body}\n" for name, (body, _) in attacks.items()
    )
    (tmp_path / "bots.py").write_text(
        f"{HEAD}{FORGE}async def bot(input, request):\n{branches}"
        "    await asyncio.sleep(0.05)\n    return 'yes'\n"
    )
    names = [name for each in attacks for name in (f"beside-{each}", each)]
    cases = [
        {"id": name, "input": name, "correctness": {"expected_in_answer": ["yes"]}}
        for name in names
    ]
    written = {"version": 1, "agent": "bots:bot", "cases": cases}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(written))
    line = ("run", "suite.yaml", "--trials", 1, "--timeout", limit, "--quiet")
    done = proctor(*line, cwd=tmp_path, timeout=300, input="not for agents\n")
    assert done.returncode == 1, done.stderr
    trials = journal(only_run(tmp_path / "results"))
    assert sorted(trial["case"] for trial in trials) == sorted(names)
    for trial in trials:
        found = (trial["status"], trial.get("category"), trial.get("answer"))
        if trial["case"] in attacks:
            assert found == ("failed", attacks[trial["case"]][1], None), trial
        else:
            assert found == ("passed", None, "yes"), trial
    assert not [line for line in commands_running() if "bytearray(2 ** 30)" in line]


@pytest.mark.slow
def test_threads_that_never_end_take_none_from_other_trials(tmp_path: Path) -> None:
    """R-R1, R-R3: `asyncio.to_thread` of one trial does not wait for that of others."""
    (tmp_path / "bots.py").write_text(
        "import asyncio, time\n"
        "async def bot(input):\n"
        "    if input == 'hang': await asyncio.to_thread(time.sleep, 600)\n"
        "    await asyncio.to_thread(time.sleep, 0.01)\n"
        "    return 'yes'\n"
    )
    # More than an event loop has threads.
    cases = [
        {"id": f"{kind}{n}", "input": kind, "correctness": {"expected_in_answer": ["yes"]}}
        for n in range(40)
        for kind in ("hang", "work")
    ]
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"agent": "bots:bot", "cases": cases}))
    line = ("run", "suite.yaml", "--trials", 1, "--timeout", 5, "--concurrency", 80, "--quiet")
    assert proctor(*line, cwd=tmp_path, timeout=180).returncode == 1
    for trial in journal(only_run(tmp_path / "results")):
        expected = "failed" if trial["case"].startswith("hang") else "passed"
        assert trial["status"] == expected, trial


@pytest.mark.slow
def test_what_a_thread_does_after_its_trial_costs_no_other_trial(tmp_path: Path) -> None:
    """R-R1, R-R11: threads that cannot be stopped end with their worker, before others suffer."""
    (tmp_path / "bots.py").write_text(
        "import os, threading, time\n"
        "inside, endless = set(), set()\n"
        "def bot(input):\n"
        "    inside.add(threading.get_ident())\n"
        "    if input[0] == 'e': endless.add(threading.get_ident())\n"
        "    while input[0] == 'e': pass\n"
        "    until = time.process_time() + 0.05\n"
        "    time.sleep(0.05)\n"
        # By the time that endless threads use: a busy machine gives them little of it.
        "    while endless and time.process_time() < until: time.sleep(0.001)\n"
        "    inside.discard(threading.get_ident())\n"
        "    return f'{len(inside)} threads of {os.getpid()}'\n"
    )
    expected = {"expected_in_answer": ["threads"]}
    # Many innocents between: endless threads need a while to be seen to be so.
    kinds = [*"eeee", *("i" * 60), *"eeee", *("i" * 60)]
    names = [f"{kind}{n}" for n, kind in enumerate(kinds)]
    cases = [{"id": name, "input": name, "correctness": expected} for name in names]
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"agent": "bots:bot", "cases": cases}))
    line = ("run", "suite.yaml", "--trials", 1, "--timeout", 2, "--concurrency", 4, "--quiet")
    done = proctor(*line, cwd=tmp_path, timeout=180)
    assert done.returncode == 1, done.stderr
    trials = {trial["case"]: trial for trial in journal(only_run(tmp_path / "results"))}
    assert len(trials) == len(names)
    for name, trial in trials.items():
        expected = ("failed", "timeout") if name[0] == "e" else ("passed", None)
        assert (trial["status"], trial.get("category")) == expected, trial
    answers = [trial["answer"].split() for name, trial in trials.items() if name[0] == "i"]
    assert len({pid for *_, pid in answers}) > 1, "their worker was replaced"
    # Three other trials at that time, and at most one batch of four left behind.
    assert max(int(count) for count, *_ in answers) <= 7


@pytest.mark.slow
def test_processes_end_with_their_trial(tmp_path: Path) -> None:
    """R-R6: what a trial with its own process started ends with it, not with the run."""
    (tmp_path / "bots.py").write_text(
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "def bot(input):\n"
        "    running = [p for p in Path('/proc').glob('[0-9]*/cmdline') if seen(p)]\n"
        "    code = 'import os\\nif os.fork() == 0: os.setsid(); "
        'os.execve("/bin/sleep", ["sleep", "619"], {})\'\n'
        "    subprocess.run([sys.executable, '-c', code])\n"
        "    return f'{len(running)} left'\n"
        "def seen(path):\n"
        "    try: return 'sleep\\x00619' in path.read_text()\n"
        "    except OSError: return False\n"
    )
    case = {"input": "x", "correctness": {"expected_in_answer": ["0 left"]}}
    agent = {"kind": "python", "target": "bots:bot", "isolation": "process"}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"agent": agent, "cases": [case]}))
    line = ("run", "suite.yaml", "--trials", 3, "--concurrency", 1, "--quiet")
    done = proctor(*line, cwd=tmp_path)
    grouped = ProcessGroup("test").available
    assert done.returncode == 0 or not grouped, done.stdout + done.stderr
    assert not [line for line in commands_running() if "sleep\0619" in line]


def test_groups_of_killed_workers_are_removed(tmp_path: Path) -> None:
    """R-R6: where a worker and the process that ends it were both killed, the next one removes the
    group they left, and leaves those of running processes alone."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, alive = tmp_path / f"proctor-{gone.pid}", tmp_path / f"proctor-{os.getpid()}"
    (left / "proctor-0a1b").mkdir(parents=True)
    alive.mkdir()
    remove_left_groups(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [alive.name]


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
def test_a_worker_that_dies_leaves_no_private_directories(tmp_path: Path, kept: bool) -> None:
    """R-R6, R-N6: nothing is left in the temporary folder; with --keep-workdirs, nothing empty."""
    (tmp_path / "bots.py").write_text(
        "import os\n"
        "def bot(input, workdir):\n"
        "    if input == 'full': (workdir / 'a').write_text('b')\n"
        "    os._exit(3)\n"
    )
    cases = [
        {"input": name, "trials": 2, "correctness": {"expected_in_answer": ["x"]}}
        for name in ("empty", "full")
    ]
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"agent": "bots:bot", "cases": cases}))
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "proctor", "run", "suite.yaml", "--quiet"]
        + (["--keep-workdirs"] if kept else []),
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    left = list((tmp_path / "temporary").iterdir())
    assert bool(left) == kept
    assert all(list(folder.iterdir()) for folder in left)


@pytest.mark.parametrize("name", NUISANCES)
def test_a_nuisance_changes_nothing(tmp_path: Path, name: str) -> None:
    """R-R1, R-R6: the trial passes, and nothing it started outlives the command."""
    suite(tmp_path, NUISANCES[name])
    assert results(tmp_path, limit=20)["attack"]["status"] == "passed"
    assert not [line for line in commands_running() if "sleep\0613" in line]


def commands_running() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "change",
    [
        "journal.unlink()",
        "journal.rename(journal.with_name('kept')); journal.write_bytes(b'')",
        "os.truncate(journal, 0)",
        "journal.open('ab').write(b'{}\\n')",
        "journal.write_bytes(journal.read_bytes() * 2)",
    ],
)
def test_a_journal_that_an_agent_changes_is_no_success(tmp_path: Path, change: str) -> None:
    """R-R9, R-R11: all trials pass, but what is stored is not what ran: exit code 2, and why."""
    body = f"for journal in HERE.glob('results/*/*/trials.jsonl'): {change}"
    (tmp_path / "bots.py").write_text(
        f"{HEAD}async def bot(input):\n    if input == 'bad':\n        {body}\n    return 'yes'\n"
    )
    cases = [
        {"id": name, "input": name, "correctness": {"expected_in_answer": ["yes"]}}
        for name in ("first", "bad", "last")
    ]
    written = {"version": 1, "agent": "bots:bot", "cases": cases}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(written))
    line = ("run", "suite.yaml", "--trials", 1, "--concurrency", 1, "--sync", "always")
    done = proctor(*line, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert "while the run was writing it" in done.stderr


# Trials that end one turn of the event loop after the other, while the worker answers the driver:
# the last one to go on blocks the loop until that answer is due.
ENDING = """
import asyncio, time

turns = []

async def bot(number):
    with open("started", "a") as file:
        file.write(f"{number}\\n")
    loop = asyncio.get_running_loop()
    while True:
        asked = [t for t in asyncio.all_tasks() if t.get_coro().__name__ == "_pong"]
        due = [h for t in asked for h in loop._scheduled if t._fut_waiter in (h._args or ())]
        if due:
            break
        await asyncio.sleep(0.01)
    while loop.time() < due[0].when() - 0.1:
        await asyncio.sleep(0)
    for _ in range(20 - int(number)):
        await asyncio.sleep(0)
    if number == "0":
        time.sleep(max(0, due[0].when() - loop.time() + 0.01))
    return "yes"
"""


def test_trials_that_end_as_the_worker_answers_run_once(tmp_path: Path) -> None:
    """R-R3: an honest worker is not taken for a damaged one, which would repeat its trials."""
    (tmp_path / "bots.py").write_text(ENDING)
    cases = [{"id": f"c{n}", "input": f"{n}"} for n in range(20)]
    suite = {"version": 1, "agent": "bots:bot", "cases": cases}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    line = ("run", "suite.yaml", "--trials", 1, "--concurrency", 20, "--quiet")
    proctor(*line, cwd=tmp_path, timeout=180)
    assert len(journal(only_run(tmp_path / "results"))) == 20
    started = (tmp_path / "started").read_text().split()
    assert sorted(started, key=int) == [str(number) for number in range(20)]


def test_what_agents_print_is_obeyed_by_nothing(tmp_path: Path) -> None:
    """R-N6: neither a terminal nor a build log obeys what an agent prints, also in two pieces."""
    (tmp_path / "loud.py").write_text(
        "import sys\n"
        "def answer(question):\n"
        "    print('::stop-commands::x')\n"
        "    print('  ::error::y', '##vso[task.complete]')\n"
        "    sys.stdout.write(':'); sys.stdout.flush(); sys.stdout.write(':set-output::z\\n')\n"
        "    print('a\\x1b]52;c;aGk=\\x07b \\x1b[31mred\\x1b[0m \\u202etxt')\n"
        "    print('the end without a line', end='')\n"
        "    return 'Paris'\n"
    )
    (tmp_path / "suite.yaml").write_text(
        "version: 1\nagent: loud:answer\ncases:\n"
        "  - {input: x, correctness: {expected_in_answer: [Paris]}}\n"
    )
    done = proctor("run", "suite.yaml", "--trials", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stderr.splitlines()]
    assert not [line for line in lines if line.startswith("::") or "##vso[" in line]
    assert ": :stop-commands::x" in lines
    assert ": :set-output::z" in lines
    assert "ab \x1b[31mred\x1b[0m txt" in lines
    assert "the end without a line" in done.stderr
