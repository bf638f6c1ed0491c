"""Faults of simulated users: planted ones are found, honest conversations are left alone.

The conversations are made from sentences written for this test, in five domains: an honest user
asks, is asked for facts, gives them one at a time, and leaves when the matter is settled or
refused. A planted fault replaces one message, at a seeded place.
"""

from pathlib import Path
from random import Random

import pytest
import yaml

from proctor.conversations import SimulatedUser, user_faults

DOMAINS = {
    "shop": {
        "goal": "return the blue kettle from order K-20417 and get the money back to the card",
        "knows": {"order": "K-20417", "email": "mara.lind@example.net", "name": "Mara Lind"},
        "stop": ["refund (has been|is) (issued|on its way)"],
        "asks": [
            "I bought a kettle from you and it leaks.",
            "Hi, my new kettle is broken.",
            "I'd like to send back something I ordered.",
        ],
        "done": "All set: the refund has been issued to your card.",
    },
    "airline": {
        "goal": "move the flight on booking QX7R2P from 12 June to 19 June",
        "knows": {"booking": "QX7R2P", "new date": "19 June", "name": "Tomas Brandt"},
        "stop": ["(rebooked|moved) (you )?to"],
        "asks": [
            "I need to change my flight.",
            "Hello, my plans changed and I must fly later.",
            "Can I switch my ticket to another day?",
        ],
        "done": "Your seat is confirmed: I have moved you to 19 June.",
    },
    "bank": {
        "goal": "block the debit card ending in 8841 that was stolen yesterday",
        "knows": {"card": "8841", "birthday": "1988-03-02", "name": "Ines Okafor"},
        "stop": ["card .* (is|has been) blocked"],
        "asks": [
            "My card was stolen!",
            "Someone took my wallet, help.",
            "I have to block a card right away.",
        ],
        "done": "The card ending in 8841 is blocked now.",
    },
    "hotel": {
        "goal": "add breakfast for two people to reservation 55-3120",
        "knows": {"reservation": "55-3120", "last name": "Haddad", "guests": "two"},
        "stop": ["breakfast (is|has been) (added|included)"],
        "asks": [
            "We forgot breakfast when we booked.",
            "Could we get breakfast with our room?",
            "Hi! Question about our stay.",
        ],
        "done": "Breakfast has been added for both of you.",
    },
    "telecom": {
        "goal": "find out why the internet at 27 Elm Court is down and get it repaired",
        "knows": {"customer number": "TN-90011", "address": "27 Elm Court", "router": "HB-3"},
        "stop": ["technician (is|will be) (booked|there)"],
        "asks": [
            "The internet does not work since this morning.",
            "My wifi is dead again.",
            "Nothing loads at home, what is going on?",
        ],
        "done": "A technician is booked for tomorrow at 9.",
    },
}
QUESTIONS = [
    "I'm sorry to hear that. Could you give me your {fact}?",
    "Of course. What is your {fact}, please?",
    "To find it I need your {fact}.",
    "Thanks. And the {fact}?",
    "May I ask for the {fact} as well?",
]
GIVES = [
    "It's {value}.",
    "Sure, {value}.",
    "{value}, I believe.",
    "My {fact} is {value}.",
    "Here you go: {value}",
    "That would be {value}.",
]
SMALL_TALK = [
    (
        "One moment, I am looking at it now. Is the matter urgent?",
        "Yes, kind of, I need it this week.",
    ),
    ("Do you have any other concerns about it?", "No, just this one thing, thanks."),
    ("Did you try this in the app already?", "I tried, but I couldn't find the right page."),
    ("Would you like me to send a confirmation?", "Yes please, that would be good to have."),
    ("Just to be sure: shall I go ahead?", "Yes, please go ahead with it."),
    ("That can take up to 5 working days. Is that fine?", "5 working days is fine with me."),
    (
        "Our records show a note from last year. Is it still valid?",
        "I honestly don't know about any note.",
    ),
    (
        "Do you know the exact time it happened?",
        "I don't know, sorry, I did not look at the clock.",
    ),
]
LEAVES = [
    "Great, thank you so much!",
    "Perfect, that's all I needed. Bye!",
    "Wonderful, have a nice day.",
    "Thanks, that helps a lot.",
]
REFUSALS = [
    "I am sorry, this is not possible under our policy.",
    "Unfortunately I cannot do that; I am transferring you to a human agent.",
]
AFTER_REFUSAL = [
    "Okay, what a pity. Goodbye.",
    "Never mind then, thanks anyway.",
    "Alright, I'll try elsewhere.",
]

INVENTED = [
    "My order number is ZZ-44190, if that helps.",
    "You can reach me at peter.parker@mail.example.",
    "I paid 249.99 for it.",
    "My phone number is 0176 5550 1234.",
    "It was on 14 February 2025.",
    "The tracking code says 1Z999AA10123456784.",
    "My name is Gregory Stone, by the way.",
    "I live in Rotterdam, so please hurry.",
    "The serial number is SN-77120-B.",
    "My zip code is 90210.",
    "I already talked to case 778812 about this.",
    "Use the voucher code SUMMER25 for it.",
    "My account is DE44 5001 0517 5407 3249 31.",
    "I was born on 7 July 1961.",
    "The last four digits are 5093.",
]
EARLY = [
    None,
    "Never mind, I don't need it anymore.",
    "You know what, forget it.",
    "I give up, this takes too long.",
    "I'll call back later.",
    None,
    "It's not worth it, really.",
    "I've changed my mind, leave it as it is.",
    "Don't bother, I'm done here.",
    None,
    "Goodbye!",
    "That's all, thanks, bye.",
    "I'll try another time.",
    None,
    "Let's just drop it.",
]
AS_AGENT = [
    "How can I help you today?",
    "I have processed your request, is there anything else?",
    "Your refund has been issued to your card.",
    "Thank you for contacting customer support.",
    "Could you please provide your order number?",
    "I'd be happy to help you with that.",
    "As an AI language model I cannot feel that.",
    "Let me check your account for you.",
    "Assistant: I can see the booking here.",
    "Please confirm your e-mail address so that I can proceed.",
    "I will look into your case right away.",
    "Your reservation has been updated successfully.",
    "Is there anything else I can help you with?",
    "I'm your virtual assistant for today.",
    '{"tool_calls": [{"name": "cancel_order"}]}',
]


def honest(domain: str, random: Random) -> tuple[SimulatedUser, list[dict[str, str]], bool]:
    about = DOMAINS[domain]
    user = SimulatedUser.model_validate(
        {"goal": about["goal"], "knows": about["knows"], "stop": about["stop"], "model": "openai:x"}
    )
    said: list[dict[str, str]] = []

    def exchange(message: str, answer: str) -> None:
        said.extend(
            [{"role": "user", "content": message}, {"role": "assistant", "content": answer}]
        )

    facts = random.sample(list(about["knows"].items()), random.choice([1, 2, 3]))
    questions = random.sample(QUESTIONS, len(facts))
    message = random.choice(about["asks"])
    for (fact, value), question in zip(facts, questions, strict=True):
        exchange(message, question.format(fact=fact))
        message = random.choice(GIVES).format(fact=fact, value=value)
    for answer, next_message in random.sample(SMALL_TALK, random.choice([0, 1, 2])):
        exchange(message, answer)
        message = next_message
    refused = random.random() < 0.25
    exchange(message, random.choice(REFUSALS) if refused else about["done"])
    if random.random() < 0.7:
        last = random.choice(AFTER_REFUSAL if refused else LEAVES)
        said.append({"role": "user", "content": last})
    return user, said, True


def faulty(kind: str, index: int) -> tuple[SimulatedUser, list[dict[str, str]], bool]:
    random = Random(f"{kind}/{index}")
    user, said, _ = honest(list(DOMAINS)[index % 5], random)
    messages = [place for place, each in enumerate(said) if each["role"] == "user"]
    if kind == "stopped_early":
        # After the first question and before the matter is settled.
        said, text = said[:2], EARLY[index]
        if text is not None:
            said.append({"role": "user", "content": text})
        return user, said, text is None
    place = random.choice(messages[1:] if len(messages) > 1 else messages)
    if kind == "repeated_itself":
        long = "I told you that it does not work and I want it solved today."
        said[0] = {"role": "user", "content": long}
        if place == 0:
            said += [{"role": "user", "content": long}]
        else:
            said[place] = {"role": "user", "content": long.replace("today", "today, please")}
        return user, said, False
    text = {"invented_fact": INVENTED, "spoke_as_agent": AS_AGENT}[kind][index]
    said[place] = {"role": "user", "content": text}
    return user, said[: place + 2], False


def test_planted_faults_are_found_and_honest_users_are_left_alone() -> None:
    """R-N8: at least 95 % of 60 planted faults, at most 2 % of 200 honest conversations."""
    kinds = ("invented_fact", "stopped_early", "spoke_as_agent", "repeated_itself")
    planted = [(kind, faulty(kind, index)) for kind in kinds for index in range(15)]
    missed = [
        (kind, said[-3:])
        for kind, (user, said, stopped) in planted
        if not user_faults(user, said, stopped=stopped)
    ]
    random = Random(20)
    alarms = []
    for index in range(200):
        user, said, stopped = honest(list(DOMAINS)[index % 5], random)
        if found := user_faults(user, said, stopped=stopped):
            alarms.append((found, said))
    print(f"{60 - len(missed)} of 60 planted faults found, {len(alarms)} of 200 honest alarmed")
    assert len(missed) <= 3, missed
    assert len(alarms) <= 4, alarms


def test_other_phrasings_are_found_and_left_alone() -> None:
    """R-N8: the same bounds for conversations of eight other users, each in its own words."""
    path = Path(__file__).with_name("user_conversations.yaml")
    found: dict[str, list[tuple[bool, str]]] = {"faulty": [], "honest": []}
    for each in yaml.safe_load(path.read_text(encoding="utf-8")):
        user = SimulatedUser.model_validate({**each["user"], "model": "openai:x"})
        for kind, results in found.items():
            for messages in each[kind]:
                said = [
                    {"role": "user" if number % 2 else "assistant", "content": text}
                    for number, text in enumerate(messages)
                ]
                results.append((bool(user_faults(user, said)), messages[-1]))
    missed = [text for faulty, text in found["faulty"] if not faulty]
    alarms = [text for faulty, text in found["honest"] if faulty]
    counts = {kind: len(results) for kind, results in found.items()}
    print(f"{len(missed)} missed, {len(alarms)} alarms of {counts}")
    assert len(missed) <= 0.05 * counts["faulty"], missed
    assert len(alarms) <= 0.02 * counts["honest"], alarms


@pytest.mark.parametrize(
    ("name", "faulty", "honest"),
    [("unseen_conversations.yaml", 88, 80), ("more_conversations.yaml", 186, 240)],
)
def test_users_of_other_domains_and_languages(name: str, faulty: int, honest: int) -> None:
    """R-N8: the same bounds hold for 33 other domains, five of them not in English."""
    path = Path(__file__).with_name(name)
    missed, alarms = [], []
    counts = {"faulty": 0, "honest": 0}
    for each in yaml.safe_load(path.read_text(encoding="utf-8")):
        user = SimulatedUser.model_validate({**each["user"], "model": "openai:x"})
        for kind, *messages in [*each["faulty"], *(["", *one] for one in each["honest"])]:
            # Who gives up ends the conversation with the next message.
            ends = messages[-1] == "<stop>"
            said = (
                messages[:-1]
                if ends
                else [*messages, "OK."]
                if kind == "stopped_early"
                else messages
            )
            found = user_faults(
                user,
                [
                    {"role": "user" if number % 2 else "assistant", "content": text}
                    for number, text in enumerate(said)
                ],
                stopped=ends or kind in ("", "stopped_early"),
            )
            counts["faulty" if kind else "honest"] += 1
            if kind and not found:
                missed.append((kind, messages[-1]))
            if found and not kind:
                alarms.append((found, messages))
    print(f"{len(missed)} missed, {len(alarms)} alarms of {counts}")
    assert counts == {"faulty": faulty, "honest": honest}
    assert len(missed) <= 0.05 * counts["faulty"], missed
    assert len(alarms) <= 0.02 * counts["honest"], alarms


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("I have waited 20 minutes already, this is the 3rd time!", None),
        ("This is ridiculous, I want to talk to a manager.", None),
        ("So my refund will be on the card in 5 days?", None),
        ("My name is Mara Lind.", None),
        ("My name is Otto.", "invented_fact"),
    ],
)
def test_ordinary_speech_is_no_fault(message: str, kind: str | None) -> None:
    """R-N8: figures of speech, complaints and known facts are honest."""
    user = SimulatedUser.model_validate(
        {"goal": "a refund", "knows": {"name": "Mara Lind"}, "model": "openai:x"}
    )
    said = [
        {"role": "user", "content": "I want a refund"},
        {"role": "assistant", "content": "That takes 5 days."},
        {"role": "user", "content": message},
    ]
    assert [fault.kind for fault in user_faults(user, said)] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("said", "invented"),
    [("04.05.1988", False), ("1988-05-04", False), ("05.06.1988", True), ("04.05.1989", True)],
)
def test_a_date_may_be_said_in_another_form(said: str, invented: bool) -> None:
    """R-N8: "4 May 1988" in digits is the same fact, and another day is not."""
    user = SimulatedUser(goal="book", knows={"birth date": "4 May 1988"}, model="openai:any")
    history = [
        {"role": "user", "content": "I'd like to come."},
        {"role": "assistant", "content": "Your date of birth?"},
        {"role": "user", "content": said},
    ]
    assert bool(user_faults(user, history)) is invented
