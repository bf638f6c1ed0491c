"""The folder of baselines: one file a case, whole, readable, never another case's."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial_parts import llm, tool, trace_of

from proctor.runs.baselines import (
    MAX_PART,
    Baseline,
    BaselineError,
    BaselineStore,
    Precheck,
    part_name,
)
from proctor.runs.folder import spec_hash
from proctor.runs.trial import TrialStatus
from proctor.trace import Trace

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def baseline(case: str = "c", version: str = "v1", agent: str = "a", **more) -> Baseline:
    given = {
        "saved": NOON,
        "spec_hash": "0" * 64,
        "precheck": Precheck(status=TrialStatus.PASSED, judged=1, score=1.0),
        **more,
    }
    return Baseline(agent=agent, version=version, case=case, **given)


def trace(*steps, answer: str = "Paris") -> Trace:
    return trace_of(*(steps or ("search",)), response=answer)


class TestOneBaseline:
    def test_comes_back_as_it_was_saved(self, tmp_path: Path) -> None:
        """R-D4: metadata, answer and trace survive; the file stands under agent, version, case."""
        store = BaselineStore(tmp_path)
        saved = baseline(models=("m1", "m2"), answer="Paris")
        kept = trace(tool("search", {"q": "France"}, ["x"]), llm("m1", 120, 0.25))
        path = store.save(saved, kept)
        assert path == tmp_path / "a" / "v1" / "c.json"
        found = store.load("a", "c", "v1")
        assert found is not None
        assert found.baseline == saved
        assert found.trace == kept
        assert found.path == path

    def test_can_be_read_by_a_person(self, tmp_path: Path) -> None:
        """R-D4: plain indented JSON that names model, spec hash, time and precheck."""
        path = BaselineStore(tmp_path).save(baseline(models=("m1",), answer="Paris"), trace())
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") > 10
        document = json.loads(text)
        assert document["models"] == ["m1"]
        assert document["spec_hash"] == "0" * 64
        assert document["saved"] == "2026-11-16T12:00:00Z"
        assert document["precheck"] == {"status": "passed", "judged": 1, "score": 1.0}
        assert document["trace"]["proctor_trace"] == 1

    def test_is_not_replaced_unasked(self, tmp_path: Path) -> None:
        """R-D4: a version stays what it was unless forced."""
        store = BaselineStore(tmp_path)
        store.save(baseline(answer="old"), trace())
        with pytest.raises(BaselineError, match="already saved as v1") as refused:
            store.save(baseline(answer="new"), trace())
        assert refused.value.hint is not None
        assert "--force" in refused.value.hint
        found = store.load("a", "c", "v1")
        assert found is not None
        assert found.baseline.answer == "old"
        store.save(baseline(answer="new"), trace(), force=True)
        found = store.load("a", "c", "v1")
        assert found is not None
        assert found.baseline.answer == "new"

    def test_leaves_nothing_else_behind(self, tmp_path: Path) -> None:
        """R-D4: written aside and renamed: no half file, no leftover."""
        path = BaselineStore(tmp_path).save(baseline(), trace())
        assert list(path.parent.iterdir()) == [path]

    def test_of_lone_surrogates_and_control_characters(self, tmp_path: Path) -> None:
        """R-D4: whatever an agent says can be saved and read back."""
        store = BaselineStore(tmp_path)
        store.save(baseline(answer="a\ud800b\x00\x1b[31m"), trace(answer="a\ud800b"))
        found = store.load("a", "c", "v1")
        assert found is not None
        assert found.baseline.answer == "a\ufffdb\x00\x1b[31m"
        assert found.trace.response == "a\ufffdb"


class TestNames:
    @given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
    def test_that_differ_have_paths_that_differ(self, one: str, other: str) -> None:
        """R-D4: whatever two cases are called, on a file system that ignores case too."""
        paths = part_name(one).casefold(), part_name(other).casefold()
        assert (paths[0] == paths[1]) == (one == other)

    @given(st.text(max_size=300))
    def test_are_safe_everywhere(self, name: str) -> None:
        """R-D4: one part of a path, of bounded length, with nothing Windows refuses."""
        part = part_name(name)
        assert len(part) <= MAX_PART + 10
        assert not set(part) & set('<>:"/\\|?*\0')
        assert part.strip(". ") == part
        assert part.split(".")[0].casefold() not in {"con", "nul", "aux", "prn", "com1", "lpt1"}

    def test_of_case_and_accent(self, tmp_path: Path) -> None:
        """R-D4: `FAQ`, `faq`, `a/b` and `a:b` are four cases and four files."""
        store = BaselineStore(tmp_path)
        names = ["FAQ", "faq", "a/b", "a:b", "../../etc/passwd", "é", "e\u0301"]
        for name in names:
            store.save(baseline(name, answer=name), trace())
        files = list(tmp_path.rglob("*.json"))
        assert len({str(p).casefold() for p in files}) == len(names)
        assert all(p.parent == tmp_path / "a" / "v1" for p in files)
        for name in names:
            found = store.load("a", name, "v1")
            assert found is not None
            assert found.baseline.answer == name

    def test_a_file_of_another_case_is_never_taken_for_ones_own(self, tmp_path: Path) -> None:
        """R-D4: a file that was renamed by hand is neither read as nor replaced by another case."""
        store = BaselineStore(tmp_path)
        path = store.save(baseline("one"), trace())
        path.rename(path.with_name("two.json"))
        assert store.load("a", "two", "v1") is None
        with pytest.raises(BaselineError, match="holds 'one'"):
            store.save(baseline("two"), trace(), force=True)


class TestVersions:
    def test_the_newest_is_loaded_by_time(self, tmp_path: Path) -> None:
        """R-D4: not by name: v10 may be older than v2."""
        store = BaselineStore(tmp_path)
        for hours, version in [(2, "v2"), (3, "v10"), (1, "v9")]:
            saved = NOON + timedelta(hours=hours)
            store.save(baseline(version=version, saved=saved, answer=version), trace())
        found = store.load("a", "c")
        assert found is not None
        assert found.baseline.version == "v10"
        assert store.versions("a") == ["v9", "v2", "v10"]

    def test_are_listed_with_what_cannot_be_read(self, tmp_path: Path) -> None:
        """R-D4: a damaged file is named and skipped, the others are listed."""
        store = BaselineStore(tmp_path)
        store.save(baseline("one"), trace())
        store.save(baseline("two"), trace())
        store.save(baseline("three", agent="b"), trace())
        torn = store.path_of("a", "v1", "two")
        torn.write_bytes(torn.read_bytes()[:-40])
        listing = store.list()
        assert [(each.agent, each.case) for each in listing.baselines] == [
            ("a", "one"),
            ("b", "three"),
        ]
        (problem,) = listing.problems
        assert str(torn) in problem
        assert "damaged" in problem
        assert [each.case for each in store.list("b").baselines] == ["three"]

    def test_a_damaged_one_is_an_error_only_when_asked_for(self, tmp_path: Path) -> None:
        """R-D4: the newest readable version stands in for a damaged one, and it is said."""
        store = BaselineStore(tmp_path)
        store.save(baseline(version="v1"), trace())
        newer = store.save(baseline(version="v2", saved=NOON + timedelta(hours=1)), trace())
        newer.write_text('{"proctor_baseline": 1}')
        problems: list[str] = []
        found = store.load("a", "c", problems=problems)
        assert found is not None
        assert found.baseline.version == "v1"
        assert str(newer) in problems[0]
        with pytest.raises(BaselineError, match="damaged"):
            store.load("a", "c", "v2")

    def test_part_of_a_trace_is_damage(self, tmp_path: Path) -> None:
        """R-D4: a span that cannot be read would look like a change of behaviour."""
        store = BaselineStore(tmp_path)
        path = store.save(baseline(), trace("search", "book"))
        document = json.loads(path.read_text())
        document["trace"]["spans"][1]["start_ns"] = "soon"
        path.write_text(json.dumps(document))
        with pytest.raises(BaselineError, match="damaged"):
            store.load("a", "c", "v1")

    def test_a_newer_format_is_not_guessed_at(self, tmp_path: Path) -> None:
        """R-D4: what this version does not know it does not read."""
        store = BaselineStore(tmp_path)
        path = store.save(baseline(), trace())
        path.write_text(path.read_text().replace('"proctor_baseline": 1', '"proctor_baseline": 9'))
        with pytest.raises(BaselineError, match="format 9"):
            store.load("a", "c", "v1")

    def test_one_that_is_missing_is_told_with_what_there_is(self, tmp_path: Path) -> None:
        """R-D4: did-you-mean for versions, and how to save a case that is not there."""
        store = BaselineStore(tmp_path)
        assert "none is saved yet" in store.missing("a", "v1", "c")
        store.save(baseline(version="spring"), trace())
        assert "did you mean 'spring'?" in store.missing("a", "sprng", "c")
        assert "proctor baseline save --version spring" in store.missing("a", "spring", "other")


def test_the_hash_of_a_case() -> None:
    """R-D4: SHA-256 of what is asked and checked; the order of keys is not part of it."""
    one = {"input": "q", "correctness": {"expected_in_answer": ["Paris"]}}
    assert spec_hash(one) == spec_hash(dict(reversed(one.items())))
    assert spec_hash(one) != spec_hash({**one, "input": "Q"})
    assert len(spec_hash(one)) == 64
