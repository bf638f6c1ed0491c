"""Templates and static files of the pages."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from proctor.errors import ProctorError
from proctor.formatting import DASH, duration_ms, money, percent
from proctor.report.html.page import FUNCTIONS
from proctor.sanitize import line, valid_unicode, visible
from proctor.server.auth import READS_ONLY, SIGNED_IN

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request

# File name → package, file in it, media type. Nothing else is served.
STATIC = {
    "theme.css": ("proctor.report.html", "theme.css", "text/css"),
    "core.js": ("proctor.report.html", "core.js", "text/javascript"),
    "viewer.css": ("proctor.server.pages", "static/viewer.css", "text/css"),
    "viewer.js": ("proctor.server.pages", "static/viewer.js", "text/javascript"),
    "trace.js": ("proctor.server.pages", "static/trace.js", "text/javascript"),
    "figures.js": ("proctor.server.pages", "static/figures.js", "text/javascript"),
    "arrivals.js": ("proctor.server.pages", "static/arrivals.js", "text/javascript"),
    "matrix.js": ("proctor.server.pages", "static/matrix.js", "text/javascript"),
    "trial.js": ("proctor.server.pages", "static/trial.js", "text/javascript"),
    "review.js": ("proctor.server.pages", "static/review.js", "text/javascript"),
    "review.css": ("proctor.server.pages", "static/review.css", "text/css"),
    "live.js": ("proctor.server.pages", "static/live.js", "text/javascript"),
}


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the template engine: every value is made visible, then escaped.

    Macros and the functions that templates may call are those of the report.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    packages = ("proctor.server.pages", "proctor.report.html")
    made: Any = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    ours = {"time": in_time, "ms": in_ms, "money": money, "brief": brief, "short": short}
    made.filters.update({**ours, "share": percent, "figure": in_figure})
    made.globals.update(FUNCTIONS, mark=mark)
    return made


def warm_up() -> None:
    """Compile the largest template and import what estimators need, before the first request.

    Both take as long as a page of a large run.
    """
    import numpy  # noqa: F401, ICN001  # pyright: ignore[reportUnusedImport]

    environment().get_template("run.html")


def _shown(value: Any) -> Any:
    # What is markup already came from a template and was escaped there.
    return visible(value) if type(value) is str else value


# The sign and the tone of each status of a trial and each verdict of a cell. Signs differ without
# colour, and are in the fonts of every system.
SIGNS = {
    "passed": ("✓", "good"),
    "failed": ("✕", "bad"),
    "hard fail": ("⊗", "bad"),
    "partial": ("◐", "bad"),
    "infra error": ("!", "odd"),
    "not judged": ("?", "odd"),
    "cancelled": ("–", "odd"),
    "not run": ("–", ""),
    "incomplete": ("…", "odd"),
}


class ShownStatus(NamedTuple):
    """A status or verdict as pages show it."""

    word: str
    sign: str
    tone: str


def mark(status: str) -> ShownStatus:
    """Return the word, the sign and the tone of a status or a verdict: `HARD FAIL`, `hard_fail`."""
    word = status.lower().replace("_", " ")
    word = {"pass": "passed", "fail": "failed"}.get(word, word)
    return ShownStatus(word, *SIGNS[word])


class Missing(Exception):
    """What a page is about does not exist: people get a page that says so, programs a line."""

    def __init__(self, what: str, name: str = "") -> None:
        super().__init__(f"no such {what}")
        self.what, self.name = what, name


def page(template: str, request: Request, /, status: int = 200, **values: Any) -> Response:
    """Render a page from its template."""
    here = request.url.path
    has = request.app.state.has
    reads_only = READS_ONLY in request.scope
    made = environment().get_template(template)
    text = made.render(
        here=here,
        has=has,
        reads_only=reads_only,
        signed_in=request.scope.get(SIGNED_IN),
        **values,
    )
    return HTMLResponse(valid_unicode(text), status_code=status)


def token_page(request: Request, *, wrong: bool) -> Response:
    """Ask a person for a token: the form opens the same page with it, once."""
    made = environment().get_template("token.html")
    asked = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
    text = made.render(asked=asked, wrong=wrong)
    return HTMLResponse(valid_unicode(text), status_code=401)


def sent_on(request: Request, address: str) -> Response:
    """Send a browser on after a form; a script follows the address on its own."""
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse({"next": address})
    return RedirectResponse(address, 303)


def suite_path(name: str, folder: Path) -> Path:
    """Return the path of a suite file, which must be below the folder."""
    here = folder.resolve()
    path = (here / name).resolve() if "\0" not in name else here
    if path.suffix not in (".yaml", ".yml") or not path.is_relative_to(here) or path == here:
        raise ProctorError(
            "a case is written to a YAML file below the folder of the server",
            where=name,
            hint="such as regression.yaml or suites/regression.yaml",
        )
    return path


def number_in(text: str | None, least: int, most: int) -> int:
    """Return a number of an address, moved into its range; the least for anything else."""
    # Python refuses to read numbers of thousands of digits.
    known = text is not None and text.isdecimal() and len(text) < 20
    return max(least, min(most, int(text or 0))) if known else least


class Query(dict[str, str]):
    """The query parameters of an address; missing ones are empty."""

    def __missing__(self, key: str) -> str:
        return ""


async def static_file(request: Request) -> Response:
    """Serve one of the files in `STATIC`."""
    found = STATIC.get(request.path_params["name"])
    if found is None:
        return Response("no such file", status_code=404, media_type="text/plain")
    package, name, kind = found
    content = resources.files(package).joinpath(name).read_bytes()
    return Response(content, media_type=kind, headers={"cache-control": "no-cache"})


def brief(text: object, limit: int = 120) -> str:
    """Return a text on one line, cut to `limit` characters."""
    return "" if text is None else line(text, limit)


def short(name: str | None, limit: int) -> str:
    """Return a name on one line of at most `limit` characters, cut in the middle.

    Names of cases and trials often differ only at their end.
    """
    whole = brief(name, 4 * limit)
    if len(whole) <= limit:
        return whole
    tail = limit * 2 // 3
    return f"{whole[: limit - tail - 1]}…{whole[-tail:]}"


def in_time(nanoseconds: int | None) -> str:
    """Return a time in UTC."""
    if nanoseconds is None:
        return DASH
    return f"{datetime.fromtimestamp(nanoseconds / 1e9, UTC):%Y-%m-%d %H:%M:%S}"


def in_ms(milliseconds: float | None) -> str:
    """Return a duration; a dash where it is unknown."""
    return duration_ms(milliseconds) or DASH


def in_figure(value: float | None) -> str:
    """Return a score."""
    return DASH if value is None else f"{value:.2f}"
