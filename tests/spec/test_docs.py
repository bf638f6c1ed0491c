"""The reference pages say what the code does."""

import re
from pathlib import Path

from proctor.spec import Case, Settings, Suite, load_configuration, load_suite
from proctor.spec.config import setting_names


def blocks(page: Path) -> list[str]:
    found = re.findall(
        r"^( *)```yaml\n(.*?)^ *```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def test_suites_in_the_reference_are_good(root: Path, tmp_path: Path) -> None:
    """R-S1 R-S2: every example of the page can be copied."""
    (tmp_path / "more.yaml").write_text("- input: More\n")
    examples = blocks(root / "docs/reference/suite.md")
    assert len(examples) == 3
    for text in examples:
        (tmp_path / "suite.yaml").write_text(text)
        assert load_suite(tmp_path / "suite.yaml").cases


def test_every_key_is_in_the_reference(root: Path) -> None:
    """R-S1 R-S2 R-C1: no key of a suite or a case goes without a line."""
    page = (root / "docs/reference/suite.md").read_text("utf-8")
    keys = [*Suite.model_fields, *Case.model_fields]
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_settings_in_the_reference(root: Path, tmp_path: Path) -> None:
    """R-S6: the example is good, and every setting and variable has its line."""
    page = root / "docs/reference/configuration.md"
    (text,) = blocks(page)
    (tmp_path / "proctor.yaml").write_text(text)
    assert load_configuration(tmp_path, environ={}).settings.limits.trials == 5
    documented = page.read_text("utf-8")
    assert [name for name in Settings.model_fields if f"`{name}" not in documented] == []
    named = [name for name in setting_names() if not name.startswith("PROCTOR_JUDGE_")]
    assert [name for name in named if f"`{name}`" not in documented] == []
