"""Options, arguments and parameter types that several commands share.

Modules that take long to import (pydantic, the specification, object stores) are imported inside
the functions: a command pays only for the options it uses.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click
from click.core import ParameterSource

from proctor import api
from proctor.errors import ProctorError, did_you_mean
from proctor.report.outputs import FORMATS
from proctor.sanitize import printable
from proctor.user_dirs import settings_may_exist

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from pydantic import BaseModel

    from proctor.llm.chat_model import ChatModel
    from proctor.runs.run import Run
    from proctor.runs.trial import Trial
    from proctor.trace.redact import Redactor

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def settings_redactor() -> Redactor:
    """Return the redactor with the patterns of the settings, if there are any."""

    if not settings_may_exist(Path(), os.environ):
        from proctor.trace.redact import default_redactor

        return default_redactor()  # reading settings takes longer than a small trace
    return api.settings().settings.redactor()


# -- completion ----------------------------------------------------------------------------------
# The shell waits while these run: they read files, and never the code of users.


def _completes(
    candidates: Callable[[click.Context], Iterable[str]], *, files: bool = False
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a completion of the last name of a list `a,b`; `files` where a path may stand."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        before, comma, last = incomplete.rpartition(",")
        try:
            names = dict.fromkeys(map(printable, candidates(ctx)))
        except Exception:  # noqa: BLE001 (a tab must not print a traceback)
            names = {}
        found = [CompletionItem(before + comma + n) for n in names if n.startswith(last)]
        # Where nothing fits, it is a path, which the shell completes.
        return found or ([CompletionItem(incomplete, type="file")] if files else [])

    return complete


def _known_runs(ctx: click.Context) -> Iterable[str]:
    from proctor.runs.annotations import tagged
    from proctor.runs.folder import LATEST, all_runs

    root = Path(ctx.params.get("root") or api.results_root())
    runs = all_runs(root)
    yield from [LATEST] if runs else []
    yield from (each.name for each in tagged(root))
    yield from (str(run.relative_to(root)) for run in reversed(runs))


def _named_parts(ctx: click.Context) -> tuple[list[str], list[str], list[str]]:
    """Return agents, cases and tags of the suites on the line, else of its run or the latest."""
    from proctor.results.outcomes import case_properties
    from proctor.runs.run import Run
    from proctor.spec import load_suite

    # While an option waits for its value, click leaves the arguments of the line in `args`.
    given = [ctx.params.get(name) for name in ("suites", "targets", "suite", "run", "runs")]
    words = [
        *ctx.args,
        *(str(w) for g in given for w in ((g,) if isinstance(g, str | Path) else g or ())),
    ]
    suites = [Path(word) for word in words if Path(word).is_file()]
    if suites:
        loaded = [load_suite(path, need_agent=False) for path in suites]
        cases = [case for suite in loaded for case in suite.cases]
        agents = [name for suite in loaded for name in suite.all_agents]
        return agents, [case.id for case in cases], [tag for case in cases for tag in case.tags]
    run = Run(api.find_run(words[0] if words else "latest", results=ctx.params.get("root")).path)
    written = case_properties(run.spec).values()
    tags = [str(tag) for case in written for tag in case.get("tags") or ()]
    return [cell.agent for cell in run.cells], [cell.case for cell in run.cells], tags


def _known_agents(ctx: click.Context) -> Iterable[str]:
    from proctor.agents.registry import named_agents

    with contextlib.suppress(ProctorError):
        yield from _named_parts(ctx)[0]
    yield from api.settings().settings.agents
    yield from named_agents()


complete_runs = _completes(_known_runs)
complete_runs_or_files = _completes(_known_runs, files=True)
complete_agents = _completes(_known_agents)
complete_cases = _completes(lambda ctx: _named_parts(ctx)[1])
complete_tags = _completes(lambda ctx: _named_parts(ctx)[2])
complete_files = _completes(lambda ctx: (), files=True)

COMPLETED = {
    **dict.fromkeys(("--agent", "--agents", "--a", "--b"), complete_agents),
    **dict.fromkeys(("--case", "--cases", "--filter", "--must-pass"), complete_cases),
    **dict.fromkeys(("--tag", "--tags"), complete_tags),
    "--run": complete_runs,
}
"""Options whose values are names of the project; those that take a RUN are completed as well."""


# -- parameter types and small options -----------------------------------------------------------

PROBABILITY = click.FloatRange(0, 1, min_open=True, max_open=True)
"""A confidence or significance level: nothing can be concluded at exactly 0 or 1."""

ONE_SIDED = click.FloatRange(0, 0.5, min_open=True, max_open=True)
"""The error rate of a one-sided test: from 0.5 on, a coin would do as well."""

POSITIVE = click.FloatRange(0, min_open=True)
"""Seconds or a factor: 0 would do nothing."""

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
PORT = click.IntRange(0, 65535)


class Duration(click.ParamType[float]):
    """A duration such as `30d`, `12h` or `90s`, in seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the seconds of a number with a unit."""
        # A unit is required: a bare number could be meant as seconds or as days.
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", str(value).strip())
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is not a duration such as 30d, 12h or 90s", param, ctx)
        seconds = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
        return float(found[1]) * seconds[found[2]]


DURATION = Duration()


def option(
    *declared: str, choices: Iterable[str] | None = None, **settings: Any
) -> Callable[[Decorated], Decorated]:
    """Declare an option as click does, with the placeholder of its value and with its help.

    @option("--name NAME", "The name of the schedule.", default="nightly")
    """
    *names, text = declared
    spelled = [name.partition(" ") for name in names]
    placeholder = next((found for _, _, found in spelled if found), None)
    if choices is not None:
        settings["type"] = click.Choice(list(choices))
    elif "RUN" in (placeholder or ""):
        settings["shell_complete"] = complete_runs_or_files
    elif "type" not in settings and spelled[0][0] in COMPLETED:
        settings["shell_complete"] = COMPLETED[spelled[0][0]]
    flags = [flag for flag, _, _ in spelled]
    return click.option(*flags, metavar=placeholder, help=text, **settings)


# A decorator can be applied to any number of commands: each gets its own option.
json_option = option("--json", "as_json", "Print one JSON document.", is_flag=True)
estimand_option = option(
    "--estimand",
    "What a figure is about: exactly these cases and instances, or cases like these.",
    choices=("suite", "population"),
    default="suite",
)
events_option = option(
    "--json", "as_json", "Print events to stderr and one JSON document to stdout.", is_flag=True
)
quiet_option = option("--quiet", "Show no progress.", is_flag=True)
timeout_option = option("--timeout SECONDS", "Time limit per case.", type=POSITIVE)
# `run` has the same option from its `RunOptions`.
max_not_judged_option = option(
    "--max-not-judged X",
    "The share of trials that may end without a verdict; above it the exit code is 2."
    "  [default: 0.05]",
    type=click.FloatRange(0, 1),
)
margin_option = option(
    "--margin X",
    "The smallest drop in pass rate or score that matters: 0.05 is 5 points.",
    type=PROBABILITY,
    default=0.05,
)
alpha_option = option(
    "--alpha X",
    "The significance level: how often an unchanged agent may be called a regression.",
    type=ONE_SIDED,
    default=0.05,
)
must_pass_option = option(
    "--must-pass PATTERN", "Cases that may never fail; repeatable.", multiple=True
)
agents_option = option(
    "--agent AGENT", "agents", "Override the suite's agent; repeatable.", multiple=True
)
tags_option = option("--tags A,B", "Only cases with one of these tags.", multiple=True)
host_option = option(
    "--host",
    "The address to listen on. Non-local addresses require a token: --token, or a generated "
    "one in the URL that is printed.",
    default="127.0.0.1",
)


def filter_option(
    entries: str, example: str = "difficulty:hard"
) -> Callable[[Decorated], Decorated]:
    """Add `--filter`, as `expression`, to a command that lists or runs these entries."""
    return option(
        "--filter EXPR",
        "expression",
        f"Only matching {entries}, e.g. {example}.",
        default="",
        show_default=False,
    )


def count_option(name: str, help: str) -> Callable[[Decorated], Decorated]:  # noqa: A002 (the keyword of click)
    """Add an option that takes a number of at least 1; None if it is not given."""
    return option(f"{name} N", help, type=click.IntRange(min=1))


concurrency_option = count_option("--concurrency", "Trials to run at the same time.")


def split_names(texts: Sequence[str]) -> list[str]:
    """Return the names of a repeatable option, each value of which may be a list `a,b`."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def key_values(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Read `NAME=VALUE`, each name once; the callback of an option."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(
                f"{value!r} is not {param.metavar or 'NAME=VALUE'}", ctx, param
            )
        if name.strip() in found:
            raise click.BadParameter(f"{name.strip()!r} is given twice", ctx, param)
        found[name.strip()] = text
    return found


def require_server_extra() -> None:
    """Raise an error that names the extra `server` where its packages are missing."""
    from proctor.imports import needs_extra

    for package in ("starlette", "uvicorn"):
        needs_extra(package, "server")


# The key under which click's context carries --log-level to the callback of --log-file.
_LOG_LEVEL = "proctor.log_level"


notify_on_option = option(
    "--notify-on",
    "When to notify; repeatable.  [default: end]",
    multiple=True,
    choices=("end", "failure", "regression", "budget"),
)


def log_options(function: Decorated) -> Decorated:
    """Add `--log-file` and `--log-level`; the log file is open while the command runs."""

    def remember(ctx: click.Context, _param: click.Parameter, value: str) -> None:
        ctx.meta[_LOG_LEVEL] = value

    def open_log(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
        if value is None:
            refuse_unused("log_level", "without --log-file", "add --log-file FILE")
            return
        from proctor.ops.logs import logging_to

        # Closed by click when the command ends, however it ends.
        ctx.with_resource(logging_to(value, ctx.meta[_LOG_LEVEL]))

    # Eager: read before --log-file, which needs it.
    level = option(
        "--log-level",
        "The lowest level to log.",
        choices=("debug", "info", "warning", "error"),
        default="info",
        is_eager=True,
        expose_value=False,
        callback=remember,
    )
    file = option(
        "--log-file FILE",
        "Log to this file; rotated at 10 MB, 5 files kept.",
        type=FILE,
        expose_value=False,
        callback=open_log,
    )
    return file(level(function))


# -- the results folder and its runs -------------------------------------------------------------


def folder_or_address(value: str) -> Path | str:
    """Return a path, or an address such as s3://bucket/prefix as text."""
    if ":/" not in value:  # not an address: the import of object stores can be skipped
        return Path(value)
    from proctor.runs.remote.object_store import checked, is_address

    return checked(value) if is_address(value) else Path(value)


def results_option(function: Decorated) -> Decorated:
    """Add `--results`, as `root`, the folder of runs, to a command that needs a local folder."""

    def local(ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
        # Without this check an address would become a folder with a strange name.
        if value is not None and ":" in str(value):
            from proctor.runs.remote.object_store import is_address

            if is_address(value.as_posix()):
                raise ProctorError(
                    f"`{ctx.command_path}` needs a local results folder, not an address",
                    hint="`proctor runs sync ADDRESS FOLDER` downloads runs; `results`, `sql`, "
                    "`compare`, `leaderboard`, `gate`, `power`, `runs status` and `runs export` "
                    "read addresses",
                )
        # Settings take a moment to load, and the shell waits for completions.
        return value if ctx.resilient_parsing else api.results_root(value)

    text = "The results folder.  [default: the one in the settings]"
    return option("--results", "root", text, type=FOLDER, callback=local)(function)


def _readable_results_option(copy: Literal["queries", "runs"]) -> Callable[[Decorated], Decorated]:
    def folder(ctx: click.Context, _param: click.Parameter, value: str | None) -> Path | None:
        # The message that click has for a folder that is a file.
        if value is not None and Path(value).is_file():
            raise click.BadParameter(f"Directory {value!r} is a file.")
        return None if ctx.resilient_parsing else api.results_root(value, copy=copy, warn=warn)

    text = "The results folder, or an address (s3://…).  [default: the one in the settings]"
    return option("--results PATH", "root", text, callback=folder)


# Queries need less of a remote run than commands that open it, so less is copied for them.
readable_results_option = _readable_results_option("queries")
readable_runs_option = _readable_results_option("runs")


def open_run(text: str, root: Path) -> Run:
    """Open a local run by its path, `<experiment>/<date>_<seq>`, a tag, or `latest`."""
    from proctor.runs.folder import find_run
    from proctor.runs.run import Run

    return Run(find_run(text, root))


def read_run(text: str, root: Path) -> Run:
    """Open a run to read: as `open_run` does, or by its address."""
    return checked_run(api.open_run(text, results=root, warn=warn))


def run_or_files(name: str) -> str:
    """Return the folder of a run by its name, a tag or `latest`; files and folders are themselves.

    A file or folder of that name wins, as for every path of a command.
    """
    if name == "-" or glob.has_magic(name) or Path(name).exists():
        return name
    try:
        return str(api.find_run(name).path)
    except ProctorError:
        # `trace.json` is meant as a file.
        if Path(name).suffix:
            raise ProctorError("no such file or folder", where=name, hint=near_file(name)) from None
        raise


def trial_or_files(name: str) -> tuple[Run, Trial] | str:
    """Return the trial of `RUN:TRIAL` with its run; anything else is as in `run_or_files`."""
    from proctor.runs.run import find_trial

    try:
        return run_or_files(name)
    except ProctorError:
        if ":" not in name:
            raise
    return find_trial(name, api.results_root())


def near_file(name: str) -> str | None:
    """Return the hint for a path that does not exist: files of its folder with a similar name."""
    path = Path(name)
    try:
        beside = [each.name for each in path.parent.iterdir()]
    except OSError:
        return None
    return did_you_mean(path.name, beside)


def checked_run(run: Run) -> Run:
    """Warn about what is damaged in its folder; return the run."""
    if run.problems:
        from proctor.report.figures import damage_note

        warn(damage_note(run))
    return run


def warn(text: str) -> None:
    """Print a warning to standard error."""

    click.echo(f"warning: {printable(text)}", err=True)


def record_audit(command: str, root: Path, **facts: Any) -> None:
    """Write to the audit log; if that fails, only warn: the command itself has succeeded."""
    from proctor.runs import audit

    if problem := audit.record(command, root, **facts):
        warn(problem)


def given_flags(names: Iterable[str]) -> list[str]:
    """Return the flags of those parameters that are on the command line."""
    context = click.get_current_context()
    wanted = set(names)
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in wanted
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def refuse_unused(names: str, why: str, hint: str | None = None) -> None:
    """Refuse options that would have no effect: their user would believe that they had one."""
    if flags := given_flags(names.split()):
        raise ProctorError(f"{' and '.join(flags)} would have no effect {why}", hint=hint)


# -- a chat model --------------------------------------------------------------------------------


def chat_model_options(help: str, *, several: bool = False) -> Callable[[Decorated], Decorated]:  # noqa: A002 (the keyword of click)
    """Add `--model` (`models` where it may be repeated), `--base-url` and `--api-key-env`."""
    model = option("--model", "models" if several else "model", help, multiple=several)
    url = option("--base-url", "An endpoint that speaks the provider's protocol.")
    key = option("--api-key-env", "The environment variable that holds the key.")

    def add(function: Decorated) -> Decorated:
        return model(url(key(function)))

    return add


def detector_options(function: Decorated) -> Decorated:
    """Add the options of methods of diagnosis that call a model."""
    # From the last to the first, because decorators apply from the bottom up.
    for added in (
        option(
            "--leads",
            "Whether the model is shown what the offline detector found.",
            choices=("none", "offline"),
            default="none",
        ),
        option(
            "--evidence",
            "--semantic-checks",
            "Whether a model's quotes must appear verbatim in the span.",
            choices=("strict", "off"),
            default="strict",
        ),
        option("--chunk", "For agentic, spans in a part.", type=click.IntRange(min=1), default=12),
        option(
            "--agents",
            "For agentic, parts investigated at most.",
            type=click.IntRange(min=1),
            default=8,
        ),
        option(
            "--reasoning-effort",
            "Effort of a model that reasons.",
            choices=("minimal", "low", "medium", "high"),
        ),
        option(
            "--prompt-size",
            "Characters of a trace in one prompt.",
            type=click.IntRange(min=1000),
            default=120_000,
        ),
        option(
            "--prompt-version",
            "v1, v2, or a text file with your own instructions.",
            default="v2",
        ),
    ):
        function = added(function)
    return function


def chat_model(name: str, options: Mapping[str, Any]) -> ChatModel:
    """Return the model of that name, with the endpoint and key of `chat_model_options`."""
    from proctor.llm.providers import get_model

    return get_model(name, base_url=options["base_url"], api_key_env=options["api_key_env"])


# -- options from the fields of a model ----------------------------------------------------------


class Names(click.ParamType[tuple[str, ...]]):
    """Several names in one value, separated by commas."""

    name = "NAMES"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split the value; one that came from Python is a tuple already."""
        if isinstance(value, tuple):
            return cast("tuple[str, ...]", value)
        names = tuple(part.strip() for part in str(value).split(",") if part.strip())
        # Rules may have a parameter: `sequential:0.01`.
        odd = [name for name in names if not re.fullmatch(r"\w+(:[\w.+-]*)?", name)]
        if odd:
            # An option whose value may be left out takes the word after it.
            flag = param.opts[0] if param is not None else "it"
            self.fail(f"{odd[0]!r} is not a name; put it before {flag}", param, ctx)
        return names


def options_of(
    model: type[BaseModel], *, spelled: Mapping[str, str], hidden: tuple[str, ...] = ()
) -> Callable[[Decorated], Decorated]:
    """Add an option for every field of a model, with the field's name, type and description.

    `spelled` gives shorter names. An option that is not given is None.
    """

    def add(function: Decorated) -> Decorated:
        # Decorators apply from the bottom up: reversed, --help has the order of the fields.
        for name, field in reversed(model.model_fields.items()):
            # What a field declares for the command line: hidden, or its value as a bare flag.
            extra = cast("dict[str, Any]", field.json_schema_extra or {})
            if name in hidden or extra.get("hidden"):
                continue
            kind = _bare_type(field.annotation)
            # Always None, so that an option that is not given leaves the setting alone.
            settings: dict[str, Any] = {"default": None}
            if kind is bool:
                settings["is_flag"] = True
            elif typing.get_origin(kind) is tuple:
                settings["type"] = Names()
                if "alone" in extra:
                    # Usually typed as a bare flag; names after it are for those who want others.
                    settings |= {"is_flag": False, "flag_value": extra["alone"]}
            elif isinstance(kind, type) and issubclass(kind, Enum):
                settings["type"] = click.Choice([str(member.value) for member in kind])
            else:
                metavar = "N" if kind is int else "X" if kind is float else "TEXT"
                settings |= {"type": kind, "metavar": metavar}
            flag = option_name(name, spelled)
            function = click.option(flag, name, help=field.description, **settings)(function)
        return function

    return add


def option_name(name: str, spelled: Mapping[str, str]) -> str:
    """Return `--max-tokens` for `max_tokens`."""
    return spelled.get(name) or "--" + name.replace("_", "-")


def check_options(
    model: type[BaseModel], given: Mapping[str, Any], *, spelled: Mapping[str, str]
) -> None:
    """Validate the options of a model; a usage error names the option with a bad value."""
    from pydantic import ValidationError

    try:
        model(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        from proctor.spec.validation import first_fault

        fault = first_fault(error)
        if not fault.loc:  # about several options together
            raise click.UsageError(fault.message) from None
        name = str(fault.loc[0])
        # The option replaces the field's name, which users of the command line do not know.
        message = fault.message.removeprefix(name).lstrip(": ")
        raise click.BadParameter(message, param_hint=option_name(name, spelled)) from None


def _bare_type(annotation: Any) -> Any:
    """Return a type without None and without annotations."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _bare_type(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        (kind,) = (each for each in typing.get_args(annotation) if each is not types.NoneType)
        return _bare_type(kind)
    return annotation


def format_options(function: Decorated) -> Decorated:
    """Add `--format` and `-o`, as `formats` and `outputs`."""
    formats = option(
        "--format",
        "formats",
        "Output format; repeatable.  [default: console]",
        multiple=True,
        choices=FORMATS,
    )
    outputs = option(
        "-o",
        "--output FILE",
        "outputs",
        "Output file; the first -o is for the first --format, and so on.",
        multiple=True,
    )
    return formats(outputs(function))
