"""Agents that attack their process: each is its own failure, and changes nothing beside it.

Every variant runs through the command line, among trials that do nothing wrong: they keep the
results they have without it, and the command reports what happened with the exit code of a
failed cell.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import proctor
from run_parts import journal, only_run

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
    assert (attack["status"], attack["category"]) == ("failed", category), attack.get("error")


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
