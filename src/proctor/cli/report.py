"""`proctor report`: report on a run as HTML, Markdown, charts or text."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from proctor import api
from proctor.cli._command import Command
from proctor.cli._options import FOLDER, format_options, open_run, results_option
from proctor.cli._output import echo_report

if TYPE_CHECKING:
    from proctor.report.facts import ReportFacts
    from proctor.runs.run import Run

IN_RUN = "report.html in the run folder"


@click.command(cls=Command)
@click.argument("run")
@click.option(
    "--html",
    "page",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help=f"Write a self-contained HTML file.  [default: {IN_RUN}]",
)
@click.option("--open", "show", is_flag=True, help="Open the HTML file in a browser.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option("--charts", type=FOLDER, help="Write charts to this folder.")
@click.option(
    "--chart-format",
    "forms",
    type=click.Choice(["png", "svg"]),
    multiple=True,
    help="The format of charts; repeatable.  [default: png]",
)
@click.option(
    "--against",
    metavar="RUN|TAG",
    help="Compare with this run.  [default: the run of the same experiment tagged `baseline`]",
)
@format_options
@results_option
def report(
    *,
    run: str,
    page: str | None,
    show: bool,
    as_markdown: bool,
    charts: Path | None,
    forms: tuple[str, ...],
    formats: tuple[str, ...],
    outputs: tuple[str, ...],
    against: str | None,
    results: Path | None,
) -> None:
    """Report on a run (HTML, Markdown, charts, terminal).

    RUN is a run folder, a tag, or `latest`. Without options, prints a summary.

    Examples:
      # open the latest run in a browser
      proctor report latest --open
      # one self-contained file
      proctor report RUN --html report.html
      # compare with the run tagged `main`
      proctor report RUN --against main
      # for a pull request
      proctor report RUN --markdown > report.md
      # figures for a paper
      proctor report RUN --charts charts --chart-format svg
    """
    from proctor.report.facts import ReportFacts, tagged_baseline
    from proctor.report.outputs import plan_outputs, write_outputs

    if forms and charts is None:
        raise click.UsageError("--chart-format needs --charts DIR")
    if as_markdown:
        formats = ("markdown", *formats)
    # Without GitHub's variables: a report of an old run is not a result of this job.
    planned = plan_outputs(formats, outputs, {}) if formats or outputs else []
    root = api.results_root(results)
    found = open_run(run, root)
    before = tagged_baseline(found) if against is None else open_run(against, root)
    facts = ReportFacts(found, baseline=before)
    # `--html` without a file has the value "", which means the run folder.
    if page is not None or show:
        _write_page(found, facts, Path(page) if page else found.path / "report.html", show)
    if charts is not None:
        from proctor.report.charts import Format, write_charts

        # `--chart-format png --chart-format png` draws each chart once.
        for form in dict.fromkeys(forms or ("png",)):
            for path in write_charts(facts, charts, cast("Format", form)):
                click.echo(str(path), err=True)
    if planned:
        write_outputs(facts, planned, {})
    elif page is None and not show and charts is None:
        from proctor.report.console import render

        echo_report(render(facts).rstrip("\n"))


def _write_page(run: Run, facts: ReportFacts, target: Path, show: bool) -> None:
    from proctor.files import write_atomic
    from proctor.report import charts
    from proctor.report.html.page import render_page
    from proctor.user_dirs import with_folder

    made = render_page(run, facts)
    write_atomic(with_folder(target), made.text.encode())
    click.echo(f"{target}: {made.size / 1e6:.1f} MB, self-contained", err=True)
    # The page is complete without the package: tables take the place of charts.
    if not charts.available():
        click.echo(f"for interactive charts: {charts.INSTALL}", err=True)
    if show and click.launch(str(target)) != 0:
        click.echo(f"could not open a browser; open {shlex.quote(str(target))} yourself", err=True)
