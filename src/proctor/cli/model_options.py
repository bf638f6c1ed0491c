"""Command-line options from the fields of a model, so that none is typed twice.

The name, the type and the help of an option are those of its field; what the field refuses, the
command refuses, naming the option.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar, cast

import click
from pydantic import BaseModel, ValidationError

if typing.TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Model = TypeVar("Model", bound=BaseModel)


_NAME = re.compile(r"\w+(:[\w.+-]*)?")


class Names(click.ParamType[tuple[str, ...]]):
    """Several names in one value, with commas between them."""

    name = "NAMES"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The names; a value that came from Python is a tuple already."""
        if isinstance(value, tuple):
            return cast("tuple[str, ...]", value)
        names = tuple(part.strip() for part in str(value).split(",") if part.strip())
        if odd := [name for name in names if not _NAME.fullmatch(name)]:
            # An option whose value may be left out takes the word after it.
            flag = param.opts[0] if param is not None else "it"
            self.fail(f"{odd[0]!r} is not a name; put it before {flag}", param, ctx)
        return names


def options_of(
    model: type[BaseModel], *, spelled: Mapping[str, str], hidden: tuple[str, ...] = ()
) -> Callable[[Decorated], Decorated]:
    """Add an option for every field; `spelled` gives shorter names. Not given is None."""

    def add(function: Decorated) -> Decorated:
        for name, field in reversed(model.model_fields.items()):
            if name not in hidden and not _more(field).get("hidden"):
                flag = option_name(name, spelled)
                settings = _settings(field)
                function = click.option(flag, name, help=field.description, **settings)(function)
        return function

    return add


def option_name(name: str, spelled: Mapping[str, str]) -> str:
    """`max_tokens` as `--max-tokens`."""
    return spelled.get(name) or "--" + name.replace("_", "-")


def _more(field: FieldInfo) -> dict[str, Any]:
    """What a field says of itself to this module: hidden, or what it means alone."""
    return cast("dict[str, Any]", field.json_schema_extra or {})


def _settings(field: FieldInfo) -> dict[str, Any]:
    kind = _bare(field.annotation)
    if kind is bool:
        return {"is_flag": True, "default": None}
    if typing.get_origin(kind) is tuple:
        # A flag is what a person wants to type; names after it are for who wants others.
        alone = _more(field).get("alone")
        optional: dict[str, Any] = {} if alone is None else {"is_flag": False, "flag_value": alone}
        return {"default": None, "type": Names(), **optional}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": click.Choice([str(member.value) for member in kind]), "default": None}
    metavar = "N" if kind is int else "X" if kind is float else "TEXT"
    return {"type": kind, "default": None, "metavar": metavar}


def _bare(annotation: Any) -> Any:
    """A type without None and without what is said about it."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _bare(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        (kind,) = (each for each in typing.get_args(annotation) if each is not types.NoneType)
        return _bare(kind)
    return annotation


def from_options(
    model: type[Model], given: Mapping[str, Any], *, spelled: Mapping[str, str]
) -> Model:
    """The model from what was given; a usage error names the option it does not take."""
    try:
        return model(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        from proctor.spec.located import first_fault

        fault = first_fault(error)
        if not fault.loc:  # about several options together
            raise click.UsageError(fault.message) from None
        name = str(fault.loc[0])
        message = fault.message.removeprefix(name).lstrip(": ")
        raise click.BadParameter(message, param_hint=option_name(name, spelled)) from None
