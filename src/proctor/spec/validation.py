"""Validate a tree against a model and report problems in the user's terms and position.

pydantic finds the errors; here each gets its position, a message without Python terms, and for an
unknown word the nearest known one. Where a value may have several shapes, only the errors of the
closest shape are reported.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from proctor.errors import did_you_mean
from proctor.spec.located import SourceLocation, SpecProblem, Tree, plain

# Models allowed at a position: pydantic's error locations, followed along the annotations. Needed
# to distinguish a key from the label pydantic adds to a location for a union member, and to know
# the valid keys. Types that are not followed (`Any`, callables) only cost a suggestion.


class Shapes(NamedTuple):
    """The types a value may have."""

    options: tuple[Any, ...]

    @classmethod
    def of(cls, annotation: Any) -> Shapes:
        """Return the types that an annotation allows, other than None."""
        return cls(tuple(_flat(annotation)))

    @property
    def several(self) -> bool:
        """Return whether pydantic labels the member of the union."""
        return len(self.options) > 1

    def narrowed(self, label: str | int) -> Shapes:
        """Return the type of a label: its name, or the value of its tag."""
        matching = tuple(o for o in self.options if _is_labelled(o, str(label)))
        if len(matching) == 1:
            return Shapes(matching)
        # The label is consumed; the remaining types are followed together.
        return Shapes((self.options,))

    def inside(self, step: str | int) -> Shapes:
        """Return the types allowed under a key, or at an index."""
        found: list[Any] = []
        for option in self._unpacked():
            if isinstance(option, type) and issubclass(option, BaseModel):
                for name, info in option.model_fields.items():
                    if str(step) in (name, info.alias):
                        found.extend(_flat(info.annotation))
                continue
            arguments = get_args(option)
            if not arguments or get_origin(option) is Literal:
                continue
            found.extend(_flat(arguments[-1] if arguments[-1] is not ... else arguments[0]))
        return Shapes(tuple(dict.fromkeys(found)))

    def keys(self) -> tuple[str, ...]:
        """Return the valid keys here."""
        models = (o for o in self._unpacked() if isinstance(o, type) and issubclass(o, BaseModel))
        return tuple(dict.fromkeys(key for model in models for key in model_keys(model)))

    def _unpacked(self) -> Iterator[Any]:
        for option in self.options:
            # A tuple holds types that share a label.
            yield from cast("tuple[Any, ...]", option) if isinstance(option, tuple) else (option,)


def model_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """The keys a user may write for a model."""
    return tuple(info.alias or name for name, info in model.model_fields.items())


def _flat(annotation: Any) -> Iterator[Any]:
    if annotation is None or annotation is type(None):
        return
    if hasattr(annotation, "__value__"):  # a named type alias
        yield from _flat(annotation.__value__)
        return
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _flat(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _flat(argument)
    else:
        yield annotation


def _is_labelled(option: Any, label: str) -> bool:
    if isinstance(option, type) and issubclass(option, BaseModel):
        tags = (
            value
            for info in option.model_fields.values()
            if get_origin(info.annotation) is Literal
            for value in get_args(info.annotation)
        )
        return option.__name__ in label or label in tags
    bare = cast(Any, get_origin(option) or option)
    name = str(getattr(bare, "__name__", ""))
    return bool(name) and label.startswith(name)


Model = TypeVar("Model", bound=BaseModel)

_ELSEWHERE = "elsewhere"
"""Type of an error that has its own, more precise location."""


class Fault(NamedTuple):
    """A fault in a value inside the validating model; `loc` is the path to it."""

    loc: tuple[str | int, ...]
    message: str
    hint: str | None = None


def faults_error(faults: Sequence[Fault]) -> PydanticCustomError:
    """Raised by a validator to report several values in its model, each at its position."""
    text = "; ".join(fault.message for fault in faults)
    return PydanticCustomError(_ELSEWHERE, "{text}", {"text": text, "faults": list(faults)})


def validated(tree: Tree, model: type[Model], problems: list[SpecProblem]) -> Model | None:
    """Return the tree as a model, or None with the reasons added to `problems`."""
    try:
        return model.model_validate(plain(tree))
    except ValidationError as error:
        problems.extend(located(error, tree, model))
        return None


def first_fault(error: ValidationError) -> Fault:
    """Return the first error of values from no file: command options, Python arguments.

    `loc` is the path to the value; the message names it as users write it.
    """
    detail = error.errors(include_url=False)[0]
    name = str(detail["loc"][-1]) if detail["loc"] else ""
    return _described(detail, name, (), secret=False)._replace(loc=detail["loc"])


def located(error: ValidationError, tree: Tree, model: type[BaseModel]) -> list[SpecProblem]:
    """Return every error at its position, except for values with known problems."""
    found: list[_RawError] = []
    for detail in error.errors(include_url=False):
        # pydantic counts only valid items, so a tuple of bad ones is also reported as too short.
        least = detail.get("ctx", {}).get("min_length", 0)
        if detail["type"] == "too_short" and len(detail["input"]) >= least:
            continue
        faults: list[Fault | None] = [None]
        if detail["type"] == _ELSEWHERE:
            faults = detail.get("ctx", {})["faults"]
        found += [_RawError.of(detail, fault, tree, model) for fault in faults]
    return [item.problem for item in _nearest_shape(found) if not item.target.broken]


class _RawError(NamedTuple):
    """An error being converted to a problem.

    `choice` is the enclosing value with several shapes (if any), `branch` the shape validated.
    """

    problem: SpecProblem
    target: Tree
    choice: Tree | None
    branch: str | int
    expects: str | None

    @classmethod
    def of(
        cls, detail: ErrorDetails, fault: Fault | None, tree: Tree, model: type[BaseModel]
    ) -> _RawError:
        loc = (*detail["loc"], *(fault.loc if fault is not None else ()))
        target, shapes = tree, Shapes.of(model)
        keys: tuple[str, ...] = model_keys(model)
        choice: Tree | None = None
        branch: str | int = ""
        place: SourceLocation | None = None
        name = ""
        for step in loc:
            # In a union, pydantic puts a label of the member it tried into the path.
            if shapes.several:
                if choice is None:
                    choice, branch = target, step
                shapes = shapes.narrowed(step)
                continue
            name, keys = str(step), shapes.keys()
            shapes = shapes.inside(step)
            child = target.child(step)
            # One value may be written in place of a list of one.
            if isinstance(step, int) and not isinstance(target.value, list):
                continue
            place = target.keys.get(str(step)) if isinstance(target.value, dict) else None
            # A missing or unknown key has no value: the error is at its parent.
            if child is None:
                break
            target = child
        is_key = detail["type"] in ("extra_forbidden", "missing")
        described = fault or _described(detail, name, keys, secret=bool(target.secrets))
        at = place if is_key and place is not None else target.place
        if detail["type"] == "union_tag_invalid" and (tag := target.child(_tag_key(detail))):
            at = tag.place
        message = _without_secrets(described.message, target)
        problem = SpecProblem(at, message, described.hint)
        return cls(problem, target, choice, branch, _EXPECTS.get(detail["type"]))


def _nearest_shape(found: Iterable[_RawError]) -> list[_RawError]:
    """Select the closest shape of a value: the one whose errors are deepest."""
    selected: list[_RawError] = []
    choices: dict[int, dict[str | int, list[_RawError]]] = {}
    for item in found:
        if item.choice is None:
            selected.append(item)
        else:
            choices.setdefault(id(item.choice), {}).setdefault(item.branch, []).append(item)
    for branches in choices.values():
        # A shape fits roughly where no error says that the value itself has another type.
        inside = [
            items
            for items in branches.values()
            if not any(i.expects and i.target is i.choice for i in items)
        ]
        if inside:
            selected.extend(min(inside, key=len))
            continue
        # One error for a value that has none of its allowed shapes.
        group = [item for items in branches.values() for item in items]
        expected = list(dict.fromkeys(item.expects for item in group if item.expects))
        first = group[0]
        if len(expected) > 1:
            message = f"expected {' or '.join(expected)}, got {kind_of(first.target.value)}"
            first = first._replace(problem=first.problem._replace(message=message))
        selected.append(first)
    return selected


def _without_secrets(message: str, tree: Tree) -> str:
    """Return the message with values of environment variables replaced by references."""
    secrets = {pair for part in tree.walk() for pair in part.secrets}
    # The longest first: a secret may contain another one. pydantic quotes values with `repr`.
    for held, reference in sorted(secrets, key=lambda pair: -len(pair[0])):
        for form in (held, repr(held)[1:-1]):
            message = message.replace(form, reference)
    return message


# -- wording -------------------------------------------------------------------------------------

_EXPECTS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "none_required": "null",
}

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def kind_of(value: Any) -> str:
    """Return the type of a value in YAML terms."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "text" if value.strip() else "empty text"
    if isinstance(value, int | float):
        return f"the number {value}"
    return "a mapping" if isinstance(value, Mapping) else "a list"


# Keys of other tools and earlier designs → what to write here.
_FAMILIAR = {
    "judge_config": "it is `judge` here: PROVIDER:MODEL, or its options",
    "baseline_dir": "it is `baselines` here",
    "few_shot_examples": "it is `examples` here: each has an answer, a score and a rationale",
    "scale": "scores are 1 to 5; `anchors` say what each means, `threshold` is 0 to 1",
    "rate_limits": "it is `limits: {rates: {PROVIDER: …}}` here",
    "has_matching_span": "write `{check: has_matching_span, params: {query: …}}`",
    "scenarios": "it is `cases` here",
    "output_path": "it is `output` here",
}


MAX_EXAMPLE = 40
"""Characters of a value that a hint repeats."""

MANY = 8
"""Choices beyond which only those like the given word are listed."""


def _layer_hint(name: str, keys: tuple[str, ...]) -> str | None:
    """Return the layer in which a case has this key, if it has; None where there are no layers."""
    if "correctness" not in keys:
        return None
    from proctor.spec.suite import Case

    for layer in ("correctness", "path", "cost"):
        model: Any = Case.model_fields[layer].annotation
        if name in model.model_fields:
            return f"write it below `{layer}:`"
    return None


def _described(detail: ErrorDetails, name: str, keys: tuple[str, ...], *, secret: bool) -> Fault:
    """Return the message of an error of this key, with a hint where possible."""
    kind, context, given = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "extra_forbidden":
        hint = _FAMILIAR.get(name) or _layer_hint(name, keys) or did_you_mean(name, keys)
        hint = hint or (f"known here: {', '.join(keys)}" if keys else None)
        return Fault((), f"unknown key {name!r}", hint)
    if kind == "missing":
        return Fault((), f"the key {name!r} is missing")
    if kind in _BOUNDS:
        words, limit = _BOUNDS[kind]
        got = "" if secret else f", got {given}"
        return Fault((), f"{name} must be {words} {context[limit]:g}{got}")
    if kind in ("literal_error", "enum"):
        return _choice(name, str(context.get("expected", "")), given, secret=secret)
    if kind == "union_tag_invalid":
        tags = str(context.get("expected_tags", ""))
        return _choice(_tag_key(detail), tags, context.get("tag"), secret=secret)
    if kind == "union_tag_not_found":
        return Fault((), f"the key {context.get('discriminator', 'type')} is missing")
    if kind == "string_pattern_mismatch" and not secret:
        return Fault((), f"{_named(name)}{given!r} does not match {context['pattern']}")
    if kind in ("too_short", "string_too_short"):
        return Fault((), f"{name} must not be empty")
    if kind in _EXPECTS:
        hint = None
        if _EXPECTS[kind] == "a list" and isinstance(given, str) and not secret:
            hint = f"write a list: [{given}]" if len(given) <= MAX_EXAMPLE else "write a list: […]"
        return Fault((), f"{_named(name)}expected {_EXPECTS[kind]}, got {kind_of(given)}", hint)
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    # A validator's own message may quote the value, which must not be shown.
    if secret and kind in ("value_error", "assertion_error"):
        return Fault((), "the value of an environment variable is not accepted here")
    return Fault((), message)


def _tag_key(detail: ErrorDetails) -> str:
    return str(detail.get("ctx", {}).get("discriminator", "")).strip("'")


def _named(name: str) -> str:
    # Union labels such as `list[str]` and positions mean nothing to users.
    label = not name.isidentifier() or name in ("str", "int", "float", "bool")
    return "" if label else f"{name}: "


def _choice(name: str, expected: str, given: Any, *, secret: bool) -> Fault:
    words = [word.strip(" '") for word in expected.replace(" or ", ", ").split(",")]
    got = "" if secret or isinstance(given, Mapping | list) else f", got {given!r}"
    near = did_you_mean(str(given), words) if isinstance(given, str) and not secret else None
    if near and len(words) > MANY:
        return Fault((), f"unknown {name} {given!r}", near)
    choice = f"one of {', '.join(words)}" if len(words) > 1 else words[0]
    return Fault((), f"{name} must be {choice}{got}", near)
