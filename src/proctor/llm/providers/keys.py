"""API keys, read from the environment at the moment they are needed and kept nowhere."""

import os

from proctor.llm.base import ModelError, ModelErrorKind


def key_from(variable: str | None, model: str) -> str | None:
    """The key in an environment variable; None when no variable is named."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ModelError(
            f"the environment variable {variable} is not set",
            kind=ModelErrorKind.AUTH,
            model=model,
            hint=f"export {variable}=... with the key of the model's provider",
        )
    return key
