"""Find what a simulated user got wrong, without a model.

A user that invents facts, stops before its goal, speaks as the agent or repeats itself makes an
agent look worse or better than it is, so its conversation says nothing about the agent. The rules
compare the user's messages with what it knows and with the agent's answers. They prefer silence: a
fault needs a sign that an honest user hardly gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from proctor.conversations.user import SimulatedUser

FaultKind = Literal["invented_fact", "stopped_early", "spoke_as_agent", "repeated_itself"]


class UserFault(NamedTuple):
    """Something a simulated user got wrong."""

    kind: FaultKind
    turn: int
    """The user's message, from 1."""
    reason: str


# Data a person would have to know: codes and numbers of two digits or more, addresses.
_DATA = re.compile(
    r"[\w.+-]+@[\w-]+\.[\w.-]+"  # an e-mail address
    r"|https?://\S+"
    r"|\b(?=[\w#/.:-]*\d)(?=[\w#/.:-]*[A-Za-z])[A-Za-z0-9#]+(?:[-_/.:][A-Za-z0-9]+)*\b"  # a code
    r"|\d[\d,. /:-]*\d"  # a number, date, time or telephone number
)
# Figures of speech that contain numbers.
_SPEECH = re.compile(
    r"\b(?:100\s?%|24/7|\d+(?:st|nd|rd|th)\b|9[- ]to[- ]5"
    r"|\d{1,2}\s?(?:minutes?|mins?|seconds?|secs?)\b|covid-19|mp3s?|4k|5g|3d|b2b)",
    re.IGNORECASE,
)
_NAMES = re.compile(
    r"\b(?:[Mm]y name(?:'s| is)|[Mm]y (?:first|last|full) name is|[Tt]his is|[Ii]t's under the name"
    r"|[Nn]ame on (?:it|the account|the order) is|[Ii] live (?:in|at|on)|[Mm]y address is"
    r"|[Mm]y (?:city|street|town) is)\s+"
    r"(?:the\s+)?([A-Z][\w'’-]+(?:\s+[A-Z][\w'’-]+)*)"
)
_NOT_NAMES = frozenset(
    "a an the my your our i it its about for not just really still what why how ridiculous urgent "
    "great good bad fine unacceptable regarding concerning taking getting very so too".split()
)

_AGENT_VOICE = re.compile(
    r"\bhow (?:can|may) i (?:help|assist)"
    r"|\banything else (?:i|we) can (?:help|assist|do for you)"
    r"|\b(?:can|may|could) i (?:help|assist) you\b"
    r"|\bas an (?:ai|assistant|artificial)"
    r"|\bi(?:'m| am) (?:an ai|your (?:virtual )?assistant|here to (?:help|assist))"
    r"|\bi(?:'d| would|'ll| will) be (?:happy|glad) to (?:help|assist) you"
    r"|\bi(?:'ve| have) (?:now |just |successfully |already )*(?:processed|cancell?ed|updated|"
    r"issued|refunded|changed|placed|approved|initiated|submitted|exchanged|returned|credited|booked|"
    r"reset|sent|located|found) (?:your|the (?:refund|order|exchange|return) (?:for|to) you)"
    r"|\byour (?:order|refund|request|account|return|exchange|booking|reservation|payment|password|"
    r"package|subscription|ticket|address)\b[^.?!]{0,60}"
    r"\b(?:has been|have been|will be|is being|was) (?:now |successfully )*"
    r"(?:cancell?ed|processed|refunded|updated|issued|shipped|approved|"
    r"credited|exchanged|changed|booked|reset|confirmed|delivered)"
    r"|\bi(?:'ll| will| can) (?:look up|look into|check|pull up|process|cancel|update|issue|refund|"
    r"arrange) (?:your|that for you|this for you|it for you)"
    r"|\blet me (?:check|look up|pull up|look into) (?:your|that for you|this for you)"
    r"|\b(?:could|can|may|would) you (?:please )?(?:provide|give|share|confirm) (?:me )?"
    r"(?:with )?your\b"
    r"|\bthank you for (?:contacting|calling|reaching out|your patience|providing)"
    r"|\bplease (?:provide|confirm|share) (?:me )?(?:with )?your\b"
    r"|^\s*(?:assistant|agent|support|representative|bot)\s*:"
    r"|\"(?:tool_calls?|function_call|arguments)\"\s*:|<tool_call>",
    re.IGNORECASE | re.MULTILINE,
)
_GIVING_UP = re.compile(
    r"\b(?:never ?mind|forget (?:it|about it|the whole thing)|i give up"
    r"|i(?:'ll| will) (?:just )?give up"
    r"|let'?s (?:just )?drop it|i don'?t (?:care|want it|need it|need this|want this) any ?more"
    r"|i(?:'ll| will) (?:call|try|come back) (?:back )?(?:later|another time|some other time)"
    r"|i(?:'m| am) done (?:here|with this)|not worth (?:it|my time)|i(?:'ve| have) changed my mind"
    r"|leave it (?:as it is|at that)|don'?t bother)",
    re.IGNORECASE,
)
_LEAVING = re.compile(
    r"\b(?:good ?bye|bye(?:-bye)?|have a (?:nice|good|great) (?:day|one|evening|weekend)"
    r"|that(?:'s| is| was| will be|'ll be) all|that would be all|talk to you later)\b",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\b(?:cannot|can ?not|can't|unable|not able|not allowed|not possible|not eligible|ineligible"
    r"|isn't possible|isn't eligible|won't be able|do not have"
    r"|don't have (?:the )?(?:ability|access)"
    r"|against (?:our|the) policy|policy (?:does not|doesn't)|transfer(?:ring|red)? you"
    r"|human agent|denied|refuse|no longer (?:possible|available)|must decline|out of stock"
    r"|not available|could not find|couldn't find|no (?:such )?(?:order|account|record))\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+")

SHORT = 4
"""Words up to which saying the same again is ordinary ("yes, please")."""
SAME, ECHO, OTHER = 0.85, 0.8, 0.6
"""Share of common words from which two messages of the user are the same, from which a message is
the agent's own, and below which two answers differ."""


def user_faults(
    user: SimulatedUser,
    history: Sequence[Mapping[str, str]],
    *,
    stopped: bool = False,
) -> list[UserFault]:
    """Return what the user got wrong in a conversation, in order.

    `stopped` says that the user ended it: that is a fault if neither the goal is reached nor the
    agent has refused.
    """
    faults: list[UserFault] = []
    known = _text([user.persona, user.goal, user.opening or "", user.knows])
    hidden = user.does_not_know if isinstance(user.does_not_know, Mapping) else {}
    said: list[tuple[set[str], set[str]]] = []
    answer, turn, reached = "", 0, False
    for message in history:
        text = message["content"]
        if message["role"] != "user":
            known += "\n" + text.casefold()
            answer = text
            reached = reached or user.reached(text)
            continue
        turn += 1
        words, before = _words(text), _words(answer)
        if invented := _invented(text, known, hidden):
            faults.append(
                UserFault("invented_fact", turn, f"states {invented!r}, which it cannot know")
            )
        echo = len(words) > SHORT and _common(words, before) >= ECHO
        if (voice := _AGENT_VOICE.search(text)) or echo:
            what = f"says {voice[0]!r}" if voice else "repeats the agent's answer"
            faults.append(UserFault("spoke_as_agent", turn, f"{what}, as the agent would"))
        again = len(words) > SHORT and any(
            _common(words, own) >= SAME and _common(before, heard) < OTHER for own, heard in said
        )
        # An agent that repeats its question gets the same answer, but not a third time.
        stuck = sum(len(words) > SHORT and own == words for own, _ in said) > 1
        if again or stuck:
            faults.append(UserFault("repeated_itself", turn, "repeats an earlier message"))
        said.append((words, before))
        gives_up = _GIVING_UP.search(text) or (user.stop and _LEAVING.search(text))
        if gives_up and turn > 1 and not reached and not _REFUSAL.search(answer):
            faults.append(UserFault("stopped_early", turn, f"gives up ({gives_up[0]!r})"))
    if stopped and user.stop and not reached and not _REFUSAL.search(answer):
        early = any(fault.kind == "stopped_early" for fault in faults)
        if not early:
            faults.append(UserFault("stopped_early", turn + 1, "ends before its goal is reached"))
    return faults


def _invented(text: str, known: str, hidden: Mapping[str, Any]) -> str | None:
    """Return the first fact of a message that is neither the user's nor in an answer."""
    folded = text.casefold()
    for value in hidden.values():
        shown = str(value).casefold()
        if shown and shown in folded and shown not in known:
            return str(value)
    plain = _SPEECH.sub(" ", text)
    compact = re.sub(r"[\s,.#/:-]", "", known)
    for found in _DATA.finditer(plain):
        fact = found[0].strip(" ,.:-#/")
        bare = re.sub(r"[\s,.#/:-]", "", fact.casefold())
        digits = sum(char.isdigit() for char in bare)
        if ("@" in fact or "//" in fact or digits > 1) and bare not in compact:
            return fact
    for found in _NAMES.finditer(text):
        parts = [part for part in found[1].split() if part.casefold() not in _NOT_NAMES]
        if parts and not any(part.casefold().strip("'’.,") in known for part in parts):
            return " ".join(parts)
    return None


def _text(parts: Iterable[Any]) -> str:
    return "\n".join(str(part) for part in parts).casefold()


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _common(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 0.0
