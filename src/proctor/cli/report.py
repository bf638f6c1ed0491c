"""`proctor report`: what a run says, as a page, as Markdown, as charts, or here."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proctor.cli._command import Command, Example
from proctor.cli._options import open_run, results_option, results_root
from proctor.cli._output import echo_report

if TYPE_CHECKING:
    from proctor.report.run_facts import ReportFacts
    from proctor.runs.run import Run

IN_RUN = "report.html in the run folder"

EXAMPLES = [
    Example("proctor report latest --open", "look at the last run in a browser"),
    Example("proctor report RUN --html report.html", "one file to send or keep"),
    Example("proctor report RUN --baseline main", "what changed since the run tagged `main`"),
    Example("proctor report RUN --markdown > report.md", "for a pull request"),
    Example("proctor report RUN --charts charts --format svg", "figures for a paper"),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("run")
@click.option(
    "--html",
    "page",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help=f"Write one HTML file that needs nothing else; without FILE, {IN_RUN}.",
)
@click.option("--open", "show", is_flag=True, help="Open the HTML file in a browser.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option(
    "--charts",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write charts to this folder.",
)
@click.option(
    "--format",
    "forms",
    type=click.Choice(["png", "svg"]),
    multiple=True,
    help="The format of charts; give it twice for both.  [default: png]",
)
@click.option(
    "--baseline",
    help="Compare with this run: a folder or a tag.  [default: the one of its experiment that is"
    " tagged `baseline`]",
)
@results_option
def report(
    *,
    run: str,
    page: str | None,
    show: bool,
    as_markdown: bool,
    charts: Path | None,
    forms: tuple[str, ...],
    baseline: str | None,
    results: Path | None,
) -> None:
    """Show what a run says: as a page, Markdown, charts, or here.

    RUN is a run folder, a tag, or `latest`. Without options the summary is printed here.
    """
    from proctor.report.run_facts import facts_of_run, tagged_baseline

    if forms and charts is None:
        raise click.UsageError("--format is for --charts: name a folder with --charts DIR")
    root = results_root(results)
    found = open_run(run, root)
    before = tagged_baseline(found) if baseline is None else open_run(baseline, root)
    facts = facts_of_run(found, baseline=before)
    if page is not None or show:
        _write_page(found, facts, Path(page) if page else found.path / "report.html", show)
    if charts is not None:
        _write_charts(facts, charts, forms or ("png",))
    if as_markdown:
        from proctor.report.markdown_run import render_run

        click.echo(render_run(facts), nl=False)
    elif page is None and not show and charts is None:
        from proctor.report.run_text import render_report

        echo_report(render_report(found, facts))


def _write_page(run: Run, facts: ReportFacts, target: Path, show: bool) -> None:
    from proctor.report import charts
    from proctor.report.html.page import render_page
    from proctor.runs.folder import write_atomic
    from proctor.user_dirs import room_for

    made = render_page(run, facts)
    write_atomic(room_for(target), made.text.encode())
    click.echo(f"{target}: {made.size / 1e6:.1f} MB, opens without a network", err=True)
    if not charts.available():
        click.echo(f"for interactive charts: {charts.INSTALL}", err=True)
    if show and click.launch(str(target)) != 0:
        click.echo(f"no browser could be opened; open {shlex.quote(str(target))}", err=True)


def _write_charts(facts: ReportFacts, folder: Path, forms: tuple[str, ...]) -> None:
    from typing import cast

    from proctor.report import charts

    for form in dict.fromkeys(forms):
        for path in charts.write_charts(facts, folder, cast("charts.Format", form)):
            click.echo(str(path), err=True)
