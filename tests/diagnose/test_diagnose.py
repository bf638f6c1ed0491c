"""`diagnose`: one trace in, findings out."""

from pathlib import Path

import pytest

import proctor
from proctor.diagnose.api import diagnose
from proctor.diagnose.evidence import stands_in
from proctor.errors import ProctorError
from proctor.trace import Trace


def test_findings_hold(shared: Path) -> None:
    """R-G2: each finding names a span once, quotes what stands in it, and comes out again."""
    paths = sorted((shared / "trail" / "data").rglob("*.json"))[::8]
    found = 0
    for path in paths:
        (trace,) = proctor.load_traces(path)
        diagnosis = diagnose(trace)
        assert diagnosis.findings == diagnose(trace).findings
        pairs = {(f.location, f.category) for f in diagnosis.findings}
        assert len(pairs) == len(diagnosis.findings)
        for finding in diagnosis.findings:
            node = trace.node(finding.location)
            assert node is not None
            assert stands_in(node.span, finding.evidence)
            assert 0 < finding.confidence <= 1
            found += 1
    assert found


def test_nothing_in_an_empty_trace() -> None:
    """R-G3: a trace without spans has no findings, and no score is made up."""
    diagnosis = diagnose(Trace(trace_id="t"), "off")
    assert diagnosis.findings == ()
    assert diagnosis.overall is None
    assert diagnosis.method == "rules"


def test_unknown_method() -> None:
    """R-G3: a wrong method is named, with the nearest right one."""
    with pytest.raises(ProctorError, match="rulez") as caught:
        diagnose(Trace(trace_id="t"), "rulez")
    assert "'rules'" in str(caught.value.hint)
