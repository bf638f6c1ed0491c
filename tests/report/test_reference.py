"""The reference page says what the formats hold."""

import json
import re

import pytest
import yaml
from report_parts import mixed

from proctor.report.outputs import FORMATS, render


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs" / "reference" / "reports.md").read_text(encoding="utf-8")


def words(page):
    return set(re.findall(r"`(\w+)`", page))


def test_every_key_and_metric_is_on_the_page(page):
    """R-Q5: the JSON document and the metrics are documented, and nothing else is."""
    document = json.loads(render("json", mixed()))
    case = document["cases"][1]
    keys = {*document, *document["totals"], *case, *case["checks"][0], *case["place"]}
    metrics = set(re.findall(r"^# TYPE (\w+)", render("prometheus", mixed()), re.MULTILINE))
    statuses = {"passed", "failed", "hard_fail", "infra_error", "not_judged", "cancelled"}
    assert keys - statuses <= words(page)
    assert metrics == {word for word in words(page) if word.startswith("proctor_")} - {
        "proctor_version"
    }
    assert set(FORMATS) <= words(page)


def test_the_hook_finds_suites(root):
    """R-S1: the pre-commit hook runs our command on files that are suites by name."""
    (hook,) = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert (hook["id"], hook["entry"]) == ("proctor-validate", "proctor validate")
    named = ("suite.yaml", "a/suite.yml", "a/support.suite.yaml", "my-suite.yaml")
    others = ("suite.json", "suites.yaml", "unsuite.yaml", "a/suite.yaml/x", "proctor.yaml")
    assert all(re.search(hook["files"], name) for name in named)
    assert not any(re.search(hook["files"], name) for name in others)
