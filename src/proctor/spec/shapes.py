"""Which models may stand at a place: pydantic's error locations, read along the annotations.

Needed to tell a key from the label pydantic puts into a location for the member of a union it
tried, and to know which keys would have been right. Types that are not looked into (`Any`,
callables) lead nowhere, which costs a suggestion and nothing else.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin

from pydantic import BaseModel


class Shapes(NamedTuple):
    """The types a value may have."""

    options: tuple[Any, ...]

    @classmethod
    def of(cls, annotation: Any) -> Shapes:
        """The types that an annotation allows, other than None."""
        return cls(tuple(_flat(annotation)))

    @property
    def several(self) -> bool:
        """Whether pydantic will say which one it tried."""
        return len(self.options) > 1

    def narrowed(self, label: str | int) -> Shapes:
        """The option a label stands for: the name of a type, or the value of its tag."""
        matching = tuple(o for o in self.options if _is_labelled(o, str(label)))
        if len(matching) == 1:
            return Shapes(matching)
        # The label has been read; whatever remains is looked into together.
        return Shapes((_Together(self.options),))

    def inside(self, step: str | int) -> Shapes:
        """What may stand under a key, or at an index."""
        found: list[Any] = []
        for option in self._unpacked():
            if isinstance(option, type) and issubclass(option, BaseModel):
                member = _field(option, str(step))
                if member is not None:
                    found.extend(_flat(member))
                continue
            arguments = get_args(option)
            if not arguments or get_origin(option) is Literal:
                continue
            found.extend(_flat(arguments[-1] if arguments[-1] is not ... else arguments[0]))
        return Shapes(tuple(dict.fromkeys(found)))

    def keys(self) -> tuple[str, ...]:
        """The keys that would have been right here."""
        models = (o for o in self._unpacked() if isinstance(o, type) and issubclass(o, BaseModel))
        return tuple(dict.fromkeys(key for model in models for key in model_keys(model)))

    def _unpacked(self) -> Iterator[Any]:
        for option in self.options:
            if isinstance(option, _Together):
                yield from option.options
            else:
                yield option


class _Together(NamedTuple):
    """Types that a label did not tell apart."""

    options: tuple[Any, ...]


def model_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """The keys a user may write for a model."""
    return tuple(info.alias or name for name, info in model.model_fields.items())


def _field(model: type[BaseModel], key: str) -> Any:
    for name, info in model.model_fields.items():
        if key in (name, info.alias):
            return info.annotation
    return None


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
