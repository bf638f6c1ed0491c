"""`proctor report`: report on a run as HTML, Markdown, charts or text."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from proctor.cli._command import Command
from proctor.cli._options import (
    FOLDER,
    checked_run,
    complete_runs,
    format_options,
    open_run,
    option,
    results_option,
)
from proctor.cli._output import echo_report
from proctor.files import write_atomic
from proctor.user_dirs import with_folder

if TYPE_CHECKING:
    from proctor.report.facts import ReportFacts
    from proctor.runs.run import Run

IN_RUN = "report.html in the run folder"


@click.command(cls=Command)
@click.argument("run", shell_complete=complete_runs)
@option(
    "--html [FILE]",
    "page",
    f"Write a self-contained HTML file.  [default: {IN_RUN}]",
    is_flag=False,
    flag_value="",
)
@option("--open", "show", "Open the HTML file in a browser.", is_flag=True)
@option("--markdown", "as_markdown", "Print Markdown.", is_flag=True)
@option("--charts", "Write charts to this folder.", type=FOLDER)
@option(
    "--chart-format",
    "forms",
    "The format of charts; repeatable.  [default: png]",
    choices=["png", "svg"],
    multiple=True,
)
@option("--tables", "Write the tables behind the charts to this folder.", type=FOLDER)
@option(
    "--table-format",
    "table_forms",
    "The format of tables; repeatable.  [default: csv]",
    choices=["csv", "latex"],
    multiple=True,
)
@option(
    "--against RUN|TAG",
    "Compare with this run.  [default: the run of the same experiment tagged `baseline`]",
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
    tables: Path | None,
    table_forms: tuple[str, ...],
    formats: tuple[str, ...],
    outputs: tuple[str, ...],
    against: str | None,
    root: Path,
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
      # figures and tables for a paper
      proctor report RUN --charts charts --chart-format svg
      proctor report RUN --tables tables --table-format latex
    """
    from proctor.report.facts import ReportFacts, tagged_baseline
    from proctor.report.outputs import plan_outputs, write_outputs

    if forms and charts is None:
        raise click.UsageError("--chart-format needs --charts DIR")
    if table_forms and tables is None:
        raise click.UsageError("--table-format needs --tables DIR")
    if as_markdown:
        formats = ("markdown", *formats)
    # Without GitHub's variables: a report of an old run is not a result of this job.
    planned = plan_outputs(formats, outputs, {}) if formats or outputs else []
    found = open_run(run, root)
    before = tagged_baseline(found) if against is None else checked_run(open_run(against, root))
    facts = ReportFacts(found, baseline=before)
    # `--html` without a file has the value "", which means the run folder.
    if page is not None or show:
        _write_page(found, facts, Path(page) if page else found.path / "report.html", show)
    if charts is not None or tables is not None:
        from proctor.report.charts import write_charts, write_tables

        # `--chart-format png --chart-format png` draws each chart once.
        drawn = [(write_charts, charts, form) for form in dict.fromkeys(forms or ("png",))]
        drawn += [(write_tables, tables, form) for form in dict.fromkeys(table_forms or ("csv",))]
        for write, folder, form in drawn:
            for path in write(facts, folder, cast("Any", form)) if folder is not None else ():
                click.echo(str(path), err=True)
    if planned:
        write_outputs(facts, planned, {})
    elif page is None and not show and charts is None and tables is None:
        from proctor.report.console import render

        echo_report(render(facts).rstrip("\n"))


def _write_page(run: Run, facts: ReportFacts, target: Path, show: bool) -> None:
    from proctor.report import charts
    from proctor.report.html.page import render_page

    checked_run(run)
    made = render_page(run, facts)
    write_atomic(with_folder(target), made.text.encode())
    click.echo(f"{target}: {made.size / 1e6:.1f} MB, self-contained", err=True)
    # The page is complete without the package: tables take the place of charts.
    if not charts.available():
        click.echo(f"for interactive charts: {charts.INSTALL}", err=True)
    if show and click.launch(str(target)) != 0:
        click.echo(f"could not open a browser; open {shlex.quote(str(target))} yourself", err=True)
