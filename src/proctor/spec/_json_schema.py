"""Derive the JSON Schema of user files, for editors and generators.

It is derived from the models, so it cannot contradict them, plus what only the loader knows:
alternative spellings, and `defaults` as a case with nothing required. Rules that no schema can
express (unique ids, names of checks) are left to `proctor validate`.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal, cast

from proctor.spec.config import Settings
from proctor.spec.experiment import Experiment
from proctor.spec.suite import CASE_SPELLINGS, SUITE_SPELLINGS, Suite

if TYPE_CHECKING:
    from pydantic import BaseModel

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Kind = Literal["suite", "experiment", "config"]
KINDS: dict[Kind, type[BaseModel]] = {"suite": Suite, "experiment": Experiment, "config": Settings}

_OWN = ("id", "input", "query")
"""Keys that belong to one case and so never to `defaults`."""


def schema_of(kind: Kind = "suite") -> dict[str, Any]:
    """Return the schema of a kind of file."""
    schema = KINDS[kind].model_json_schema()
    if kind == "suite":
        definitions = schema["$defs"]
        _spell(schema, SUITE_SPELLINGS)
        # Before the other spelling of `input` is added: it belongs to one case, too.
        definitions["Defaults"] = _defaults(definitions["Case"])
        _spell(definitions["Case"], CASE_SPELLINGS)
        # A conversation has no input.
        (rule,) = definitions["Case"]["allOf"]
        rule["oneOf"] += [{"required": ["turns"]}, {"required": ["user"]}]
        schema["properties"]["defaults"] = {
            "$ref": "#/$defs/Defaults",
            "description": schema["properties"]["defaults"]["description"],
        }
    if kind == "experiment":
        schema = _one_or_many(schema)
    _take_references(schema)
    return {"$schema": DIALECT, "title": f"Proctor {kind}", **schema}


def _spell(schema: dict[str, Any], spellings: dict[str, str]) -> None:
    """Allow another spelling of a key: exactly one of the two where it is required."""
    for other, key in spellings.items():
        schema["properties"][other] = deepcopy(schema["properties"][key])
        if key in schema.get("required", ()):
            schema["required"] = [name for name in schema["required"] if name != key]
            # `oneOf` in `allOf`, because several keys may have another spelling.
            schema.setdefault("allOf", []).append(
                {"oneOf": [{"required": [key]}, {"required": [other]}]}
            )
    if not schema.get("required"):
        schema.pop("required", None)


def _defaults(case: dict[str, Any]) -> dict[str, Any]:
    shared = {key: value for key, value in case["properties"].items() if key not in _OWN}
    return {
        "title": "Defaults",
        "type": "object",
        "description": "Merged into each case; the case's own values win.",
        "additionalProperties": False,
        # A copy: `_spell` changes the properties of the case afterwards.
        "properties": deepcopy(shared),
    }


def _one_or_many(one: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one experiment, or of several under `experiments` with shared keys."""
    definitions = one.pop("$defs", {})
    # Nothing is required of a part: the keys next to `experiments` may hold it.
    part: dict[str, Any] = {**deepcopy(one), "title": "Part of an experiment", "required": []}
    listed = {**deepcopy(part), "required": ["name"]}
    many = deepcopy(part)
    many["title"] = "Several experiments"
    many["required"] = ["experiments"]
    many["properties"]["experiments"] = {
        "description": "Experiments by name; keys next to this one apply to each of them.",
        "anyOf": [
            {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": {"$ref": "#/$defs/ExperimentPart"},
            },
            {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/ExperimentInList"}},
        ],
    }
    definitions |= {"ExperimentPart": part, "ExperimentInList": listed}
    return {"$defs": definitions, "anyOf": [one, many]}


_REFERENCE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"}

_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""pydantic's names of number bounds (before validators) → JSON Schema's."""

_ABOUT = ("default", "description", "title")
"""Keywords that describe a key, whatever its value."""


def _take_references(schema: Any) -> None:
    """Allow `${NAME}` for a number or boolean: the loader substitutes the value."""
    if isinstance(schema, list):
        for item in cast("list[Any]", schema):
            _take_references(item)
    if not isinstance(schema, dict):
        return
    members = cast("dict[str, Any]", schema)
    for member in list(members.values()):
        _take_references(member)
    # Strings accept a reference already; lists and mappings cannot be one.
    if members.get("type") in ("integer", "number", "boolean"):
        bare = {key: members.pop(key) for key in list(members) if key not in _ABOUT}
        bare = {_BOUNDS.get(key, key): value for key, value in bare.items()}
        members["anyOf"] = [bare, dict(_REFERENCE)]
