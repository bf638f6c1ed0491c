"""The examples in `--help`: every command has one, each is understood, and those that need
neither a network, a model nor a terminal really work, in a folder such as they speak of."""

import gzip
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from proctor.cli._command import Command
from proctor.cli.main import cli
from proctor.cli.main import run as command

SUITE = {
    "version": 1,
    "agent": "agent:answer",
    "defaults": {"trials": 3},
    "cases": [
        {
            "id": name,
            "input": f"May I return order {name}?",
            "tags": ["smoke"],
            "difficulty": difficulty,
            "correctness": {"expected_in_answer": ["30 days"]},
            "path": {"expected_tools": ["search"]},
        }
        for name, difficulty in (("refund-1", "easy"), ("refund-2", "hard"), ("safety-1", "easy"))
    ],
}

AGENT = """
from proctor import tool

@tool
def search(query):
    return "Returns are possible within 30 days."

def answer(question):
    return search(question)
"""

TEMPLATE = """\
params: {size: {type: int, default: 4}}
input: !ev "'What is 2 plus ' + str(size) + '?'"
correctness: {expected_in_answer: [!ev "str(size + 2)"]}
solution: {agent: {kind: scripted, answers: [!ev "str(size + 2)"]}, min_score: 1}
"""

NOT_HERE = {
    "a model": r"--model |openai:|agent test shop|--change ",
    "a failed trial": r"^proctor (?:case from|fork|why) ",
    "a pull request": r"^proctor ci ",
    "another machine": r"s3://|ray://|postgresql://|http://|slack://|\$\{SLACK\}",
    "a browser, or a server that goes on": r"--open|^proctor (view|serve|mock-llm|gateway|mcp)"
    r"|schedule serve",
    "data that is not in this repository": r"^proctor trail|tasks/|jobs/|\.eval$"
    r"|labels\.csv|scored\.csv",
    "a store of live traces": r"^proctor store (stats|prune|export)",
    "a shell": r"[|<>]|^eval ",
    "an experiment over parameters": r"fast \(t=0\)",
    "long": r"--seeds 100|^proctor run .*--seeds 10|^proctor run mutualism --agent",
    "the home of a user": r"~/",
}
"""Why an example is only looked at, and those it is so for."""


def walk(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield f"{path} {name}", found
        if isinstance(found, click.Group):
            yield from walk(found, f"{path} {name}")


def every() -> list[tuple[str, str]]:
    """Command and line of every example."""
    named = [("proctor", cli), *walk(cli, "proctor")]
    return [
        (path, example.line)
        for path, found in named
        if isinstance(found, Command)
        for example in found.examples
    ]


def ours(line: str) -> list[list[str]]:
    """The arguments of each `proctor` in a line for a shell."""
    plain = re.sub(r"[<>]\s*\S+", "", line)
    inside = re.findall(r"\$\((.*?)\)", plain) or plain.split(" | ")
    return [shlex.split(part)[1:] for part in inside if part.strip().startswith("proctor")]


def test_every_command_has_an_example() -> None:
    """R-S6: every command shows how it is used."""
    shown = {path for path, _ in every()}
    silent = {path for path, _ in walk(cli, "proctor")} - shown
    assert not silent
    for path, line in every():
        assert path in line, f"{path}: {line}"


@pytest.mark.parametrize("line", sorted({line for _, line in every()}))
def test_examples_are_understood(line: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-S6: commands and options in examples exist, and their values are of the right kind."""
    monkeypatch.chdir(place)
    found = ours(line)
    assert found
    if "--results s3://" in line and not line.startswith("proctor run "):
        pytest.skip("an address is looked up while options are read")
    for args in found:
        group, context, rest = cli, cli.make_context("proctor", list(args)), list(args)
        while isinstance(group, click.Group):
            name, inner, rest = group.resolve_command(context, rest)
            assert inner is not None
            context = inner.make_context(name, rest, parent=context)
            rest = [*context._protected_args, *context.args]
            group = inner


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything the examples speak of."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        homes(patch, folder)
        write_files(folder)

        def do(line: str) -> None:
            assert command(shlex.split(line)) in (0, 1), line

        do("run suite.yaml --quiet --trials 1")
        do("baseline save suite.yaml --version v2")
        do("trace convert results/suite --to jsonl -o traces/all.jsonl")
        do("run suite.yaml --quiet --agents fast,careful,cheap --name shop")
        do("run suite.yaml --quiet --agents fast,careful,cheap --name shop")
        for run in sorted((folder / "results").glob("*/*_00*")):
            run.rename(run.with_name(re.sub(r"^.*_", "2026-01-31_", run.name)))
        for name in ("main",):
            do(f"runs tag shop/2026-01-31_001 {name}")
        do("scenario build mutualism.hidden_dependency --seed 7 -o meadow")
        do("scenario store meadow-7 meadow")
        do("schedule add exp.yaml --cron @daily")
        do("agent add shop --kind random")
        do("runs export latest -o trials.parquet")
        shutil.copytree(folder / "traces", folder / "runs")
        with gzip.open(folder / "runs" / "1.json.gz", "wb") as packed:
            packed.write((folder / "run.json").read_bytes())
        (folder / "traces" / "all.jsonl").rename(folder / "traces" / "one.jsonl")
    return folder


def write_files(folder: Path) -> None:
    from importlib.resources import files

    (folder / "agent.py").write_text(AGENT)
    agents = {
        name: {"kind": "python", "target": "agent:answer"}
        for name in ("fast", "careful", "cheap", "a", "b")
    }
    (folder / "proctor.yaml").write_text(yaml.safe_dump({"agents": agents}))
    suite = yaml.safe_dump(SUITE, sort_keys=False)
    for name in ("suite.yaml", "suite_v1.yaml", "suites/a.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(suite)
    (folder / "suites" / "agent.py").write_text(AGENT)
    experiment = {"cases": "mutualism.competition@easy", "agents": ["random"], "seeds": 2}
    for name in ("exp.yaml", "experiments/mutualism.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(yaml.safe_dump(experiment))
    template = folder / "catalog/my/scenario/spec.yaml"
    template.parent.mkdir(parents=True)
    template.write_text(TEMPLATE)
    (folder / "run.json").write_text((files("proctor.data") / "support_agent.json").read_text())
    (folder / "failed.yaml").write_text("{has_status: error}\n")
    (folder / "promptfooconfig.yaml").write_text(
        "prompts: ['{{q}}']\nproviders: [echo]\ntests: [{vars: {q: Hi}, assert: [{type: is-json}]}]"
    )
    (folder / "dataset.yaml").write_text("cases: [{inputs: Hi, evaluators: [{Contains: Hi}]}]")
    (folder / "samples.jsonl").write_text('{"input": "Hi", "target": "Hi"}')
    (folder / "grades.csv").write_text("question,points\nq1,90\nq2,40\n")
    data = Path(__file__).parent.parent / "results" / "data" / "promptfoo.json"
    (folder / "results.json").write_text(data.read_text(encoding="utf-8"))


def homes(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("HOME", str(folder))
    for kind in ("CACHE", "DATA", "STATE", "CONFIG"):
        patch.setenv(f"XDG_{kind}_HOME", str(folder / "home" / kind.lower()))


RUNNABLE = sorted(
    {line for _, line in every() if not any(re.search(p, line) for p in NOT_HERE.values())}
)

NEED_FIRST = {
    "proctor baseline diff suite.yaml --baseline v1": "baseline save suite.yaml --version v1",
    "proctor baseline list --suite": "baseline save suite.yaml --version v1",
    "proctor run suite.yaml --replay": "run suite.yaml --record calls.jsonl --quiet",
    "proctor schedule add": "schedule remove exp",
    "proctor store token list": "store token add ann --role writer",
    "proctor store token revoke": "store token add ann --role writer",
    "proctor store audit": "store token add ann --role writer",
}
"""What must have been done before examples that begin so."""

UNDECIDED = "proctor gate latest --against main --inconclusive extend"
"""Three trials a case settle nothing, and that is what it says (2)."""

ELSEWHERE = {
    "RUN": "results/shop/2026-01-31_002",
    "my_pkg.agent:answer": "agent:answer",
    "latest:refund/hasty/0/1": "latest:refund-1/fast/0/1",
}
"""What an example leaves to the user."""


@pytest.mark.slow
@pytest.mark.parametrize("line", RUNNABLE)
def test_examples_work(
    line: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R-S6: the examples in the help work as they are printed."""
    folder = shutil.copytree(place, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(folder)
    homes(monkeypatch, folder)
    for start, first in NEED_FIRST.items():
        if line.startswith(start):
            assert command(shlex.split(first)) in (0, 1)
            capsys.readouterr()
    if line.startswith("proctor scenario build"):
        shutil.rmtree("meadow")
    written = line
    for word, meant in ELSEWHERE.items():
        written = re.sub(rf"\b{re.escape(word)}\b", meant, written)
    args = [str(path) for arg in shlex.split(written)[1:] for path in globbed(arg)]
    code = command(args)
    said = capsys.readouterr()
    assert code in ((0, 1, 2) if line == UNDECIDED else (0, 1)), said.err
    assert "error:" not in said.err
    assert "Traceback" not in said.err


def globbed(argument: str) -> list[str]:
    """What a shell makes of a pattern."""
    if "*" not in argument or argument.startswith(("mutualism", "shop", "refund", "safety")):
        return [argument]
    return sorted(str(path) for path in Path().glob(argument)) or [argument]
