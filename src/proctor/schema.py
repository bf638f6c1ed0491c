"""The base of everything users write: strict models that refuse unknown keys.

Rooms define their own options on it; `proctor.spec` puts them together, adds file and line to
every error, and publishes the JSON Schema.
"""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A model that refuses unknown keys and does not change after it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
