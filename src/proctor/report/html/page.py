"""The report of a run as one HTML file.

Guarantees: the file makes no request, and its content security policy forbids any; it stays below
`MAX_BYTES` up to tens of thousands of trials; text of agents is shown as text. Trade-off: not
every trace fits. Failing trials come first, and the page says how many are left out and where
they are.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from proctor.errors import ProctorError
from proctor.files import write_atomic
from proctor.formatting import plural
from proctor.llm.chat_model import cache_folder
from proctor.report import charts
from proctor.report.charts import config
from proctor.report.facts import ReportFacts, TrialRow
from proctor.report.html._context import FUNCTIONS, report_context, section_links
from proctor.report.html.trial_data import (
    MAX_TEXT,
    PackedTrials,
    PageTexts,
    cut,
    deflated,
    harm_first,
    pack_trials,
)
from proctor.runs.plan_order import row_order
from proctor.runs.run import Run
from proctor.runs.trial import Trial
from proctor.sanitize import visible
from proctor.trace.redact import Redactor, default_redactor

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_BYTES = 2_900_000
"""Bytes of a page: mail and chat accept 3 MB, and a browser opens it in under two seconds."""

MAX_ROWS = 20_000
"""Trials listed; at about 45 bytes each they leave two thirds of the page to traces."""

RESERVED_BYTES = 60_000
"""Kept free for what is added after trials are packed: links to trials, the list of contents."""

MAX_CASE_TEXT = 300_000
"""Characters of the inputs of all cases together, before packing."""

STYLES = ("theme.css", "report.css")
SCRIPTS = ("core.js", "trials.js", "trial.js", "figures.js", "main.js")


class ReportPage(NamedTuple):
    """The text of a page, a description of its contents, and the number of redacted secrets."""

    text: str
    inside: tuple[str, ...]
    redacted: int

    @property
    def size(self) -> int:
        """Bytes of the page."""
        return len(self.text.encode())


def render_page(
    run: Run,
    facts: ReportFacts,
    *,
    redactor: Redactor | None = None,
    with_charts: bool | None = None,
) -> ReportPage:
    """Return the whole page. Charts are interactive where the extra `charts` is installed."""
    # Redacted again: patterns or the environment may have changed since the run.
    texts = PageTexts(redactor or default_redactor())
    facts = _redacted(facts, texts)
    # Without the extra `charts` the page has tables in their place.
    drawn = charts.available() if with_charts is None else with_charts
    chart_blocks = _chart_blocks(facts) if drawn else ""
    sections = environment().get_template("sections.html")

    # Trials fill whatever the rest of the page leaves, so the rest is rendered first, without
    # the links that only packing can decide.
    draft = sections.render(report_context(facts, rows={}, listed=0, contents=()))
    fixed = sum(len(part.encode()) for part in (draft, chart_blocks, _style(), _script()))
    trials = _trial_blocks(run, facts, texts, MAX_BYTES - fixed - RESERVED_BYTES)

    cells = plural(len(facts.cells), "cell")
    shown = "interactive charts" if drawn else "tables in place of charts"
    removed = (
        f"removed {plural(texts.redacted, 'secret')}" if texts.redacted else "found no secrets"
    )
    contents = (
        f"Verdicts of {cells}, leaderboard, ranked failures, cost, {shown}.",
        *trials.contents,
        f"Redaction was applied again and {removed}.",
    )
    context = report_context(facts, rows=trials.rows, listed=trials.listed, contents=contents)
    hashes = [_digest(_script()), *([vega().digest] if drawn else [])]
    scripts = " ".join(f"'{each}'" for each in hashes)
    text = (
        environment()
        .get_template("page.html")
        .render(
            # Only our style and scripts run, by their hashes; nothing is fetched.
            policy=(
                f"default-src 'none'; script-src {scripts}; style-src '{_digest(_style())}'; "
                "img-src data: blob:; base-uri 'none'; form-action 'none'"
            ),
            title=f"{facts.verdict}: {facts.name}",
            style=_style(),
            links=section_links(context),
            install_charts=None if drawn else charts.INSTALL,
            sections=sections.render(context),
            data="\n".join((*trials.blocks, chart_blocks)),
            script=_script(),
        )
    )
    return ReportPage(text, contents, texts.redacted)


@cache
def environment() -> Environment:
    """Return the template engine: every value is made visible, then escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    def printed(value: Any) -> Any:
        # What is markup already came from a template and was escaped there.
        if hasattr(value, "__html__"):
            return value
        return "" if value is None else visible(str(value))

    found: Any = Environment(
        loader=PackageLoader("proctor.report.html"),
        autoescape=True,
        # A misspelt variable is an error, not an empty place in the page.
        undefined=StrictUndefined,
        finalize=printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals.update(FUNCTIONS)
    return found


def _redacted(facts: ReportFacts, texts: PageTexts) -> ReportFacts:
    """Return the facts without secrets in anything that users or agents wrote."""
    cases = {
        name: msgspec.structs.replace(
            about,
            case=texts.name(about.case),
            input=texts.text(about.input) or "",
            description=texts.text(about.description),
        )
        for name, about in facts.cases.items()
    }
    return facts.replace(
        name=texts.name(facts.name),
        failures=texts.redact(facts.failures),
        cases=cases,
        notes=texts.redact(facts.notes),
        research=texts.redact(facts.research),
        profile=texts.redact(facts.profile),
        stopped=texts.text(facts.stopped),
        remarks=tuple(texts.text(remark) for remark in facts.remarks),
    )


# -- the data that scripts read ------------------------------------------------------------------


class _TrialBlocks(NamedTuple):
    """Blocks of trial data, and what they hold: sentences, and the row of each trial by name."""

    blocks: Sequence[str]
    contents: Sequence[str]
    listed: int
    rows: Mapping[str, int]


def _trial_blocks(run: Run, facts: ReportFacts, texts: PageTexts, budget: int) -> _TrialBlocks:
    """Return the list of trials, the inputs of cases, and as many details as the budget holds."""
    trials, rows = _listed(run, facts.rows)
    table = columns(
        TrialRow._fields,
        rows,
        {"start_ms": 1, "duration_ms": 1, "latency_ms": 1, "cost_usd": 9},
    )
    # Many cases share the space, but each keeps enough text to be recognised.
    share = max(200, MAX_CASE_TEXT // max(1, len(facts.cases)))
    about = [msgspec.structs.replace(c, input=cut(c.input, share)) for c in facts.cases.values()]
    cases = _block("cases", deflated(msgspec.json.encode(about)))
    spent = len(data_block("trials", table)) + len(cases)
    # The places of details become two more columns: at most 12 characters a row.
    packed = pack_trials(trials, run.trace, texts, budget - spent - 12 * len(rows))
    table["block"] = [place and place[0] for place in packed.places]
    table["place"] = [place and place[1] for place in packed.places]
    # Failures and annotations name trials by either name. Several trials may share the short
    # one; the first of them is linked.
    row_of: dict[str, int] = {}
    for at, trial in enumerate(trials):
        row_of.setdefault(trial.short_name, at)
        row_of[trial.name] = at
    return _TrialBlocks(
        blocks=[
            data_block("trials", table),
            cases,
            *(_block(f"details-{at}", text) for at, text in enumerate(packed.blocks)),
        ],
        contents=_packed_contents(packed, trials, facts),
        listed=len(rows),
        rows=row_of,
    )


def _listed(run: Run, rows: Sequence[TrialRow]) -> tuple[list[Trial], list[TrialRow]]:
    """Return the listed trials and their rows in the same order: all of them, or the worst."""
    # The worst are selected, then shown in the order of the plan.
    worst = harm_first((row.status, (row.case, row.arm)) for row in rows)[:MAX_ROWS]
    kept = [rows[at] for at in sorted(worst)]
    wanted = {row.key for row in kept}
    trials = [t for t in run.trials() if (t.case, t.cell.arm, t.axis_seed, t.index) in wanted]
    return sorted(trials, key=row_order), charts.shown_rows(kept)


def _packed_contents(
    packed: PackedTrials, trials: Sequence[Trial], facts: ReportFacts
) -> list[str]:
    traced = sum(trial.trace is not None for trial in trials)
    detailed, total = len(trials) - packed.without, plural(facts.totals.trials, "trial")
    where = f"; the others are in {facts.path}/traces" if packed.traces < traced else ""
    lines = [
        f"{packed.traces:,} of {plural(traced, 'trace')}, those of failing trials first{where}.",
        f"Answers and checks of {detailed:,} of {total}, texts cut at {MAX_TEXT:,} characters.",
    ]
    if packed.unreadable:
        lines.append(f"{plural(packed.unreadable, 'trace')} could not be read back.")
    return lines


def _chart_blocks(facts: ReportFacts) -> str:
    """Return chart specs, their tables (trials have their own block) and Vega itself."""
    tables = {
        name: columns(table.names, table.rows, {"cost": 9})
        for name, table in charts.datasets(facts).items()
        if name != "trials"
    }
    # An exported image needs a background; in the page the page's own is visible.
    themes = {"light": {**config("light"), "background": "transparent"}, "dark": config("dark")}
    value = {"specs": charts.specs(facts), "tables": tables, "themes": themes}
    licence = f'<script type="text/plain" id="vega-licence">{_file("vega-licence.txt")}</script>'
    return "\n".join((data_block("charts", value), licence, _block("vega", vega().packed)))


def columns(
    names: Sequence[str], rows: Sequence[Sequence[Any]], digits: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return rows as columns by name, with each distinct text stored once.

        {"case": {"words": ["a", "b"], "at": [0, 0, 1]}, "score": [1, 0.5, null]}

    Floats keep `digits` decimals, 4 by default. `rowsOf` in core.js turns columns into rows.
    """

    def short(value: Any, kept: int) -> Any:
        if not isinstance(value, float):
            return value
        # `1.0` takes two characters more than `1`, once per trial and column.
        rounded = round(value, kept)
        return int(rounded) if rounded == int(rounded) else rounded

    table: dict[str, Any] = {}
    for at, name in enumerate(names):
        values = [row[at] for row in rows]
        if any(isinstance(value, str) for value in values):
            words = {word: place for place, word in enumerate(dict.fromkeys(values))}
            table[name] = {"words": list(words), "at": [words[value] for value in values]}
        else:
            table[name] = [short(value, (digits or {}).get(name, 4)) for value in values]
    return table


def data_block(name: str, value: Any) -> str:
    """Return JSON as a script block that no text inside it can end.

    Without `<` neither `</script>` nor `<!--` can occur.
    """
    text = msgspec.json.encode(value).decode()
    for sign, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(sign, code)
    text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="data-{name}">{text}</script>'


def _block(name: str, content: str) -> str:
    return f'<script type="text/plain" id="data-{name}">{content}</script>'


# -- code and its policy -------------------------------------------------------------------------


class Vega(NamedTuple):
    """Vega, Vega-Lite and Vega-Embed as one packed script, and its hash."""

    packed: str
    digest: str


@cache
def vega() -> Vega:
    """Return the Vega bundle of vl-convert.

    Bundling takes seconds, so the result is cached on disk by vl-convert's version.
    """
    import vl_convert

    cached = cache_folder("vega") / f"{metadata.version('vl-convert-python')}.js.z"
    code: str | None = None
    with contextlib.suppress(OSError, zlib.error, UnicodeDecodeError):
        code = zlib.decompress(cached.read_bytes()).decode()
    if code is None:
        # Without a snippet (which its types require) all of Vega is put on the window.
        code = _in_function(cast("Any", vl_convert).javascript_bundle())
        with contextlib.suppress(OSError, ProctorError):
            cached.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(cached, zlib.compress(code.encode(), 9))
    return Vega(deflated(code.encode()), _digest(code))


def _digest(code: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}"


@cache
def _style() -> str:
    return "\n".join(_file(name) for name in STYLES)


@cache
def _script() -> str:
    return _in_function('"use strict";\n' + "\n".join(_file(name) for name in SCRIPTS))


def _in_function(code: str) -> str:
    """Return a script with names of its own: the Vega bundle has thousands of short ones."""
    return f"(() => {{\n{code}\n}})();"


def _file(name: str) -> str:
    return (files("proctor.report.html") / name).read_text(encoding="utf-8")
