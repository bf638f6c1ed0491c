"""`proctor mcp`: Proctor as an MCP server for coding agents, and checks of other MCP servers.

Guarantees: an answer has at most `MAX_ANSWER` characters and says what was cut. Trials run in a
process of their own (`proctor run`), so nothing an agent prints reaches the protocol; a call that
the client cancels stops its run, which can be resumed.
"""

# No postponed annotations: the server reads those of its tools, whose names are local.

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import Field

from proctor import __version__, api
from proctor.cli._command import Command, CommandGroup
from proctor.cli._options import json_option, key_values, option
from proctor.cli._output import echo_json
from proctor.errors import ProctorError
from proctor.formatting import and_more, plural
from proctor.imports import absent_extra
from proctor.sanitize import line, printable
from proctor.strict import read_strict

MAX_ANSWER = 8000
"""Characters of an answer: about 2,000 tokens, of which a coding agent reads several."""

MAX_LISTED = 40
"""Rows of a list."""

MAX_SUITE = 10_000_000
"""Bytes of a YAML file that may be a suite: a larger one is data."""

SKIPPED = {".git", ".venv", "venv", "node_modules", "results", "site-packages", "__pycache__"}
"""Folders in which no suite is looked for."""

INSTRUCTIONS = """Proctor runs LLM agents many times and says what broke, where, and whether a
change is real. Usual order: list_suites, run_suite, failures, trace of one failing trial, diagnose;
fix the agent; run_suite again; compare both runs. One trial proves little: use trials >= 5."""

RunName = Annotated[str, Field(description="A run as list_runs names it, a tag, or `latest`.")]


@click.group(name="mcp", cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def mcp(ctx: click.Context) -> None:
    """Serve Proctor to coding agents (MCP), and lint MCP servers.

    Without a subcommand, speaks MCP on standard input and output until the client leaves. Needs
    the extra `mcp`. Suites and results are those of the working folder. To register it with
    Claude Code: claude mcp add proctor -- proctor mcp

    Examples:
      # check the tools of a server
      proctor mcp lint -- python my_server.py
    """
    if ctx.invoked_subcommand is None:
        asyncio.run(_server().run_stdio_async())


# -- Proctor's own server --------------------------------------------------------------------------


def _server() -> Any:
    try:
        from mcp.server.mcpserver import Context, MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise absent_extra("proctor mcp", "mcp") from None
    server = MCPServer("proctor", version=__version__, instructions=INSTRUCTIONS, log_level="ERROR")

    # Text alone: clients would show a model the same text again, as JSON.
    def reading(function: Callable[[], str]) -> str:
        try:
            return _bounded(function())
        except ProctorError as error:
            raise ToolError(f"{error}; {error.hint}" if error.hint else str(error)) from None

    @server.tool(structured_output=False)
    def list_suites() -> str:
        """List the suites of the project, with the number of cases and the agent of each."""
        return reading(_list_suites)

    @server.tool(structured_output=False)
    async def run_suite(
        target: Annotated[str, Field(description="A suite or experiment file; the run to resume.")],
        ctx: Context,  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
        trials: Annotated[
            int | None, Field(description="Trials per case; at least 5 to judge a change.", ge=1)
        ] = None,
        agent: Annotated[str | None, Field(description="Another agent than the suite's.")] = None,
        cases: Annotated[
            str | None, Field(description="Only matching cases: an id, id1,id2 or tag:smoke.")
        ] = None,
        resume: Annotated[bool, Field(description="Continue the run named by target.")] = False,
    ) -> str:
        """Run every case of a suite several times, store the run, and report what broke.

        Takes as long as the agent does and reports progress. A cancelled run can be resumed.
        """
        words = ["run", "--json"]
        words += [f"--trials={trials}"] if trials is not None else []
        words += [f"--agent={agent}"] if agent is not None else []
        words += [f"--filter={cases}"] if cases is not None else []
        words += [f"--resume={target}"] if resume else ["--", target]

        async def progress(done: int, planned: int, message: str) -> None:
            await ctx.report_progress(done, planned, message)

        code, output, problem = await _run_command(words, progress)
        try:
            runs: list[dict[str, Any]] = _documents(output)
        except ValueError:
            raise ToolError(line(problem or f"proctor run ended with {code}", 2000)) from None
        names = [str(each.get("path") or "") for each in runs]
        return reading(lambda: "\n\n".join(_report(name) for name in names))

    @server.tool(structured_output=False)
    def list_runs() -> str:
        """List the stored runs, the newest first, with their pass rates."""
        return reading(_list_runs)

    @server.tool(structured_output=False)
    def failures(run: RunName = "latest") -> str:
        """Show what failed in a run: checks by harm, then each failing trial with its reason."""
        return reading(lambda: _failures(run))

    @server.tool(structured_output=False)
    def trace(
        trial: Annotated[
            str, Field(description="A trial as failures names it: case/agent/seed/index.")
        ],
        run: RunName = "latest",
        max_spans: Annotated[int, Field(description="The most steps to show.", ge=1)] = 60,
    ) -> str:
        """Show one trial: its checks, its answer and what the agent did, step by step."""
        return reading(lambda: _trace(run, trial, max_spans))

    @server.tool(structured_output=False)
    async def diagnose(
        run: RunName = "latest",
        details: Annotated[
            bool, Field(description="Every finding of every failing trial.")
        ] = False,
    ) -> str:
        """Find why the trials of a run failed: the decisive step, grouped by shared cause."""
        words = ["diagnose", "--failed", *(["--details"] if details else []), "--", run]
        code, output, problem = await _run_command(words)
        if code:
            raise ToolError(line(problem, 2000))
        return _bounded(output)

    @server.tool(structured_output=False)
    async def compare(
        before: Annotated[str, Field(description="The run before the change.")],
        after: Annotated[str, Field(description="The run after the change, or `latest`.")],
    ) -> str:
        """Compare two runs: whether the difference is real, with intervals and each case."""
        code, output, problem = await _run_command(["compare", "--", before, after])
        if code and not output:
            raise ToolError(line(problem, 2000))
        return _bounded(output)

    return server


def _bounded(text: str) -> str:
    # Text of agents may hold anything; a client shows it in a terminal.
    text = "\n".join(printable(each) for each in text.strip().split("\n"))
    if len(text) <= MAX_ANSWER:
        return text
    return f"{text[:MAX_ANSWER]}\n… [cut: {MAX_ANSWER:,} of {len(text):,} characters]"


async def _run_command(words: list[str], progress: Any = None) -> tuple[int, str, str]:
    """Run a command of Proctor: its exit code, its output, and its last words on the other stream.

    Cancelling this sends the command SIGINT, as Ctrl-C does, and waits until it has stopped.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "proctor",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
        limit=1 << 26,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    said: list[str] = []

    async def follow(stream: asyncio.StreamReader) -> None:
        planned = done = 0
        async for raw in stream:
            text = raw.decode(errors="replace").strip()
            event: dict[str, Any] = {}
            if text.startswith('{"event"'):
                with contextlib.suppress(ValueError):
                    event = json.loads(text)
            elif text:
                said[:] = [*said[-4:], text]
            if event.get("event") == "planned":
                planned += int(event.get("trials", 0))
                done += int(event.get("kept", 0))
            elif event.get("event") == "finished" and progress is not None:
                done += 1
                await progress(done, planned, f"{event.get('case')}: {event.get('status')}")

    try:
        output, _ = await asyncio.gather(child.stdout.read(), follow(child.stderr))
        code = await child.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGINT)
        # Not in this task: it is being cancelled, and the run must stop in order.
        stopping = asyncio.ensure_future(child.wait())
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(stopping)
        raise
    return code, output.decode(errors="replace"), "\n".join(said)


def _documents(output: str) -> list[dict[str, Any]]:
    """Return the summaries that `proctor run --json` printed: one, or several under `runs`."""
    document: dict[str, Any] = json.loads(output)
    return list(document.get("runs") or [document])


def _list_suites() -> str:
    from proctor.spec import load_suite

    rows: list[str] = []
    for folder, folders, names in os.walk("."):
        folders[:] = sorted(each for each in folders if each not in SKIPPED and each[0] != ".")
        for name in sorted(names):
            path = Path(folder) / name
            # A pipe would be waited for, and a link may lead nowhere.
            if path.suffix not in (".yaml", ".yml") or not path.is_file():
                continue
            try:
                if path.stat().st_size > MAX_SUITE:
                    continue
                head = path.read_text(encoding="utf-8", errors="replace")
                if not any(key in f"\n{head}" for key in ("\ncases:", "\nqueries:")):
                    continue
                suite = load_suite(path, need_agent=False)
            except (OSError, ProctorError) as error:
                rows.append(f"{path}: cannot be read: {line(str(error), 200)}")
                continue
            ids = and_more([case.id for case in suite.cases], 5, str)
            rows.append(f"{path}: {plural(len(suite.cases), 'case')} ({ids})")
    return _rows(rows) or "no suites here; `proctor init` writes one to start from"


def _rows(rows: list[str]) -> str:
    more = [f"… and {len(rows) - MAX_LISTED} more"] if len(rows) > MAX_LISTED else []
    return "\n".join([*rows[:MAX_LISTED], *more])


def _list_runs() -> str:
    from proctor.runs.folder import all_runs
    from proctor.runs.run import Run

    root = api.results_root()
    rows: list[str] = []
    found = all_runs(root)[::-1]
    for path in found[:MAX_LISTED]:
        name = path.relative_to(root).as_posix()
        try:
            totals = Run(path).totals
        except ProctorError as error:
            rows.append(f"{name}: cannot be read: {line(str(error), 200)}")
            continue
        rate = "n/a" if totals.pass_rate is None else f"{totals.pass_rate:.0%}"
        rows.append(f"{name}: {plural(totals.trials, 'trial')}, {rate} of {totals.judged} passed")
    if len(found) > MAX_LISTED:
        rows.append(f"… and {len(found) - MAX_LISTED} more")
    return "\n".join(rows) or "no runs yet"


def _report(name: str) -> str:
    from proctor.report import console
    from proctor.report.facts import ReportFacts

    return click.unstyle(console.render(ReportFacts(api.open_run(name))))


def _failures(name: str) -> str:
    from proctor.report.console import failure_lines

    run = api.open_run(name)
    rows: list[str] = []
    for trial in run.trials():
        if trial.passed:
            continue
        first = next((each for each in trial.checks if each.status in ("fail", "warn")), None)
        reason = trial.error.message if trial.error else "" if first is None else first.reason
        rows.append(f"{trial.name}  {trial.status.value}: {line(reason, 160)}")
    if not rows:
        return f"{run.path}: every trial passed ({run.totals.trials})"
    head = [click.unstyle(each) for each in failure_lines(run.failures)]
    count = f"{plural(len(rows), 'trial')} of {run.totals.trials} did not pass:"
    return "\n".join([*head, *([""] if head else []), count, _rows(rows)])


def _trace(name: str, wanted: str, most: int) -> str:
    from proctor.runs.trial import named_trial
    from proctor.trace.render import header, tree_lines

    run = api.open_run(name)
    trial = named_trial(run.trials(), wanted, name)
    lines = [f"{trial.name}  {trial.status.value}"]
    if trial.error:
        lines.append(f"error {trial.error.type}: {line(trial.error.message, 400)}")
    lines += [
        f"check {each.id}: {each.status.value} {line(each.reason, 200)}".rstrip()
        for each in trial.checks
    ]
    lines.append(f"answer: {line(trial.answer or '', 1000)}")
    trace = run.trace(trial)
    if trace is None:
        return "\n".join([*lines, "no trace was stored"])
    return "\n".join(
        [*lines, *header(trace), *(each.plain() for each in tree_lines(trace, max(1, most)))]
    )


@mcp.command(cls=Command)
def skill() -> None:
    """Print a SKILL.md that says how to work with Proctor.

    Examples:
      # for Claude Code, in this project
      proctor mcp skill > .claude/skills/proctor/SKILL.md
    """
    from importlib.resources import files

    click.echo(files("proctor.data").joinpath("SKILL.md").read_text(encoding="utf-8"), nl=False)


# -- other servers ---------------------------------------------------------------------------------


@mcp.command(cls=Command)
@click.argument("command", nargs=-1)
@option("--url", "Address of a server that speaks streamable HTTP.")
@option(
    "--header", "A header for --url: NAME=VALUE; repeatable.", multiple=True, callback=key_values
)
@option(
    "--probe",
    "Call each tool with wrong arguments, too: every such call must be an error.",
    is_flag=True,
)
@json_option
@click.pass_context
def lint(
    ctx: click.Context,
    command: tuple[str, ...],
    url: str | None,
    header: dict[str, str],
    probe: bool,
    as_json: bool,
) -> None:
    """Check the names, descriptions and schemas of a server's tools.

    Exits with 1 if there are errors, with 2 if the server cannot be used. Warnings are what makes
    a model choose the wrong tool or guess an argument. For calls with expected results, and for
    the choice of tools over many trials, write a suite (kind `mcp`, or `chat` with `mcp_servers`).

    Examples:
      # a program
      proctor mcp lint -- python my_server.py
      # an address, and how it takes wrong calls
      proctor mcp lint --url http://127.0.0.1:8000/mcp --probe
    """
    from proctor.agents.mcp import McpConnection, McpServer, lint_tools
    from proctor.agents.mcp import probe as probe_server

    given = {"command": list(command), "url": url, "headers": header}
    server = read_strict(McpServer, given, "the server")

    async def look() -> tuple[int, list[Any]]:
        connection = McpConnection("server", server, None, Path.cwd())
        try:
            await connection.open()
            found = lint_tools(connection.tools)
            return len(connection.tools), found + (await probe_server(connection) if probe else [])
        finally:
            await connection.close()

    count, found = asyncio.run(look())
    if as_json:
        echo_json({"tools": count, "findings": [each._asdict() for each in found]})
    else:
        for each in found:
            click.echo(str(each))
        errors = sum(each.level == "error" for each in found)
        rest = plural(len(found) - errors, "warning")
        click.echo(f"{plural(count, 'tool')}: {plural(errors, 'error')}, {rest}", err=True)
    if any(each.level == "error" for each in found):
        ctx.exit(1)
