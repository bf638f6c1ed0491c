"""The reference page of the query language says what the code does."""

import json
import re
from pathlib import Path

import pytest
import yaml
from spans import MILLISECOND

from proctor.trace import QueryError, Span, SpanKind, SpanStatus, Trace, TraceQuery, parse_query
from proctor.trace.query import QUANTIFIERS, QUERY_KEYS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "span-queries.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```(json)\n(.*?)```", TEXT, flags=re.DOTALL))
EXAMPLES = re.findall(r"```yaml\n# (.*?)\n(.*?)```", TEXT, flags=re.DOTALL)


def example_trace() -> Trace:
    return Trace(
        trace_id="t",
        spans=[
            Span(
                span_id=row["id"],
                trace_id="t",
                parent_id=row.get("parent"),
                name=row["name"],
                kind=SpanKind(row.get("kind", "other")),
                status=SpanStatus(row.get("status", "unset")),
                start_ns=row["ms"][0] * MILLISECOND,
                end_ns=None if row["ms"][1] is None else row["ms"][1] * MILLISECOND,
                tool_name=row.get("tool_name"),
                attributes=row.get("attributes", {}),
            )
            for row in json.loads(BLOCKS["json"])
        ],
    )


@pytest.mark.parametrize(("said", "body"), EXAMPLES, ids=[body.strip() for _, body in EXAMPLES])
def test_examples_answer_as_the_page_says(said, body):
    """R-T4: the reference states exact meanings, so its examples must be true."""
    trace, mapping = example_trace(), yaml.safe_load(body)
    verdict, _, rest = said.partition(": ")
    if verdict == "error":
        with pytest.raises(QueryError) as caught:
            parse_query(mapping)
        assert str(caught.value) == rest
        return
    query = parse_query(mapping)
    if isinstance(query, TraceQuery):
        result = query.evaluate(trace.index)
        assert ("holds" if result.holds else "fails", result.span_ids) == (verdict, rest.split())
    else:
        assert [node.span_id for node in trace.find(query)] == rest.split()
        assert verdict == ("finds" if rest else "finds nothing")


def test_the_page_names_every_key_and_no_other():
    """R-T4: nothing in the language is undocumented, nothing documented is missing."""
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    named = {word for row in rows for word in re.findall(r"`(\w+)", row)}
    assert named == {*QUERY_KEYS, *QUANTIFIERS}
    assert len(EXAMPLES) == TEXT.count("```yaml")
