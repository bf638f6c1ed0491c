"""Prompts of the LLM detectors and the schemas of their replies.

Text from a trace is placed between fences that contain its own hash, so that no text inside can
close them; the prompt says that nothing between them is an instruction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from proctor.diagnose.taxonomy import Category
from proctor.llm.chat_model import ChatRequest
from proctor.trace import Message

if TYPE_CHECKING:
    from proctor.diagnose.finding import Finding


# v1 names each kind of error and says what it means; v2 adds how it shows, and two examples.
VERSIONS = ("v1", "v2")

DEFAULT_VERSION = "v2"

# Room for about forty findings with their quotes.
MAX_REPLY_TOKENS = 8192

SCORES = ("reliability", "security", "instruction_adherence", "plan_opt")


def _object(**properties: Any) -> dict[str, Any]:
    # Strict mode of providers demands that every property is required and no other allowed.
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_ERROR = _object(
    category={"type": "string", "enum": [category.value for category in Category]},
    location={"type": "string"},
    evidence={"type": "string"},
    description={"type": "string"},
    impact={"type": "string", "enum": ["HIGH", "MEDIUM", "LOW"]},
)
_SCORE = _object(value={"type": "number"}, reason={"type": "string"})
_SCORES_SHAPE = _object(**dict.fromkeys(SCORES, _SCORE))
ERRORS_SHAPE = _object(errors={"type": "array", "items": _ERROR})
WHOLE_SHAPE = _object(errors={"type": "array", "items": _ERROR}, scores=_SCORES_SHAPE)
PROFILE_SHAPE = _object(
    task={"type": "string"},
    course={"type": "string"},
    suspicions={
        "type": "array",
        "items": _object(location={"type": "string"}, why={"type": "string"}),
    },
)
CHOICE_SHAPE = _object(
    keep={"type": "array", "items": {"type": "integer"}},
    scores=_SCORES_SHAPE,
)


@cache
def prompt_texts() -> Mapping[str, Any]:
    """Return the fixed texts of prompts.yaml; `hints` are by the name of a category."""
    import yaml

    text = (files("proctor.diagnose.llm") / "prompts.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def single_pass(
    trace_text: str, hints: Sequence[Finding], version: str, custom: str = ""
) -> ChatRequest:
    """Build the single-pass prompt; custom text replaces our instructions, not the data."""
    shipped = [
        _taxonomy(version),
        f"Where:\n{prompt_texts()['location_rules']}",
        f"Scores:\n{prompt_texts()['score_guide']}",
        *([prompt_texts()["examples"]] if version != "v1" else []),
    ]
    parts = [
        *([_filled(custom)] if custom else shipped),
        _leads(hints),
        _fenced("TRACE", trace_text),
        prompt_texts()["ask_whole"],
    ]
    return _request(parts, WHOLE_SHAPE)


def profile(overview: str, hints: Sequence[Finding]) -> ChatRequest:
    """Build the first prompt of three: the task, what the agent did, where to look."""
    parts = [
        _leads(hints),
        _fenced("TRACE", overview),
        prompt_texts()["ask_profile"],
    ]
    return _request(parts, PROFILE_SHAPE)


def investigate(
    part: str,
    known: str,
    hints: Sequence[Finding],
    number: int,
    of: int,
    version: str,
    *,
    custom: str = "",
) -> ChatRequest:
    """Build the second prompt: one part of the trace in detail."""
    shipped = [_taxonomy(version), f"Where:\n{prompt_texts()['location_rules']}"]
    parts = [
        *([_filled(custom)] if custom else shipped),
        _leads(hints),
        _fenced("PROFILE", known),
        _fenced(f"PART {number} OF {of}", part),
        prompt_texts()["ask_part"],
    ]
    return _request(parts, ERRORS_SHAPE)


def synthesise(known: str, candidates: Sequence[Finding]) -> ChatRequest:
    """Build the third prompt: which findings are right, and the scores."""
    listed = "\n".join(
        json.dumps({"number": number, **_brief(finding)}, ensure_ascii=False)
        for number, finding in enumerate(candidates, start=1)
    )
    parts = [
        f"Scores:\n{prompt_texts()['score_guide']}",
        _fenced("PROFILE", known),
        _fenced("FINDINGS", listed or "(none)"),
        prompt_texts()["ask_choice"],
    ]
    return _request(parts, CHOICE_SHAPE)


STEP_SHAPE = _object(agent={"type": "string"}, step={"type": "integer"}, reason={"type": "string"})
VERDICT_SHAPE = _object(error={"type": "boolean"}, reason={"type": "string"})
HALF_SHAPE = _object(
    half={"type": "string", "enum": ["first", "second"]}, reason={"type": "string"}
)

_FAILED_RUN = (
    "The agents below failed their task. The decisive error is the earliest step that, done right, "
    "would have let them succeed."
)


def name_step(log: str, question: str, custom: str = "") -> ChatRequest:
    """Build the prompt that names the decisive step of a whole log."""
    ask = "Reply with the agent, the number of the step, and the reason."
    return _request([custom or _FAILED_RUN, *_log(question, log), ask], STEP_SHAPE)


def judge_step(log: str, question: str, step: int, custom: str = "") -> ChatRequest:
    """Build the prompt that says whether the last step of a log is the decisive error."""
    ask = (
        f"Is step {step}, the last one shown, an error that could lead to the wrong outcome? Reply "
        "with error and reason."
    )
    return _request([custom or _FAILED_RUN, *_log(question, log), ask], VERDICT_SHAPE)


def choose_half(
    log: str, question: str, first: tuple[int, int], second: tuple[int, int], custom: str = ""
) -> ChatRequest:
    """Build the prompt that says in which half of a range the decisive error is."""
    ask = (
        f"Is the decisive error in the first half (steps {first[0]} to {first[1]}) or in the "
        f"second half (steps {second[0]} to {second[1]})? Reply with half and reason."
    )
    return _request([custom or _FAILED_RUN, *_log(question, log), ask], HALF_SHAPE)


def _log(question: str, log: str) -> list[str]:
    return [_fenced("TASK", question or "(not recorded)"), _fenced("STEPS", log)]


def _filled(custom: str) -> str:
    """Return a custom text; `{taxonomy}` in it becomes the list of kinds of error."""
    return custom.replace("{taxonomy}", _taxonomy("v2"))


def repair(request: ChatRequest, reply: str, problem: str) -> ChatRequest:
    """Build the prompt that repeats a request after a reply that did not parse."""
    again = (
        *request.messages,
        Message("assistant", reply[:4000] or "(nothing)"),
        Message("user", f"That could not be read: {problem}. Reply with the JSON object only."),
    )
    return msgspec.structs.replace(request, messages=again)


def _request(parts: Iterable[str], schema: dict[str, Any]) -> ChatRequest:
    return ChatRequest.of(
        "\n\n".join(part for part in parts if part),
        system=prompt_texts()["system"],
        schema=schema,
        # As repeatable as the provider allows.
        temperature=0.0,
        seed=0,
        timeout=300.0,
    )


def _taxonomy(version: str) -> str:
    lines = ["Kinds of error:"]
    for category in Category:
        hint = f" {prompt_texts()['hints'][category.value]}" if version != "v1" else ""
        lines.append(f"- {category.value} ({category.group.value}): {category.meaning}{hint}")
    return "\n".join(lines)


def _leads(hints: Sequence[Finding]) -> str:
    """Format the findings of the detectors without a model: leads to verify."""
    if not hints:
        return ""
    lines = [json.dumps(_brief(finding), ensure_ascii=False) for finding in hints]
    leads = _fenced("LEADS", "\n".join(lines))
    return f"A program that reads only structure has these leads; check each, look beyond.\n{leads}"


def _brief(finding: Finding) -> dict[str, Any]:
    return {
        "category": finding.category.value,
        "location": finding.location,
        "evidence": finding.evidence,
        "description": finding.description,
    }


def _fenced(name: str, text: str) -> str:
    # No text can contain its own hash, so none can close its fence.
    mark = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
    return f"<<<{name} {mark}\n{text}\n{name} {mark}>>>"
