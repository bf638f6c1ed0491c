"""Grounding without a model: good answers, invented ones, and what is no claim at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.checks.grounding import MAX_CLAIMS, ground

FLIGHT = (
    '{"flights": [{"number": "BA245", "price_usd": 1234.5, "from": "London", "to": "Oslo", '
    '"departs": "2024-03-15T09:30:00Z", "duration_minutes": 90, "carrier": "British Airways"}]}'
)
HOTEL = (
    "Grand Hotel Aurora is a four-star hotel in the centre of Oslo, Norway. Rooms start at €180 "
    "per night; breakfast is included. Guests rated it 87% positive. The manager, Jane Smith, "
    'said "we renovated every room last year". Revenue grew 12.4 percent to 3.2 million kroner.'
)
GOOD = """I found a flight for you. **British Airways** flight BA245 departs London on \
March 15, 2024 at 9:30 am and costs $1,234.50; it takes 1.5 hours.
1. The Grand Hotel Aurora has four stars and is in the centre of Oslo, with breakfast included.
2. Guests rated it 87% positive [1], and revenue grew about 12% to 3.2M kroner.
Smith said "we renovated every room". Let me know if you need anything else!"""
INVENTED = """Flight LH901 of Lufthansa departs London on April 2, 2024 and costs $1,850. It takes \
3 hours. The Radisson Plaza Hotel offers a rooftop swimming pool with spa treatments.
The manager said "we will close next summer"."""


def verdicts(answer, *evidence, **options):
    return {c.text: c.supported for c in ground(answer, evidence, **options).claims}


def test_a_faithful_answer_is_supported_claim_by_claim():
    """R-C2: hallucination_check without a judge: a paraphrase of the evidence scores 1."""
    result = ground(GOOD, [FLIGHT, HOTEL])
    assert [claim.text for claim in result.unsupported] == []
    assert result.score == 1.0
    assert {claim.kind for claim in result.claims} == {
        "number",
        "date",
        "name",
        "quote",
        "sentence",
    }
    for claim in result.claims:
        assert GOOD[claim.start : claim.end] == claim.text
        assert claim.evidence
        assert claim.source in (0, 1)
    texts = {claim.text: claim for claim in result.claims}
    assert "duration_minutes" in f"{texts['1.5 hours'].evidence}"
    assert texts["1.5 hours"].source == 0


def test_an_invented_answer_shows_what_was_invented():
    """R-C2: each invented figure, day, name, quotation and sentence is listed."""
    result = ground(INVENTED, [FLIGHT, HOTEL])
    wrong = {claim.text for claim in result.unsupported}
    assert {
        "Flight LH901 of Lufthansa",
        "April 2, 2024",
        "$1,850",
        "3 hours",
        "Radisson Plaza Hotel",
        "we will close next summer",
    } <= wrong
    assert "London" not in wrong
    assert result.score is not None
    assert result.score < 0.35
    assert "unsupported: " in result.reason
    assert all(claim.detail for claim in result.unsupported)


def test_one_changed_figure_in_a_good_answer_is_found():
    """R-C8: the score falls by exactly the claim that is wrong."""
    before = ground(GOOD, [FLIGHT, HOTEL])
    after = ground(GOOD.replace("87%", "78%"), [FLIGHT, HOTEL])
    assert [claim.text for claim in after.unsupported] == ["78%"]
    assert after.score == 1 - 1 / len(before.claims)
    assert after.reason.endswith('; unsupported: number "78%"')


@pytest.mark.parametrize(
    ("said", "evidence"),
    [
        ("1,234.5", "1234.5"),
        ("1234.5", "1,234.5"),
        ("1'234.5", "1_234.5"),
        ("1.2k", "1234"),
        ("1.2 million", "1,234,567"),
        ("$1.2M", "1234567 USD"),
        ("$4.5bn", "4.5 billion dollars"),
        ("45%", "45 percent"),
        ("45%", "0.45"),
        ("45 percent", '{"share": 0.449}'),
        ("1.5 hours", "90 minutes"),
        ("2 km", "2000 m"),
        ("350 ms", '{"latency_ms": 350}'),
        ("350 ms", "0.35 seconds"),
        ("21.6 °C", "21.6°C"),
        ("about 1,200", "1,234"),
        ("22", "21.6"),
        ("3", "three"),
        ("5", "-5"),
        ("2:30 PM", "14:30"),
        ("9 am", "2024-03-15T09:00:00Z"),
        ("the 15th", "2024-03-15"),
        ("2024", "2024-03-15"),
        ("March 15, 2024", "2024-03-15"),
        ("15 March", "Mar. 15, 2024"),
        ("2024-03-15", "15th March 2024"),
    ],
)
def test_a_figure_is_the_same_however_it_is_written(said, evidence):
    """R-C8: grouping, magnitudes, percent, units, times and days are normalised."""
    result = ground(f"it is {said}.", [f"noise {evidence} noise"])
    assert [c.detail for c in result.claims if not c.supported] == []
    assert result.score == 1.0


@pytest.mark.parametrize(
    ("said", "evidence"),
    [
        ("1,234", "1,235"),
        ("1,234", "1.2k"),
        ("1,200", "1,234"),
        ("4", "3.7"),
        ("45%", "45 km"),
        ("45%", "4.5%"),
        ("90 hours", '{"duration_minutes": 90}'),
        ("3 hours", "2024-03-15"),
        ("3", "2024-03-15T03:00"),
        ("$5", "€5"),
        ("2:30 PM", "02:30"),
        ("March 15, 2024", "2023-03-15"),
        ("March 16", "2024-03-15"),
        ("7", "A7B and v7.1.7"),
    ],
)
def test_a_figure_that_is_not_there_is_not_found(said, evidence):
    """R-C8: near misses, other units and parts of identifiers are no support."""
    result = ground(f"it is {said}.", [f"noise {evidence} noise"])
    assert result.score == 0.0


def test_another_unit_is_told():
    """R-C8: the unsupported piece says what the evidence has instead."""
    (claim,) = ground("it is 90 hours.", ['{"duration_minutes": 90}']).claims
    assert claim.detail == "the evidence has this figure only as '90'"


@given(st.integers(0, 10**12), st.integers(0, 99))
def test_grouped_and_plain_figures_agree(whole, cents):
    """R-C8: any amount, grouped or not, in either direction; its neighbour does not."""
    grouped, plain = f"{whole:,}.{cents:02}", f"{whole}.{cents:02}"
    assert ground(f"it is {grouped}.", [plain]).score == 1.0
    assert ground(f"it is {plain}.", [f"x {grouped}, y"]).score == 1.0
    assert ground(f"it is {whole + 1}.{cents:02}.", [plain]).score == 0.0


def test_names_are_found_in_other_order_case_and_accents():
    """R-C8: a name is its words close together; titles and possessives do not count."""
    evidence = "SMITH, Jane A. of ZURICH met the board of the Bank of England."
    found = verdicts("We saw Dr. Jane Smith in Zürich, and the Bank of England's Board.", evidence)
    names = {"Jane Smith", "Zürich", "Bank of England", "Board"}
    assert {name: found[name] for name in names} == dict.fromkeys(names, True)
    assert verdicts("We saw Jane Jones.", evidence)["Jane Jones"] is False


def test_words_of_two_texts_do_not_make_one_name_or_quotation():
    """R-C8: nothing is found across the border of two texts."""
    assert not verdicts("We saw Jane Smith.", "met Jane", "Smith left")["Jane Smith"]
    assert not verdicts('He said "all went well".', "all went", "well")["all went well"]


def test_quotations_are_word_for_word():
    """R-C8: case, quotes and punctuation aside; an ellipsis splits a quotation."""
    evidence = "The report says: We saw growth, across all of our markets, in 2024."
    assert verdicts("“we saw growth across all”", evidence)["we saw growth across all"]
    parts = verdicts("“we saw growth … in 2024” was said", evidence)
    assert {"we saw growth ": True, " in 2024": True}.items() <= parts.items()
    assert not verdicts('"we saw all growth"', evidence)["we saw all growth"]


def test_a_sentence_is_looked_up_within_one_passage():
    """R-C8: words scattered over a long text do not support a sentence; a paragraph does."""
    sentence = "Volcanic eruptions disrupted northern shipping lanes severely."
    scattered = (" filler" * 200).join(sentence[:-1].split())
    assert verdicts(sentence, scattered) == {sentence: False}
    near = "Shipping in northern lanes was disrupted when a volcanic eruption began."
    assert verdicts(sentence, "filler " * 500 + near) == {sentence: True}
    assert ground(sentence, [near], min_overlap=1.0).score == 0.0


def test_what_the_question_said_counts_neither_way():
    """R-C8: restating the question is no invention, and no proof either."""
    question = "Is the Eiffel Tower in Rome 330 metres tall?"
    answer = "The Eiffel Tower in Rome is 330 metres tall."
    result = ground(answer, ["Nothing about it here."], question=question)
    assert [claim.kind for claim in result.claims] == ["sentence"]
    assert result.score == 0.0
    only = ground("In Rome, 330.", ["Nothing."], question=question)
    assert only.score is None
    assert only.reason == "the answer says only what the question said"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "   \n ",
        "Hello! How can I help you today?",
        "Let me know if you would like further details about other flights.",
        "I could not find any matching flights leaving within your selected window.",
        "# Summary Of Findings\n\n1. \n2. ",
        "ok",
        "\x00\ud800\x1b[31m",
    ],
)
def test_nothing_to_check_is_none_with_a_reason(answer):
    """R-C2: courtesies, questions, headings and refusals claim nothing: unscored, not 0 or 1."""
    result = ground(answer, [HOTEL])
    assert (result.score, result.claims) == (None, ())
    assert result.reason == "the answer makes no claim that can be looked up"


@pytest.mark.parametrize("evidence", [[], [""], ["  \n"]])
def test_no_evidence_is_none_with_a_reason(evidence):
    """R-C2: without evidence nothing can be said, which is not a verdict."""
    result = ground(GOOD, evidence)
    assert result.score is None
    assert result.reason.startswith("no evidence was given")


def test_the_method_is_said():
    """R-C2: a reader can tell which method ran."""
    assert ground(GOOD, [HOTEL]).method == "words and numbers"


PARTS = st.sampled_from(
    [
        "Jane Smith",
        "1,234.5",
        "45%",
        '"so it is said"',
        "The tower fell down.",
        "\n",
        " ",
        "“",
        "9:30",
    ]
)


@given(st.lists(PARTS | st.text(max_size=8), max_size=30).map(" ".join), st.text(max_size=80))
def test_any_answer_is_supported_by_itself(answer, question):
    """R-C8: whatever an answer says, a text that says the same supports every claim of it."""
    result = ground(answer, [answer], question=question)
    assert [claim for claim in result.claims if not claim.supported] == []
    assert result.score in (None, 1.0)
    assert result == ground(answer, [answer], question=question)
    for claim in result.claims:
        assert answer[claim.start : claim.end] == claim.text


def test_an_endless_answer_is_judged_by_its_beginning_and_says_so():
    """R-C8: the number of claims looked up is bounded, and the reason says so."""
    answer = " ".join(str(n) for n in range(10_000, 10_000 + 3 * MAX_CLAIMS))
    result = ground(answer, [answer])
    assert len(result.claims) == MAX_CLAIMS
    assert f"the first {MAX_CLAIMS} of {3 * MAX_CLAIMS} looked up" in result.reason


def test_a_hostile_answer_is_harmless_in_the_reason():
    """R-C5: control characters do not reach the one-line reason; claims keep the text as it was."""
    result = ground("He met Foo\x1b Bar and \x07 paid 99.\n", ["nothing"])
    assert result.reason.isprintable()
