"""The reference of worlds holds code that works as printed."""

import asyncio
import re


def test_the_reference_shows_an_episode(root):
    """R-S5: the example of the reference plays an episode."""
    page = (root / "docs/reference/worlds.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(code, names)
    outcome = asyncio.run(names["try_it"]())
    assert 0.0 < outcome.score < 0.5
    assert outcome.ended == "terminated"
