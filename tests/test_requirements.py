"""Each requirement claimed done is named by a test. Those no test names yet are listed at the
end of the run (conftest.py), so that none is forgotten."""

import re
from pathlib import Path

import requirement_ids


def test_ids_are_read_from_docstrings_of_tests_only() -> None:
    source = '''
"""R-X1: a module's docstring proves nothing."""
def helper(): "R-X2"
class TestGroup:
    """R-X3: a group of tests."""
    async def test_a(self): "R-X4 and R-X5: two at once"
    def test_b(self): x = "R-X6"
'''
    assert sorted(requirement_ids.ids_in(source)) == ["X3", "X4", "X5"]


def test_done_requirements_are_named_by_a_test() -> None:
    claims = requirement_ids.claims()
    broken = [
        identifier for identifier in requirement_ids.unnamed() if claims[identifier] == "done"
    ]
    assert not broken, f"claimed done, but named by no test: {broken}"


def test_tests_name_no_unknown_requirement() -> None:
    claims = requirement_ids.claims()
    unknown = {name: files for name, files in requirement_ids.named().items() if name not in claims}
    assert not unknown, f"no such requirement: {unknown}"


def test_committed_ids_equal_the_requirements(shared: Path) -> None:
    text = (shared / "REQUIREMENTS.md").read_text(encoding="utf-8")
    assert list(requirement_ids.claims()) == re.findall(r"^- ([A-Z]+\d+) ", text, re.MULTILINE)
