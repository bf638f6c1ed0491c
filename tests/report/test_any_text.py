"""Whatever an agent says, in every format."""

import json
import xml.etree.ElementTree as ET

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from report_parts import hostile

from proctor.report.outputs import FORMATS, render

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)
"""Lone surrogates, controls and unassigned characters included."""


@given(ANY_TEXT)
def test_any_text_is_harmless(text):
    """R-Q5: every format can be encoded and read back, and terminals see printable text only."""
    of = hostile(text)
    written = {name: render(name, of) for name in FORMATS}
    for each in written.values():
        each.encode()
    assert json.loads(written["json"])["cases"][0]["case"] == "failing"
    assert len(list(ET.fromstring(written["junit"].encode()).iter("testcase"))) == 3
    assert all(
        family.name.startswith("proctor_")
        for family in text_string_to_metric_families(written["prometheus"])
    )
    for name in ("github", "markdown"):
        assert all(c >= " " or c == "\n" for c in written[name])
    assert all(line.startswith("::") for line in written["github"].splitlines())
    assert "\x1b" not in click.unstyle(written["console"])


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "json"])
def test_ten_megabytes_stay_small(name):
    """R-Q5: what people and CI read is cut; only JSON holds everything."""
    assert len(render(name, hostile("é<\x1b[1m`" * 1_300_000))) < 150_000
