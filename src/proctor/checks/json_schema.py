"""JSON Schema without a network: what a schema refers to must stand in it.

Promise: no reference is ever fetched (a remote one is refused when the schema is read), a schema
that turns in circles is refused or reported, and patterns inside schemas are stopped in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, cast

from proctor.checks.text import check_pattern, search
from proctor.errors import ProctorError

MAX_PROBLEMS = 5
"""How many places of a document are named as wrong; the first few tell the rest."""


def validator_of(schema: dict[str, Any]) -> Any:
    """A validator that stays offline; `ProctorError` when the schema cannot be used."""
    # Both libraries are typed only in part; what matters is checked by the tests.
    validators: Any = import_module("jsonschema.validators")
    referencing: Any = import_module("referencing")
    specification: Any = import_module("referencing.jsonschema").DRAFT202012

    kind: Any = _dialect(validators, schema)
    try:
        _refuse_invalid(kind, schema)
        resource = referencing.Resource.from_contents(schema, default_specification=specification)
        registry = referencing.Registry().with_resource(resource.id() or "", resource).crawl()
        _refuse_remote(resource, registry)
        checked = {"pattern": _pattern, "patternProperties": _pattern_properties}
        validator = validators.extend(kind, checked)(schema, registry=registry)
        # A schema that refers to itself without looking any deeper never ends.
        validator.is_valid(None)
    except RecursionError:
        raise ProctorError("the JSON Schema is nested too deeply, or refers to itself") from None
    return validator


def _dialect(validators: Any, schema: dict[str, Any]) -> Any:
    named = schema.get("$schema")
    latest = validators.Draft202012Validator
    kind = validators.validator_for(schema, default=None if named else latest)
    if kind is None:
        raise ProctorError(
            f"the JSON Schema dialect {named!r} is not known",
            hint="leave `$schema` out, or name a published draft",
        )
    return kind


def _refuse_invalid(kind: Any, schema: dict[str, Any]) -> None:
    exceptions: Any = import_module("jsonschema.exceptions")
    problem = exceptions.best_match(kind(kind.META_SCHEMA).iter_errors(schema))
    if problem is not None:
        place = "/".join(str(step) for step in problem.absolute_path) or "the schema"
        raise ProctorError(f"not a JSON Schema: {place}: {problem.message}")


def problems_of(validator: Any, document: Any) -> list[str]:
    """Where and why a document is not valid, the most telling first; empty when it is."""
    from jsonschema.exceptions import relevance

    errors = sorted(validator.iter_errors(document), key=relevance, reverse=True)
    return [f"{error.json_path}: {error.message}" for error in errors]


def _refuse_remote(resource: Any, registry: Any) -> None:
    from referencing.exceptions import Unresolvable

    left = [(resource, registry.resolver_with_root(resource))]
    while left:
        current, resolver = left.pop()
        contents = current.contents
        if isinstance(contents, dict):
            for key in ("$ref", "$dynamicRef", "$recursiveRef"):
                target = cast("dict[str, Any]", contents).get(key)
                if not isinstance(target, str):
                    continue
                try:
                    resolver.lookup(target)
                except Unresolvable:
                    raise ProctorError(
                        f"the JSON Schema refers to {target!r}, which is not in it",
                        hint="references are never fetched: put what is meant under `$defs` "
                        "and refer to '#/$defs/…'",
                    ) from None
        left.extend((sub, resolver.in_subresource(sub)) for sub in current.subresources())


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and search(pattern, instance, case_sensitive=True) is None:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, _schema: Any
) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in patterns.items():
        check_pattern(pattern)
        for key, value in cast("dict[str, Any]", instance).items():
            if search(pattern, key, case_sensitive=True) is not None:
                yield from validator.descend(value, subschema, path=key, schema_path=pattern)
