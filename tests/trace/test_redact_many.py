"""Many texts searched at once are clean only when each of them is."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secret_samples import CLEAN, SECRETS

from proctor.trace.load import load_traces
from proctor.trace.redact import Redactor

PIECES = [part for sample in SECRETS for part in sample[1:] if part] + CLEAN
"""What secrets are made of, so that halves of them meet at the seams."""

texts = st.lists(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=4).map("".join), max_size=8
)


@pytest.mark.parametrize("padding", ["", "the quick brown fox " * 400])
@settings(max_examples=300)
@given(many=texts)
def test_many_texts_are_clean_only_when_each_is(padding: str, many: list[str]) -> None:
    """R-T9: one search over many texts passes nothing that a search of each would redact."""
    environ = {"MY_API_KEY": "correct-horse-1"}
    alone, together = Redactor(environ=environ), Redactor(environ=environ)
    redacted = any(alone.text(text) != text for text in many)
    assert not (redacted and together.are_clean([*many, padding]))


@pytest.mark.parametrize("padding", ["", "words without anything to hide " * 300])
@pytest.mark.parametrize("sample", SECRETS, ids=[sample[0] for sample in SECRETS])
def test_every_known_secret_is_seen_among_others(
    sample: tuple[str, str, str, str], padding: str
) -> None:
    """R-T9: a secret anywhere in a large request is not passed over."""
    texts = [f"{padding}{number}" for number in range(9)]
    texts[4] += " ".join(("", sample[1] + sample[2] + sample[3]))
    assert not Redactor(environ={}).are_clean(texts)
    assert not Redactor(environ={}).are_clean([*texts[:4], "".join(sample[1:]), *texts[5:]])


def test_values_of_the_environment_and_own_patterns() -> None:
    """R-T9: what only this machine or this user knows to be secret is seen as well."""
    long = "nothing to see here " * 500
    by_value = Redactor(environ={"SERVICE_TOKEN": "plum-42-plum"})
    assert by_value.are_clean([long])
    assert not by_value.are_clean([long + "plum-42-plum"])
    by_pattern = Redactor({"ticket": r"T-\d+"}, environ={})
    assert by_pattern.are_clean(["a ticket"])
    assert not by_pattern.are_clean(["ticket T-17"])


def test_real_traces_are_mostly_called_clean(shared: Path) -> None:
    """R-T9: the quick way is taken for real conversations, which speak of keys and tokens."""
    redactor = Redactor(environ={})
    traces = load_traces(sorted((shared / "trail").rglob("*.json"))[:30])
    texts = [
        [value for span in trace.spans for value in span.attributes.values() if type(value) is str]
        for trace in traces
    ]
    quick = sum(redactor.are_clean(each) for each in texts)
    assert quick > len(texts) * 0.7
