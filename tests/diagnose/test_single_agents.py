"""Transcripts of single agents with one obvious cause each, and clean ones, through the command."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from proctor.cli.diagnose import diagnose as command

NUMBERS = count(1)
Transcript = list[dict[str, Any]]


def call(name: str, args: Any, result: Any, text: str | None = None) -> Transcript:
    n = next(NUMBERS)
    return [
        {
            "role": "assistant",
            "content": text,
            "tool_calls": [
                {
                    "id": f"c{n}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(args)},
                }
            ],
        },
        {
            "role": "tool",
            "tool_call_id": f"c{n}",
            "content": result if isinstance(result, str) else json.dumps(result),
        },
    ]


def log(system: str, q: str, *steps: Transcript, answer: str) -> Transcript:
    m: Transcript = [{"role": "system", "content": system}, {"role": "user", "content": q}]
    for s in steps:
        m += s
    return [*m, {"role": "assistant", "content": answer}]


S = "You are a helpful clerk of a parcel service."
FAILURES = {
    "empty then invented": (
        log(
            S,
            "Which depot holds parcel of Mrs. Okafor?",
            *[call("find_parcel", {"recipient": "Okafor"}, {"matches": []}) for _ in range(4)],
            answer="The parcel PX-77182 is at depot Lübeck-Nord and weighs 3.4 kg.",
        ),
        5,
    ),
    "503 then confident": (
        log(
            S,
            "What is the current tariff for 5 kg to Norway?",
            call("tariff_service", {"kg": 5, "to": "NO"}, "Error: 503 Service Unavailable"),
            answer="The tariff for 5 kg to Norway is 23.80 EUR.",
        ),
        2,
    ),
    "calculator contradicted": (
        log(
            S,
            "What do 17 parcels at 4.35 cost?",
            call("calculator", {"expression": "17*4.35"}, "73.95"),
            answer="Together they cost 79.35 EUR.",
        ),
        2,
    ),
    "forbidden tool": (
        log(
            "You track parcels. You must never use `reroute_parcel`.",
            "Where is PK4411?",
            call("track", {"id": "PK4411"}, {"at": "Kiel"}),
            call("reroute_parcel", {"id": "PK4411", "to": "Bonn"}, {"ok": True}),
            answer="It is in Kiel.",
        ),
        2,
    ),
    "wrong id": (
        log(
            S,
            "Track parcel 80045512 please.",
            call("track", {"id": "80045521"}, {"at": "Jena", "status": "delivered"}),
            answer="It was delivered in Jena.",
        ),
        1,
    ),
    "claimed call": (
        log(
            S,
            "Is 7781 insured?",
            answer="I have checked the insurance register: parcel 7781 is insured for 500 EUR.",
        ),
        1,
    ),
    "status 401 ignored": (
        log(
            S,
            "How many parcels are open for Brenner KG?",
            call(
                "open_parcels",
                {"customer": "Brenner KG"},
                {"status": 401, "message": "unauthorized"},
            ),
            answer="Brenner KG has 12 open parcels.",
        ),
        2,
    ),
    "required skipped": (
        log(
            "Before any answer you must call `check_identity`.",
            "Where is my parcel 5512?",
            call("track", {"id": "5512"}, {"at": "Ulm"}),
            answer="It is in Ulm.",
        ),
        2,
    ),
    "crash": (
        log(
            S,
            "Sum the weights of list 9.",
            call("load_list", {"id": 9}, {"weights": [1, 2]}),
            call(
                "sum_weights",
                {"list": 9},
                "Traceback (most recent call last):\n  File \"w.py\", line 3\nKeyError: 'weights'",
            ),
            answer="The total weight is 41 kg.",
        ),
        3,
    ),
    "plan not executed": (
        log(
            S,
            "Refund order R-100 and inform the customer.",
            call(
                "get_order",
                {"id": "R-100"},
                {"total": 20},
                "Plan: 1. get_order 2. refund_order 3. send_email",
            ),
            answer="The refund is done and the customer was informed.",
        ),
        2,
    ),
    "result altered name": (
        log(
            S,
            "Who signed for parcel 3390?",
            call(
                "signature", {"id": "3390"}, {"signed_by": "Ingrid Halvorsen", "at": "2024-03-02"}
            ),
            answer="It was signed by Ingmar Haldorsen on 2024-03-02.",
        ),
        2,
    ),
    "repeated failing": (
        log(
            S,
            "Print label for 660.",
            *[call("print_label", {"id": "660"}, "Error: printer offline") for _ in range(5)],
            answer="The label has been printed.",
        ),
        6,
    ),
    "unit beside the number": (
        log(
            S,
            "How heavy is pallet 12?",
            call(
                "weigh", {"pallet": "12"}, {"pallet": "12", "load": [{"value": 1860, "unit": "lb"}]}
            ),
            answer="Pallet 12 weighs 1860 kg.",
        ),
        2,
    ),
}
CLEAN = {
    "ok track": log(
        S,
        "Where is PK4411?",
        call("track", {"id": "PK4411"}, {"at": "Kiel", "since": "08:15"}),
        answer="PK4411 is in Kiel since 08:15.",
    ),
    "ok calc": log(
        S,
        "What do 17 parcels at 4.35 cost?",
        call("calculator", {"expression": "17*4.35"}, "73.95"),
        answer="They cost 73.95 EUR in total.",
    ),
    "ok nothing": log(
        S,
        "Which depot holds the parcel of Mrs. Okafor?",
        call("find_parcel", {"recipient": "Okafor"}, {"matches": []}),
        call("find_parcel", {"recipient": "Okaford"}, {"matches": []}),
        answer="I could not find a parcel for that name. Please check the spelling.",
    ),
    "ok retry": log(
        S,
        "Tariff for 5 kg to Norway?",
        call("tariff_service", {"kg": 5}, "Error: 503"),
        call("tariff_service", {"kg": 5}, {"eur": 23.8}),
        answer="It is 23.80 EUR.",
    ),
    "ok chat": log(S, "Thanks, bye!", answer="You are welcome. Have a nice day!"),
    "ok derived": log(
        S,
        "How many parcels in total at Kiel and Ulm?",
        call("count", {"depot": "Kiel"}, {"n": 14}),
        call("count", {"depot": "Ulm"}, {"n": 9}),
        answer="There are 23 parcels: 14 in Kiel and 9 in Ulm.",
    ),
    "ok percent": log(
        S,
        "What share of 200 parcels is late if 30 are?",
        call("calculator", {"expression": "30/200"}, "0.15"),
        answer="15 % of the parcels are late.",
    ),
    "ok date": log(
        S,
        "When does 99 arrive?",
        call("eta", {"id": 99}, {"eta": "2024-05-17T14:00"}),
        answer="It arrives on 17 May 2024 at 2 pm.",
    ),
    "ok round": log(
        S, "Average weight?", call("avg", {}, {"avg": 3.14159}), answer="About 3.14 kg on average."
    ),
    "ok unit": log(
        S,
        "How heavy is pallet 12, in kg?",
        call("weigh", {"pallet": "12"}, {"pallet": "12", "value": 1860, "unit": "lb"}),
        answer="Pallet 12 weighs about 843.7 kg.",
    ),
    "ok list": log(
        S,
        "Give me three tips for packing.",
        answer="1. Use a strong box.\n2. Fill empty space.\n3. Tape all seams twice.",
    ),
}


def diagnosed(path: Path, messages: Transcript) -> dict[str, Any]:
    path.write_text(json.dumps({"messages": messages}))
    return json.loads(CliRunner().invoke(command, [str(path), "--format", "json"]).output)


@pytest.mark.parametrize("name", FAILURES)
def test_an_obvious_cause_is_found(tmp_path: Path, name: str) -> None:
    """R-G8: the decisive step of each transcript is the planted one, and no score is invented."""
    messages, step = FAILURES[name]
    found = diagnosed(tmp_path / "t.json", messages)
    assert found["decisive"]["step"] == step, found["decisive"]["what"]
    assert found["scores"] == []


def test_a_cause_without_calls_is_quoted(tmp_path: Path) -> None:
    """R-G8: a plan that was not executed is named by its words, not by results it never had."""
    plan = "Plan:\n1. Find it with find_parcel.\n2. Check the duty with get_duty.\n3. Answer."
    messages = log(
        f"{S} Write a plan first and follow it.",
        "What duty is due on parcel PK9?",
        [{"role": "assistant", "content": plan}],
        call("find_parcel", {"id": "PK9"}, {"id": "PK9", "at": "Kiel"}),
        answer="Parcel PK9 is in Kiel, and no duty is due.",
    )
    (led,) = diagnosed(tmp_path / "t.json", messages)["decisive"]["because"]
    assert led.startswith("step 1: Plan: 1. Find it with find_parcel.")


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_transcript_has_no_finding(tmp_path: Path, name: str) -> None:
    """R-G8: derived figures, rounding, retries and honest gaps are no errors."""
    assert diagnosed(tmp_path / "t.json", CLEAN[name])["errors"] == []
