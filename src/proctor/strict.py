"""Base model of what users write: unknown keys are errors.

Packages define their options with it; `proctor.spec` combines them, adds file and line to every
error, and publishes the JSON Schema. Every command that reads a file loads some sixty such models,
so work is deferred: a model is built when it is first used, and the docstrings below its fields
are read from the source only for the published schema.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from proctor.errors import ProctorError, hint_among

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler

Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """A model that refuses unknown keys and does not change after it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: Any, handler: GetJsonSchemaHandler, /
    ) -> dict[str, Any]:
        """Return pydantic's schema of the model, with the docstring of each field."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        # Base classes first, so that a model can describe an inherited field in its own words.
        for base in reversed(cls.__mro__):
            if not issubclass(base, Strict):
                continue
            docs = _field_docstrings(base.__module__).get(base.__qualname__, {})
            for name in docs.keys() & cls.model_fields.keys():
                properties[cls.model_fields[name].alias or name]["description"] = docs[name]
        return schema


def short_for(field: str, written: Any) -> BeforeValidator:
    """Return a validator for options in short: a text is the value of one field.

    `written` is the type for the JSON Schema.
    """
    return BeforeValidator(
        lambda value: {field: value} if isinstance(value, str) else value,
        json_schema_input_type=written,
    )


def one_or_more(value: Any) -> Any:
    """Return a text as a tuple of one text, and other values unchanged."""
    return (value,) if isinstance(value, str) else value


def read_strict(model: type[Model], value: Any, where: str) -> Model:
    """Return a value that is in no file of ours as a model; an error names its place.

    Suites and settings are read by `proctor.spec`, which knows their lines.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise strict_error(error, model, where) from None


def strict_error(error: ValidationError, model: type[BaseModel], where: str) -> ProctorError:
    """Return the first error, with its place in the value."""
    errors = error.errors(include_url=False)
    # The unknown key first: the key that is missing may be the same one, misspelt.
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    loc, kind = first["loc"], first["type"]
    about_key = kind in ("extra_forbidden", "missing")
    fields = dict(model.model_fields)
    for part in loc[:-1] if about_key else loc:
        if isinstance(part, int):
            where += f"[{part}]"
        # Other parts are labels that pydantic gives to the members of a union.
        elif part in fields:
            where += f".{part}"
            inner = list(_models_in(fields[part].annotation))
            fields = {name: info for each in inner for name, info in each.model_fields.items()}
    if kind == "extra_forbidden":
        message, hint = f"unknown key {loc[-1]!r}", hint_among(str(loc[-1]), fields)
    elif kind == "missing":
        message, hint = f"the key {loc[-1]!r} is missing", None
    elif kind == "value_error":  # a message of our own
        message, hint = first["msg"].removeprefix("Value error, "), None
    else:
        message = f"{first['msg']}, not {first['input']!r}"
        hint = "put it in quotes" if kind == "string_type" else None
    return ProctorError(message, where=where, hint=hint)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


@cache
def _field_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstring below each field, by class and field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        node.name: {
            field.target.id: inspect.cleandoc(docstring)
            for field, below in pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(docstring := below.value.value, str)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
