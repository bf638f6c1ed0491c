"""Calls and answers beside the request: one planted error each, and the same case done right."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from proctor.diagnose.methods import TrialEvidence, diagnose_offline
from proctor.trace.load import load_traces

Messages = list[dict[str, Any]]


class Case(NamedTuple):
    """A request, the acts of an agent that errs, the step of its error, and the right acts."""

    rule: str
    rules: str
    asked: str
    wrong: Sequence[Any]
    step: int
    right: Sequence[Any]


PLACES = [
    {"id": "c-101", "name": "Anna Lind", "city": "Malmö"},
    {"id": "c-245", "name": "Anna Lind", "city": "Uppsala"},
]
STAFF = [
    {"name": "Tomas Reyl", "extension": "4417"},
    {"name": "Tamara Reyl", "extension": "4471"},
]
MENU = [
    {"id": "p1", "name": "Forestale", "toppings": ["mushrooms", "ham"]},
    {"id": "p2", "name": "Verdura", "toppings": ["peppers", "olives"]},
]
TENTS = [
    {"sku": "T4-A", "name": "Ridge", "price": 289.0},
    {"sku": "T4-B", "name": "Vale", "price": 219.0},
]
FARES = [
    {"flight": "DY1852", "direct": True, "price": 214},
    {"flight": "LH865", "direct": False, "price": 168},
]
FLIGHTS = [
    {"flight": "TP761", "price": 189, "stops": 0},
    {"flight": "DY184", "price": 142, "stops": 0},
    {"flight": "KL119", "price": 119, "stops": 1},
]


def call(tool: str, result: Any, **arguments: Any) -> tuple[str, dict[str, Any], Any]:
    return tool, arguments, result


CASES = {
    "record the request does not name": Case(
        "wrong_record", "", "Set the phone of Anna Lind in Uppsala to +46 18 55.",
        [call("find", PLACES, name="Anna Lind"), call("update", "ok", id="c-101"), "Done."], 2,
        [call("find", PLACES, name="Anna Lind"), call("update", "ok", id="c-245"), "Done."],
    ),
    "not the cheapest": Case(
        "wrong_record", "", "Book the cheapest direct flight from Oslo to Porto.",
        [call("flights", FLIGHTS), call("book", "ok", flight="TP761"), "Booked."], 2,
        [call("flights", FLIGHTS), call("book", "ok", flight="DY184"), "Booked."],
    ),
    "what the request excludes": Case(
        "wrong_record", "", "Order a pizza without mushrooms.",
        [call("menu", MENU), call("place_order", "ok", item="p1"), "It is ordered."], 2,
        [call("menu", MENU), call("place_order", "ok", item="p2"), "It is ordered."],
    ),
    "not what the request names": Case(
        "wrong_record", "", "What is the cheapest direct fare?",
        [call("fares", FARES), "The cheapest is LH865 for 168."], 2,
        [call("fares", FARES), "The cheapest is DY1852 for 214."],
    ),
    "the value of another record": Case(
        "crossed_value", "", "What is the extension of Tomas Reyl?",
        [call("staff", STAFF), "The extension of Tomas Reyl is 4471."], 2,
        [call("staff", STAFF), "Tomas Reyl has 4417, Tamara Reyl has 4471."],
    ),
    "the value of another field": Case(
        "crossed_value", "", "Who coached the away team?",
        [call("match", {"home_coach": "Pia Lund", "away_coach": "Marek Zajic"}),
         "The away coach was Pia Lund."], 2,
        [call("match", {"home_coach": "Pia Lund", "away_coach": "Marek Zajic"}),
         "The away coach was Marek Zajic; the home coach, Pia Lund."],
    ),
    "the value of another year": Case(
        "crossed_value", "", "How many visitors came in 2021?",
        [call("report", "58,900 visitors in 2021, 73,450 in 2022"), "In 2021 73,450 came."], 2,
        [call("report", "58,900 visitors in 2021, 73,450 in 2022"), "In 2021 58,900 came."],
    ),
    "more than the request allows": Case(
        "over_limit", "", "Find two tents, at most 250 euros each. Then order them.",
        [call("search", TENTS), call("order_item", "ok", sku="T4-A"), "Ordered."], 2,
        [call("search", TENTS), call("order_item", "ok", sku="T4-B", total=438.0),
         "Two Vale are ordered.", "Ridge is 289.00, more than that. Shall I?",
         call("order_item", "ok", sku="T4-A"), "Ordered."],
    ),
    "more than the rules allow": Case(
        "over_limit", "Refunds above 100 USD need approval, never issue them.", "Refund order 7-A.",
        [call("order", {"price": 140.0}), call("issue_refund", "ok", amount=140.0), "Done."], 2,
        [call("order", {"price": 140.0}), call("request_approval", "ok", amount=140.0),
         call("issue_refund", "ok", amount=140.0), "Done."],
    ),
    "changes what is not to change": Case(
        "forbidden_act", "", "Add a bag to QK7Z2M. Do not change my seat.",
        [call("update_seat", "ok", reservation="QK7Z2M", seat="2A"), "Done."], 1,
        [call("update_bags", "ok", reservation="QK7Z2M", bags=2), "Done."],
    ),
    "edits what is not to be touched": Case(
        "forbidden_act", "", "Speed up slug.py. Do not touch anything in tests/.",
        [call("edit_file", "ok", path="tests/test_slug.py", text="x"), "Done."], 1,
        [call("edit_file", "ok", path="slug.py", text="# tests pass"), "Done."],
    ),
    "another value of the same name": Case(
        "argument_contradicts_request", "", "Move HB-5521 to 14 August.",
        [call("free", "yes", check_in="2026-08-14"), call("change", "ok", check_in="2026-08-24"),
         "Done."], 2,
        [call("find", "none", query="HB-5521"), call("search", "one", query="HB-5521 of August 14"),
         call("free", "no, 2026-08-24 is", check_in="2026-08-14"),
         call("change", "ok", check_in="2026-08-24"), "14 August is full; it is 24 August now."],
    ),
    "an act that no call did": Case(
        "claimed_act", "", "Book me with Dr. Adler on Friday at 9.",
        [call("find_slots", {"slots": ["09:00"]}), "I have booked Friday at 09:00 for you."], 2,
        [call("find_slots", {"slots": ["09:00"]}), call("book_slot", "ok", time="09:00"),
         "I have booked Friday at 09:00 for you."],
    ),
    "a wrong sum": Case(
        "wrong_equation", "", "How many days are left?",
        [call("taken", {"taken": 17, "planned": 3}), "Used are 17 + 3 = 21 days."], 2,
        [call("taken", {"taken": 17, "planned": 3}), "Used are 17 + 3 = 20 days."],
    ),
    "more than a word": Case(
        "answer_form", "", "Give the capital of Uri as a single word in capital letters.",
        [call("wiki", "Its capital is Altdorf."), "The capital is Altdorf."], 2,
        [call("wiki", "Its capital is Altdorf."), "ALTDORF"],
    ),
    "work for another agent": Case(
        "wrong_handoff", "Tools:\n- transfer_to_parcels: delivery\n- transfer_to_invoices: money",
        "My invoice from April is wrong, please check it.",
        [call("transfer_to_parcels", "ok"), "You have no parcels under way."], 1,
        [call("transfer_to_invoices", "ok"), "You were charged twice."],
    ),
    "another count": Case(
        "argument_contradicts_request", "", "Reserve the Fjord room for 24 people, 13:00 to 17:00.",
        [call("reserve", "ok", room="Fjord", people=14), "Reserved."], 1,
        [call("reserve", "ok", room="Fjord", people=24), "Reserved."],
    ),
    "another city": Case(
        "argument_contradicts_request", "", "I need a hotel in Lyon for two nights.",
        [call("hotels", ["Le Cygne"], city="Lille"), "There is Le Cygne."], 1,
        [call("hotels", ["Le Cygne"], city="Lyon"), "There is Le Cygne."],
    ),
    "another day": Case(
        "argument_contradicts_request", "Today is Monday 2026-03-02.", "Meet Priya tomorrow at 10.",
        [call("free", "10-12", day="2026-03-03"), call("add", "ok", day="2026-03-04"), "Done."], 2,
        [call("free", "10-12", day="2026-03-03"), call("add", "ok", day="2026-03-03"), "Done."],
    ),
    "another year": Case(
        "argument_contradicts_request", "", "Compare Arvo's revenue of 2022 with 2023.",
        [call("revenue", {"musd": 310.4}, year=2023), call("revenue", {"musd": 250.9}, year=2021),
         "It grew from 250.9 to 310.4 million USD."], 2,
        [call("revenue", {"musd": 310.4}, year=2023), call("revenue", {"musd": 281.0}, year=2022),
         "It grew by 10.5 % from 281.0 to 310.4 million USD."],
    ),
    "gross for net": Case(
        "opposite_argument", "", "What is the net revenue from Portugal?",
        [call("sql", [{"s": 18450.5}], q="SELECT SUM(gross) FROM orders"), "It is 18,450.50."], 1,
        [call("sql", [{"s": 15000.4}], q="SELECT SUM(net) FROM orders"), "It is 15,000.40."],
    ),
    "kilometres as metres": Case(
        "wrong_unit", "", "Log a run of 8.5 km.",
        [call("log_run", "ok", distance_m=8.5), "Logged."], 1,
        [call("log_run", "ok", distance_m=8500), "Logged."],
    ),
    "francs as euros": Case(
        "wrong_unit", "", "What does the kettle cost?",
        [call("product", {"price": {"amount": 64.9, "currency": "CHF"}}), "It costs 64.90 EUR."], 2,
        [call("product", {"price": {"amount": 64.9, "currency": "CHF"}}), "It costs 64.90 CHF."],
    ),
    "a price that was replaced": Case(
        "superseded_value", "", "Buy KLM if it is below 50.",
        [call("quote", {"symbol": "KLM", "price": 48.2}, symbol="KLM"),
         call("refresh", {"symbol": "KLM", "price": 53.75}, symbol="KLM"),
         call("buy", "ok", symbol="KLM", limit=48.2), "Bought."], 3,
        [call("quote", {"symbol": "KLM", "price": 71.2}, symbol="KLM", day="2026-03-01"),
         call("quote", {"symbol": "KLM", "price": 53.75}, symbol="KLM", day="2026-03-02"),
         "It fell from 71.2 to 53.75; I bought nothing."],
    ),
    "forbidden in words": Case(
        "forbidden_act", "Never push to main; open a pull request.", "Fix the typo in main.py.",
        [call("run", "ok", cmd="git commit -am fix && git push origin main"), "Fixed."], 1,
        [call("run", "ok", cmd="git checkout -b fix && git push origin fix"), "Fixed."],
    ),
    "deletes what is to be archived": Case(
        "unrequested_harm", "Tools: archive_mail (keeps it), delete_mail (removes it).",
        "Archive the newsletter, please.",
        [call("find", [{"id": "e-3301"}]), call("delete_mail", "ok", id="e-3301"), "Done."], 2,
        [call("find", [{"id": "e-3301"}]), call("archive_mail", "ok", id="e-3301"), "Done."],
    ),
    "a loop": Case(
        "loop", "", "When is the library open?",
        [*[call("open_page", "under construction, see /contact", url="/a") for _ in range(3)],
         "I could not find the opening hours."], 2,
        [*[call("build_state", {"state": "running"}) for _ in range(3)],
         call("build_state", {"state": "live"}), "It is live."],
    ),
    "another language": Case(
        "answer_form", "Reply in German only.", "Where is my parcel 7734-AB?",
        [call("track", {"at": "Kassel"}), "Your parcel 7734-AB is in Kassel and it is on time."], 2,
        [call("track", {"at": "Kassel"}), "Ihr Paket 7734-AB ist in Kassel und es ist pünktlich."],
    ),
    "no JSON": Case(
        "answer_form", "Answer with a JSON object and nothing else.", "Read the receipt.",
        [call("receipt", "Smit 7.70"), "The vendor is Smit and the total is 7.70."], 2,
        [call("receipt", "Smit 7.70"), '```json\n{"vendor": "Smit", "total": 7.7}\n```'],
    ),
    "too long": Case(
        "answer_form", "Use at most two sentences.", "Why is the sky blue, e.g. at noon?",
        ["Air scatters light. Blue light is scattered most. So it comes from everywhere."], 1,
        ["Air scatters blue light, e.g. from the sun, most. So it comes from everywhere."],
    ),
    "a failed part": Case(
        "failure_called_success", "", "Restart web-1 and web-2.",
        [call("restart", {"state": "running"}, service="web-1"),
         call("restart", {"state": "failed"}, service="web-2"), "Both are running."], 3,
        [call("restart", {"state": "failed"}, service="web-1"),
         call("restart", {"state": "running"}, service="web-1"),
         call("restart", {"state": "running"}, service="web-2"), "Both are running."],
    ),
    "failed tests": Case(
        "failure_called_success", "", "Make the tests pass.",
        [call("bash", "..F\n1 failed, 3 passed", command="pytest -q"), "All tests pass."], 2,
        [call("bash", "..F\n1 failed, 3 passed", command="pytest -q"),
         call("bash", "4 passed", command="pytest -q tests"), "All tests pass now."],
    ),
    "before the required call": Case(
        "required_call_missing", "Before any transfer you must call verify_identity.",
        "Customer 12: move 20 EUR to savings.",
        [call("balance", {"eur": 88}), call("transfer", "ok", eur=20), "Done."], 2,
        [call("verify_identity", "ok"), call("transfer", "ok", eur=20), "Done."],
    ),
}  # fmt: skip


def found_in(tmp_path: Path, case: Case, acts: Sequence[Any], **evidence: Any) -> Any:
    messages: Messages = [{"role": "system", "content": case.rules}] if case.rules else []
    messages.append({"role": "user", "content": case.asked})
    for n, act in enumerate(acts):
        if isinstance(act, str):
            messages.append({"role": "assistant", "content": act})
            continue
        tool, arguments, result = act
        asked = {"name": tool, "arguments": json.dumps(arguments)}
        requested = [{"id": f"c{n}", "type": "function", "function": asked}]
        said = result if isinstance(result, str) else json.dumps(result)
        messages += [
            {"role": "assistant", "content": None, "tool_calls": requested},
            {"role": "tool", "tool_call_id": f"c{n}", "content": said},
        ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"messages": messages}))
    (trace,) = load_traces(path)
    return diagnose_offline(trace, evidence=TrialEvidence(**evidence) if evidence else None)


@pytest.mark.parametrize("name", CASES)
def test_what_the_request_shows(tmp_path: Path, name: str) -> None:
    """R-G8: the planted act is the decisive step, found by its rule; done right, nothing is."""
    case = CASES[name]
    found = found_in(tmp_path, case, case.wrong)
    assert found.decisive is not None
    assert (found.decisive.step, found.findings[0].detector) == (case.step, f"rule:{case.rule}")
    right = found_in(tmp_path, case, case.right)
    assert [f.description for f in right.findings if f.detector == f"rule:{case.rule}"] == []


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        ([{"amount": 312.4}, {"amount": 88.15}, {"amount": 240.0}], "In all it is 640.55."),
        ({"months": [{"spent": 1830.5}, {"spent": 940.25}]}, "January 1,830.50, March 940.25."),
        ({"days_per_year": 28, "taken": 17}, "You have 28 days a year and took 17."),
        ({"mol_per_l": 2, "ml": 500}, "V = 0.1 * 250 / 2 = 12.5 ml."),
        (
            "4.12 million in 2020 and 4.87 million in 2023",
            "Since 2020 it has grown to 4.87 million.",
        ),
        ("add the change", "-5 + 8 = 3, so it is 3 degrees."),
        ({"new": "Friday 10:30"}, "Your appointment has been rescheduled to Friday at 10:30."),
        (
            [{"id": "I-1", "of": 312.4}, {"id": "I-2", "of": 88.1}],
            "I-1 over 312.40 and I-2 over 88.10.",
        ),
    ],
)
def test_what_follows_from_a_result_is_no_finding(tmp_path: Path, result: Any, answer: str) -> None:
    """R-G8: sums, stated calculations and amounts after the name of a month are no inventions."""
    case = Case("", "", "What is the figure for 250 ml of 0.1?", [], 0, [])
    found = found_in(tmp_path, case, [call("look_up", result), answer])
    assert [finding.description for finding in found.findings] == []


def test_a_place_to_look_without_evidence(tmp_path: Path) -> None:
    """R-G8: without a finding, the last step that changed something is named with little
    confidence; of a trial that passed, no step is."""
    case = CASES["another city"]
    acts = [call("get_order", {"id": 7}), call("book_table", "ok", id=7), "It is booked."]
    found = found_in(tmp_path, case, acts)
    assert (found.findings, found.decisive.step, found.decisive.confidence) == ((), 2, 0.1)
    assert "no sign of an error" in found.decisive.why
    assert found_in(tmp_path, case, acts, passed=True).decisive is None
