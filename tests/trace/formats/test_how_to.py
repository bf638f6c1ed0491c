"""The how-to for new formats holds a module that works as printed."""

import re
from types import SimpleNamespace

from proctor.trace.assemble import Collector, LogPool, assemble


def test_the_format_in_the_how_to_works(root):
    """R-T7: a reader who copies the example has a format that reads its files."""
    page = (root / "docs/how-to/add-a-trace-format.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    names: dict = {}
    exec(code[1], names)
    zipkin = SimpleNamespace(**names)
    span = {
        "traceId": "AB" * 16,
        "id": "01" * 8,
        "parentId": "02" * 8,
        "name": "get",
        "timestamp": 5,
        "duration": 2,
        "localEndpoint": {"serviceName": "shop"},
        "tags": {"http.method": "GET"},
    }
    assert zipkin.matches([span])
    assert not zipkin.matches([{"traceID": "x"}])
    out = Collector("file.json")
    zipkin.read([span, {**span, "id": [7]}, None], out)
    (trace,) = assemble(out, LogPool())
    (only,) = trace.spans
    assert (only.trace_id, only.parent_id) == ("ab" * 16, "02" * 8)
    assert (only.start_ns, only.end_ns) == (5000, 7000)
    assert [problem.place for problem in out.problems] == ["[1]", "[2]"]
