"""API keys, read from the environment at the moment they are needed and kept nowhere."""

import os

from proctor.llm.base import ModelError, ModelErrorKind
from proctor.llm.cassette import replaying
from proctor.llm.stand_in_keys import STAND_IN


def key_from(variable: str | None, model: str) -> str | None:
    """The key in an environment variable; None when no variable is named.

    Replayed calls do without: see `stand_in_keys`.
    """
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key and replaying():
        return STAND_IN
    if not key:
        raise ModelError(
            f"the environment variable {variable} is not set",
            kind=ModelErrorKind.AUTH,
            model=model,
            hint=f"export {variable}=... with the key of the model's provider",
        )
    return key
