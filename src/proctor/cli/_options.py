"""Options, arguments and parameter types that several commands share.

Modules that take long to import (pydantic, the specification, object stores) are imported inside
the functions: a command pays only for the options it uses.
"""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from proctor.report.outputs import FORMATS

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from proctor.llm.chat_model import ChatModel
    from proctor.runs.run import Run
    from proctor.spec import Case, Suite
    from proctor.trials.options import RunOptions
    from proctor.trials.prepare import AgentLike

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Model = TypeVar("Model", bound="BaseModel")


# -- parameter types and small options -----------------------------------------------------------

PROBABILITY = click.FloatRange(0, 1, min_open=True, max_open=True)
"""A confidence or significance level: nothing can be concluded at exactly 0 or 1."""

POSITIVE = click.FloatRange(0, min_open=True)
"""Seconds or a factor: 0 would do nothing."""


class Duration(click.ParamType[float]):
    """A duration such as `30d`, `12h` or `90s`, in seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the seconds of a number with a unit."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", str(value).strip())
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is not a duration such as 30d, 12h or 90s", param, ctx)
        seconds = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
        return float(found[1]) * seconds[found[2]]


def json_option(function: Decorated) -> Decorated:
    """Add `--json`."""
    option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    return option(function)


def filter_option(function: Decorated) -> Decorated:
    """Add `--filter`, as `expression`."""
    option = click.option(
        "--filter",
        "expression",
        default="",
        metavar="EXPR",
        help="Only matching entries, e.g. difficulty:hard.",
    )
    return option(function)


def key_values(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Read `NAME=VALUE`, each name once; the callback of an option."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", ctx, param)
        if name.strip() in found:
            raise click.BadParameter(f"{name.strip()!r} is given twice", ctx, param)
        found[name.strip()] = text
    return found


def host_option(function: Decorated) -> Decorated:
    """Add `--host`, which defaults to this machine only."""
    option = click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="The address to listen on. Non-local addresses require --token.",
    )
    return option(function)


def require_server_extra() -> None:
    """Raise an error that names the extra `server` where its packages are missing."""
    from proctor.imports import needs_extra

    for package in ("starlette", "uvicorn"):
        needs_extra(package, "server")


_LOG_LEVEL = "proctor.log_level"


def log_options(function: Decorated) -> Decorated:
    """Add `--log-file` and `--log-level`; the log file is open while the command runs."""

    def remember(ctx: click.Context, _param: click.Parameter, value: str) -> None:
        ctx.meta[_LOG_LEVEL] = value

    def open_log(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
        if value is None:
            return
        from proctor.ops.logs import logging_to

        ctx.with_resource(logging_to(value, ctx.meta[_LOG_LEVEL]))

    level = click.option(
        "--log-level",
        type=click.Choice(("debug", "info", "warning", "error")),
        default="info",
        show_default=True,
        is_eager=True,  # read before --log-file, which needs it
        expose_value=False,
        callback=remember,
        help="The lowest level to log.",
    )
    file = click.option(
        "--log-file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        expose_value=False,
        callback=open_log,
        help="Log to this file; rotated at 10 MB, 5 files kept.",
    )
    return file(level(function))


# -- the results folder and its runs -------------------------------------------------------------


def folder_or_address(value: str) -> Path | str:
    """Return a path, or an address such as s3://bucket/prefix as text."""
    if ":/" not in value:  # spares the import
        return Path(value)
    from proctor.runs.remote.object_store import checked, is_address

    return checked(value) if is_address(value) else Path(value)


def results_option(function: Decorated) -> Decorated:
    """Add `--results` to a command that needs a local folder."""

    def local(ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
        # Without this check an address would become a folder with a strange name.
        if value is None or ":" not in str(value):
            return value
        from proctor.errors import ProctorError
        from proctor.runs.remote.object_store import is_address

        if not is_address(value.as_posix()):
            return value
        raise ProctorError(
            f"`{ctx.command_path}` needs a local results folder, not an address",
            hint="`proctor runs sync ADDRESS FOLDER` downloads runs; `results`, `sql`, `compare`, "
            "`leaderboard`, `gate`, `power`, `runs status` and `runs export` read addresses",
        )

    option = click.option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        callback=local,
        help="The results folder.  [default: the one in the settings]",
    )
    return option(function)


def readable_results_option(function: Decorated) -> Decorated:
    """Add `--results` to a command that only queries: a folder or an address."""
    return _reading_option(single=False)(function)


def readable_runs_option(function: Decorated) -> Decorated:
    """Add `--results` to a command that reads single runs with `read_run`."""
    return _reading_option(single=True)(function)


def _reading_option(*, single: bool) -> Callable[[Decorated], Decorated]:
    def folder(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Path | None:
        if value is None:
            return None
        from proctor import api

        if Path(value).is_file():
            raise click.BadParameter(f"Directory {value!r} is a file.")
        return api.results_root(value, copy="runs" if single else "queries", warn=warn)

    return click.option(
        "--results",
        metavar="PATH",
        callback=folder,
        help="The results folder, or an address (s3://…).  [default: the one in the settings]",
    )


def results_root(results: Path | None) -> Path:
    """Return the folder of `--results`, else that of the settings."""
    from proctor import api

    return api.results_root(results)


def open_run(text: str, root: Path) -> Run:
    """Open a local run by its path, `<experiment>/<date>_<seq>`, a tag, or `latest`."""
    from proctor.runs.find import find_run
    from proctor.runs.run import Run

    return Run(find_run(text, root))


def read_run(text: str, root: Path) -> Run:
    """Open a run to read: as `open_run` does, or by its address."""
    from proctor import api

    return api.open_run(text, results=root, warn=warn)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    from proctor.sanitize import printable

    click.echo(f"warning: {printable(text)}", err=True)


def record_audit(command: str, root: Path, **facts: Any) -> None:
    """Write to the audit log; if that fails, warn and go on."""
    from proctor.runs import audit

    if problem := audit.record(command, root, **facts):
        warn(problem)


# -- a chat model --------------------------------------------------------------------------------


def chat_model_options(help: str, *, several: bool = False) -> Callable[[Decorated], Decorated]:  # noqa: A002 (the keyword of click)
    """Add `--model` (`models` where it may be repeated), `--base-url` and `--api-key-env`."""
    model = click.option("--model", "models" if several else "model", multiple=several, help=help)
    url = click.option("--base-url", help="An endpoint that speaks the provider's protocol.")
    key = click.option("--api-key-env", help="The environment variable that holds the key.")

    def add(function: Decorated) -> Decorated:
        return model(url(key(function)))

    return add


def chat_model(name: str, options: Mapping[str, Any]) -> ChatModel:
    """Return the model of that name, with the endpoint and key of `chat_model_options`."""
    from proctor.llm.providers import get_model

    return get_model(name, base_url=options["base_url"], api_key_env=options["api_key_env"])


# -- a suite, some of its cases and agents -------------------------------------------------------


class SuiteSelection(NamedTuple):
    """A suite, and the cases and agents selected from it."""

    suite: Suite
    cases: Sequence[Case]
    agents: dict[str, AgentLike]
    options: RunOptions
    recorded: bool


def suite_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select cases and agents; the command receives `selection`."""

    @functools.wraps(command)
    def with_selection(*args: Any, **given: Any) -> None:
        from proctor.spec import load_suite, select_cases
        from proctor.trials.baseline_runs import agents_of
        from proctor.trials.options import RunOptions

        names = ("suite", "agent", "tags", "filter", "traces", "timeout", "concurrency")
        wanted = {name: given.pop(name) for name in names}
        suite = load_suite(wanted["suite"], need_agent=False)
        selection = SuiteSelection(
            suite=suite,
            cases=select_cases(
                suite.cases, tags=wanted["tags"].split(","), filter=wanted["filter"]
            ),
            agents=agents_of(suite, agent=wanted["agent"], traces=wanted["traces"]),
            options=RunOptions(timeout=wanted["timeout"], concurrency=wanted["concurrency"]),
            recorded=bool(wanted["traces"]),
        )
        command(*args, selection=selection, **given)

    options = [
        click.argument("suite", type=click.Path(path_type=Path)),
        click.option("--agent", help="Only this agent of the suite."),
        click.option(
            "--tags", default="", metavar="A,B", help="Only cases with one of these tags."
        ),
        click.option(
            "--filter",
            default="",
            metavar="EXPR",
            help="Only matching cases, e.g. difficulty:hard.",
        ),
        click.option(
            "--traces",
            multiple=True,
            metavar="PATH",
            help="Use recorded traces instead of running the agent.",
        ),
        click.option("--timeout", type=POSITIVE, metavar="SECONDS", help="Time limit per case."),
        click.option(
            "--concurrency",
            type=click.IntRange(min=1),
            metavar="N",
            help="Cases to run at the same time; 1 makes latencies comparable on a busy machine.",
        ),
    ]
    for option in reversed(options):
        with_selection = option(with_selection)
    return with_selection


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
        for name, field in reversed(model.model_fields.items()):
            if name not in hidden and not _extra(field).get("hidden"):
                flag = option_name(name, spelled)
                settings = _option_settings(field)
                function = click.option(flag, name, help=field.description, **settings)(function)
        return function

    return add


def option_name(name: str, spelled: Mapping[str, str]) -> str:
    """Return `--max-tokens` for `max_tokens`."""
    return spelled.get(name) or "--" + name.replace("_", "-")


def from_options(
    model: type[Model], given: Mapping[str, Any], *, spelled: Mapping[str, str]
) -> Model:
    """Build the model from the options; a usage error names the option with a bad value."""
    from pydantic import ValidationError

    try:
        return model(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        from proctor.spec.validation import first_fault

        fault = first_fault(error)
        if not fault.loc:  # about several options together
            raise click.UsageError(fault.message) from None
        name = str(fault.loc[0])
        message = fault.message.removeprefix(name).lstrip(": ")
        raise click.BadParameter(message, param_hint=option_name(name, spelled)) from None


def _extra(field: FieldInfo) -> dict[str, Any]:
    """Return what a field declares for the command line: hidden, or its value as a bare flag."""
    return cast("dict[str, Any]", field.json_schema_extra or {})


def _option_settings(field: FieldInfo) -> dict[str, Any]:
    kind = _bare_type(field.annotation)
    if kind is bool:
        return {"is_flag": True, "default": None}
    if typing.get_origin(kind) is tuple:
        # Usually typed as a bare flag; names after it are for those who want other values.
        alone = _extra(field).get("alone")
        optional: dict[str, Any] = {} if alone is None else {"is_flag": False, "flag_value": alone}
        return {"default": None, "type": Names(), **optional}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": click.Choice([str(member.value) for member in kind]), "default": None}
    metavar = "N" if kind is int else "X" if kind is float else "TEXT"
    return {"type": kind, "default": None, "metavar": metavar}


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
    formats = click.option(
        "--format",
        "formats",
        multiple=True,
        type=click.Choice(list(FORMATS)),
        help="Output format; repeatable.  [default: console]",
    )
    outputs = click.option(
        "-o",
        "--output",
        "outputs",
        multiple=True,
        metavar="FILE",
        help="Output file; the first -o is for the first --format, and so on.",
    )
    return formats(outputs(function))
