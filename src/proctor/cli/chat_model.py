"""The options of commands that ask a chat model: which one, where it is, and with which key.

One wording for all of them; what a model is asked for differs, so its help comes from the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from proctor.llm.base import ChatModel

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def chat_model_options(what: str, *, several: bool = False) -> Callable[[Decorated], Decorated]:
    """Add `--model` (as `models` where several may be named), `--base-url` and `--api-key-env`."""
    named = click.option("--model", "models" if several else "model", multiple=several, help=what)
    url = click.option("--base-url", help="An endpoint that speaks the provider's protocol.")
    key = click.option("--api-key-env", help="The environment variable that holds the key.")

    def add(function: Decorated) -> Decorated:
        return named(url(key(function)))

    return add


def model_named(name: str, options: Mapping[str, Any]) -> ChatModel:
    """The model of that name, at the endpoint and with the key that the options say."""
    from proctor.llm.providers import get_model

    return get_model(name, base_url=options["base_url"], api_key_env=options["api_key_env"])
