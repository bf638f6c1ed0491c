"""What the page about the judge shows is true."""

import re

import yaml

from proctor.checks.judge import rubric_from


def test_the_judges_page(root):
    """R-C7: the page's rubric is one."""
    page = (root / "docs/reference/judge.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    rubric = rubric_from(yaml.safe_load(block))
    assert {criterion.name: criterion.weight for criterion in rubric.criteria} == {
        "tone": 1.0,
        "facts": 2,
    }
