"""Text that UTF-8 cannot hold, on its way to disk."""

from trial_parts import trace_of

from proctor.runs.journal import Journal, read_journal
from proctor.runs.trial import Trial, TrialStatus
from proctor.sanitize import json_bytes


def test_a_lone_surrogate_does_not_stop_the_journal(tmp_path):
    """R-R9: whatever an agent answered, its line is written and reads back."""
    path = tmp_path / "trials.jsonl"
    journal = Journal(path)
    for answer in ("a\ud800b", "fine"):
        journal.append(
            Trial(case="c", agent="a", index=0, seed=1, status=TrialStatus.PASSED, answer=answer)
        )
    journal.close()
    assert [trial.answer for trial in read_journal(path)] == ["a\ufffdb", "fine"]


def test_a_lone_surrogate_does_not_lose_a_trace():
    """R-R9: the trace is kept, the character replaced."""
    assert b"a\xef\xbf\xbdb" in json_bytes(trace_of("search", response="a\udfffb"))
