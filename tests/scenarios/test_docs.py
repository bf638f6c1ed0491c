"""The pages about templates say what the code does, and their examples work."""

import re
from pathlib import Path

import pytest

from proctor.scenarios import Catalog
from proctor.scenarios import _expressions as expressions
from proctor.scenarios import _interpreter as interpreter
from proctor.scenarios._interpreter import CONSTANTS, DRAWS, FUNCTIONS, KNOWN, OTHER
from proctor.scenarios._opaque_names import NameGroup
from proctor.scenarios.builder import WorldSpec
from proctor.scenarios.params import RESERVED, TYPES
from proctor.scenarios.template import KEYS, MAX_CHARACTERS


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


@pytest.fixture
def reference(root: Path) -> Path:
    return root / "docs/reference/templates.md"


def test_every_function_has_its_line(reference: Path) -> None:
    """R-S4: the language is documented whole: each function once, as it is written."""
    page = reference.read_text("utf-8")
    functions = page.partition("### Functions")[2].partition("### Bounds")[0]
    written = re.findall(r"^\| `(\w+)(\(.*?\))`", functions, re.MULTILINE)
    assert sorted(name for name, _ in written) == sorted(KNOWN)
    usages = {name: function.usage for name, function in {**FUNCTIONS, **DRAWS}.items()}
    assert {name: f"{name}{rest}" for name, rest in written if name not in OTHER} == usages
    assert all(f"`{name}`" in page for name in CONSTANTS)


def test_every_key_and_bound_has_its_line(reference: Path) -> None:
    """R-S4: keys of templates, parameters, names and worlds, and every limit as it is."""
    page = reference.read_text("utf-8")
    keys = [*KEYS, *TYPES, *RESERVED, *NameGroup.model_fields, *WorldSpec.model_fields]
    assert [key for key in keys if f"`{key}`" not in page] == []
    limits = page.partition("### Bounds")[2].partition("## Opaque")[0]
    told = {int(number.replace(",", "")) for number in re.findall(r"\| ([\d,]+) \|", limits)}
    assert told == {
        interpreter.MAX_STEPS,
        expressions.MAX_LENGTH,
        expressions.MAX_NESTING,
        interpreter.MAX_DEPTH,
        interpreter.MAX_VALUE_NESTING,
        interpreter.MAX_ITEMS,
        interpreter.MAX_TEXT,
        interpreter.MAX_BITS,
        MAX_CHARACTERS,
    }


def test_templates_of_the_reference_build(reference: Path, write, catalog: Catalog) -> None:
    """R-S4: every template on the page can be copied."""
    examples = blocks(reference, "yaml")
    assert len(examples) == 2
    for text in examples:
        write(text)
        for seed in range(5):
            assert catalog.get("a.b").build(seed).scenario
    assert "bee" not in str(catalog.get("a.b").build(1).scenario).casefold()
