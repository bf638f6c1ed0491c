"""`proctor ci`: run a suite in a CI job, gate it against the main branch's run, report to the host.

The verdict is the exit code, as of `gate`; without a run to compare with, as of `run`. What cannot
be written to the code host (a comment in the job of a fork) is never part of the verdict.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor import api
from proctor.cli import _options
from proctor.cli._command import Command
from proctor.cli._options import option
from proctor.cli._output import echo_report
from proctor.errors import EXIT_CANNOT_JUDGE, ProctorError
from proctor.files import write_atomic
from proctor.sanitize import line, markdown
from proctor.user_dirs import with_folder

if TYPE_CHECKING:
    from proctor.ops.code_hosts import HostClient
    from proctor.results.gate import GateResult, Policy
    from proctor.runs.run import Run


@click.command(
    cls=Command,
    groups={
        "Common options": "trials against margin inconclusive must_pass max_cost_usd name"
        " no_comment output",
        "Run": "concurrency timeout replay_from results quiet",
        "Gate": "alpha max_not_judged",
    },
)
@click.argument("target", shell_complete=_options.complete_files)
@_options.count_option("--trials", "Trials per case.  [default: the number of the case]")
@_options.concurrency_option
@_options.timeout_option
@option("--max-cost X", "max_cost_usd", "Cost limit of the run in dollars.", type=_options.POSITIVE)
@option("--replay FILE", "replay_from", "Replay model calls from a cassette.", type=_options.FILE)
@option(
    "--against RUN|TAG",
    "The run to compare with.  [default: on GitHub, the newest run of the base branch]",
)
@_options.margin_option
@_options.alpha_option
@_options.max_not_judged_option
@option("--inconclusive", "How to treat INCONCLUSIVE.", choices=("pass", "fail"), default="pass")
@_options.must_pass_option
@option("--name", "The name of the comment and the artifact.  [default: the experiment's]")
@option("--no-comment", "Write no comment, only the summary.", is_flag=True)
@option("-o", "--output FILE", "Write the comment to this Markdown file.", type=_options.FILE)
@option(
    "--results", "The results folder.  [default: the one in the settings]", type=_options.FOLDER
)
@_options.quiet_option
@click.pass_context
def ci(  # noqa: PLR0913 (each is an option)
    ctx: click.Context,
    target: str,
    *,
    against: str | None,
    must_pass: tuple[str, ...],
    inconclusive: Policy,
    max_not_judged: float | None,
    name: str | None,
    no_comment: bool,
    output: Path | None,
    results: Path | None,
    margin: float,
    alpha: float,
    quiet: bool,
    **given: Any,
) -> None:
    """Run, gate against the main branch, comment on the change.

    On GitHub the reference is the newest run of the base branch that the action has uploaded;
    elsewhere name it with --against. Writes annotations, the step summary and one comment, which
    the next push updates. Where the job may not comment (a fork), the summary has everything.

    Exits as `gate` does: 1 for a regression, 2 if it could not be judged, else 0. Without a run to
    compare with, as `run` does.

    Examples:
      # in a job on GitHub; elsewhere, run and report
      proctor ci suite.yaml --trials 10
      # compare with a tagged run, write a comment to post yourself
      proctor ci suite.yaml --trials 10 --against main -o comment.md
    """
    from proctor.cli.run import execute_run
    from proctor.ops.code_hosts import HostClient, host_from
    from proctor.report.console import render
    from proctor.report.console_results import render_gate
    from proctor.report.facts import ReportFacts
    from proctor.report.html.page import render_page
    from proctor.report.outputs import (
        Output,
        comment_text,
        in_actions,
        write_gate,
        write_outputs,
        write_step_summary,
    )
    from proctor.runs.audit import root_of
    from proctor.trials.target import find_target, folder_for, prepare_target

    # A wrong name is reported before any trial is run.
    reference = None if against is None else _options.read_run(against, api.results_root(results))
    contexts = prepare_target(find_target(target), {**given, "max_not_judged": max_not_judged})
    if len(contexts) > 1:
        raise ProctorError("a file with several experiments", where=target, hint="name one of them")
    name = name or contexts[0].name
    host, notes = host_from(os.environ), list[str]()
    with contextlib.ExitStack() as stack:
        client = None if host is None else stack.enter_context(HostClient(host))
        reference_name, unknown = against or "reference", False
        if client is not None and client.host.artifacts is not None and reference is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="proctor-ci-")))
            try:
                reference, reference_name = _main_run(client, name, place, notes)
            except ProctorError as error:
                # A gate without its reference has not passed: it was not judged.
                unknown = True
                notes.append(f"the run of {client.host.branch} could not be fetched: {error}")
                _options.warn(notes[-1])
                if error.hint:
                    click.echo(f"hint: {error.hint}", err=True)
        ended = execute_run(contexts[0], folder_for(contexts[0], results, name), quiet=quiet)
        facts = ReportFacts(ended.run, signal=ended.signal)
        facts.exit_code = code = ended.exit_code
        gate: GateResult | None = None
        if reference is not None and ended.signal is None:
            gate = api.gate(
                ended.run,
                reference,
                margin=margin,
                alpha=alpha,
                max_not_judged=max_not_judged,
                must_pass=must_pass,
            )
            code = gate.exit_code(inconclusive)
        elif unknown:
            code = code or EXIT_CANNOT_JUDGE
        verdict = facts.verdict if gate is None else gate.verdict
        report = ended.run.path / "report.html"
        write_atomic(report, render_page(ended.run, facts.replace(since=gate)).text.encode())
        text = comment_text(
            facts,
            verdict,
            result=gate,
            reference=reference,
            names=(reference_name, "this change"),
            notes=notes,
            link=f"{host.job_url}#artifacts" if host is not None and host.job_url else "",
        )
        known = len(notes)
        address = None if client is None or no_comment else _comment(client, name, text, notes)
        # The summary says why there is no comment; it takes the comment's place.
        text += "".join(f"\n> {markdown(note)}\n" for note in notes[known:])
    echo_report(f"{verdict}: {line(facts.headline)}" if quiet else render(facts).rstrip("\n"))
    if gate is not None:
        echo_report(f"\n{render_gate(gate)}")
    for note in notes:
        click.echo(f"note: {line(note)}")
    if output is not None:
        write_atomic(with_folder(output), text.encode("utf-8", "replace"))
    # Of a gated run only what got worse is annotated: cases that fail on both sides are no news.
    if gate is not None:
        write_gate(gate, ended.run, os.environ, text=text)
    else:
        write_outputs(facts, [Output("github")] if in_actions(os.environ) else [], {})
        write_step_summary(text, os.environ)
    if path := os.environ.get("GITHUB_OUTPUT"):
        outputs = {
            "verdict": verdict,
            "run": ended.run.path.resolve(),
            "report": report.resolve(),
            "artifact": artifact_name(name),
            "comment-url": address or "",
        }
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{key}={line(str(value), 4000)}\n" for key, value in outputs.items())
    _options.record_audit(
        "ci",
        root_of(ended.run.path),
        run=ended.run.path,
        run_id=ended.run.run_id,
        outcome=verdict if gate is None else f"{verdict}: {gate.reason}",
        exit_code=code,
    )
    ctx.exit(code)


def artifact_name(name: str) -> str:
    """Return the name under which the action uploads a run; GitHub allows no others."""
    return "proctor-" + re.sub(r"[^\w.-]+", "-", name)


def _main_run(
    client: HostClient, name: str, place: Path, notes: list[str]
) -> tuple[Run | None, str]:
    """Return the newest run of the base branch and its name; without one, None and a note."""
    from proctor.runs.run import Run

    branch = client.host.branch
    job = client.download_run(artifact_name(name), place)
    if job is None:
        notes.append(f"{branch} has no run yet, so there was nothing to compare with")
        return None, branch
    if not (place / "_spec_.yaml").is_file():
        raise ProctorError("there is no run in the artifact", where=artifact_name(name))
    return Run(place), f"{branch} {str(job.get('head_sha', ''))[:10]}".strip()


def _comment(client: HostClient, name: str, text: str, notes: list[str]) -> str | None:
    """Write or update the comment; what prevents it is a note, not a failure of the job."""
    from proctor.ops.code_hosts import CommentRefused

    host = client.host
    if host.comments is None:
        return None
    if not host.may_comment:
        missing = "the job of a fork may not comment"
        if host.kind == "gitlab":
            missing = "no GITLAB_TOKEN with the scope `api`, so no note was written"
        notes.append(f"{missing}; the summary has everything")
        return None
    try:
        return client.comment(name, text)
    except CommentRefused as error:
        notes.append(f"no comment: {error}; the summary has everything")
    except ProctorError as error:
        notes.append(f"no comment: {error}")
    return None
