"""Rules on the answer as a whole: its language, form and length, and the success it reports."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from proctor.diagnose._steps import MAX_TEXT, plain
from proctor.diagnose._values import NUMBER_WORDS, entries_of, parsed
from proctor.diagnose.finding import Category, Impact
from proctor.diagnose.rules._failures import RuleHit, rule
from proctor.diagnose.rules.claims import Claims, call_name, calls_of, sentence_at
from proctor.sanitize import line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proctor.diagnose._steps import Steps
    from proctor.trace import Span

# -- the form of the answer ----------------------------------------------------------------------

_COMMON_WORDS = {
    "English": "the and is are of to in you your for with that this was will have not be from it",
    "German": "der die das und ist sind nicht sie ihr ihre für mit ein eine einen den zu es wird",
    "French": "le la les et est sont pas vous votre pour avec un une des du que dans nous",
    "Spanish": "el la los las y es son no usted su para con un una de que en por se lo del",
    "Italian": "il la gli e è sono non lei suo per con un una di che in da si lo della del",
    "Portuguese": "o a os as e é são não você seu para com um uma de que em por se do da",
    "Dutch": "de het een en is zijn niet u uw voor met van dat in op te wordt naar bij",
    "Swedish": "och är den det att en ett för med inte du din som på av till har",
    "Polish": "i jest nie w na z do się że to dla od pan pani są jak",
}  # fmt: skip
_LANGUAGE = re.compile(
    r"\b(?:reply|replies|answer|answers|respond|write|speak|language)\b[^.\n]{0,40}?"
    rf"\b(?:in|is|:)\s+(?P<name>{'|'.join(_COMMON_WORDS)})\b(?! or| if| when)",
    re.IGNORECASE,
)
_WANTS_JSON = re.compile(
    r"(?:^|[.!?\n:]\s*|\b(?:must|should|please|always|only|and|then)\s+)"
    r"(?:answer|reply|respond|output|return|give)\b[^.\n]{0,40}\bJSON\b",
    re.IGNORECASE,
)
_LENGTH = re.compile(
    r"(?:at most|no more than|not more than|maximum(?: of)?|max\.?|up to|under|fewer than|less than"
    rf"|within|not exceed|exceed)\s+(?P<n>\d{{1,5}}|{'|'.join(NUMBER_WORDS)})\s+"
    r"(?P<of>words?|sentences?|characters?|bullet points?|bullets?|paragraphs?)\b",
    re.IGNORECASE,
)
# What the whole answer is to be, and what it is not.
_ANSWER_WITH = r"\b(?:answer|reply|respond|give|output|return|state|name)\b[^.\n]{0,60}?\b"
_SHAPES = (
    (
        re.compile(
            _ANSWER_WITH + r"(?:as|with|in|using) (?:a |exactly |only )*(?:single|one) word\b", re.I
        ),
        re.compile(r"\W*[\w'’-]+\W*"),
        "answers in more than one word",
    ),
    (
        re.compile(_ANSWER_WITH + r"in (?:capital letters|all caps|capitals|upper ?case)\b", re.I),
        re.compile(r"[^a-z]*", re.DOTALL),
        "answers in small letters",
    ),
    (
        re.compile(_ANSWER_WITH + r"(?:only|just|nothing but) (?:a|the) number\b", re.I),
        re.compile(r"\W*\d[\d.,\s]*\W*"),
        "answers with more than a number",
    ),
)
# Whose length it is: the answer's, not that of a query or a title that some tool takes.
_OF_A_FIELD = re.compile(r"\b(?:title|subject|query|queries|name|comment|commit|each|per)\b", re.I)


@rule(Category.NON_COMPLIANCE, confidence=0.7, impact=Impact.HIGH, heard=False)
def answer_form(steps: Steps) -> Iterator[RuleHit]:
    """The answer is in another language than the instructions demand, is no JSON, or is too long.

    Found at: the answer.
    """
    claims = Claims(steps)
    answer = claims.answer
    if answer is None or claims.chat or not answer.text.strip():
        return
    broken = [form for text in claims.given for form in _broken_forms(text[:MAX_TEXT], answer.text)]
    # Of the request alone: instructions have examples of other answers.
    broken += [
        (why, asked[0])
        for wanted, kept, why in _SHAPES
        if (asked := wanted.search(claims.asked[:MAX_TEXT])) and not kept.fullmatch(answer.text)
    ]
    for why, said in broken[:1]:
        yield RuleHit(
            answer.span, f"{why}; the instructions say {line(said, 120)!r}", (answer.text,)
        )


def _broken_forms(rules: str, answer: str) -> Iterator[tuple[str, str]]:
    wanted = _LANGUAGE.search(rules)
    if wanted is not None:
        name = wanted["name"].capitalize()
        spoken = _language(answer)
        if spoken and spoken != name:
            yield f"answers in {spoken}", wanted[0]
    form = _WANTS_JSON.search(rules)
    bare = re.sub(r"^\s*```\w*\n?|```\s*$", "", answer).strip()
    if (
        form is not None
        and isinstance(parsed(bare), str)
        and not re.search(r"[{\[].*[}\]]", bare, re.S)
    ):
        yield "answers without JSON", form[0]
    for found in _LENGTH.finditer(rules):
        around = rules[max(0, found.start() - 60) : found.end()].rpartition(".")[2] or found[0]
        if _OF_A_FIELD.search(around):
            continue
        limit = NUMBER_WORDS.get(found["n"].lower()) or int(found["n"])
        count = _length(answer, found["of"].lower())
        if count > limit * 1.1:
            yield (
                f"answers in {count} {found['of'].rstrip('s')}s",
                sentence_at(rules, found.start()),
            )


def _language(text: str) -> str:
    """Return the language of a text; empty if it cannot be told."""
    words = Counter(re.findall(r"[^\W\d_]+", text.lower()))
    scores = {
        name: sum(words[word] for word in common.split()) for name, common in _COMMON_WORDS.items()
    }
    (first, most), (_, next_most) = Counter(scores).most_common(2)
    return first if most >= 4 and most >= 2 * next_most else ""


def _length(text: str, unit: str) -> int:
    if unit.startswith("word"):
        return len(text.split())
    if unit.startswith("char"):
        return len(text)
    if unit.startswith("bullet"):
        return len(re.findall(r"^\s*(?:[-*•]|\d+[.)])\s", text, re.MULTILINE))
    if unit.startswith("para"):
        return len([one for one in re.split(r"\n\s*\n", text) if one.strip()])
    return len(re.findall(r"[^\W\d_][^.!?]*[.!?](?=\s+[^\W\d_a-z]|\s*$)", text))


# -- failures that the answer calls a success ----------------------------------------------------

_FAILED_STATE = re.compile(
    r"fail(?:ed|ure|ing)?|error(?:ed)?|rejected|denied|declined|aborted|crash(?:ed|loop.*)?"
    r"|unhealthy|timed?[-_ ]?out|refused|invalid|unavailable|out[_ ]of[_ ]stock|sold[_ ]out",
    re.IGNORECASE,
)
_STATE_KEY = re.compile(r"^(?:state|status|result|outcome|health|phase)$", re.IGNORECASE)
_FAILED_OUTPUT = re.compile(
    r"\b[1-9]\d* (?:tests? )?(?:failed|failures?|errors?)\b|^FAILED\b|^fatal: |npm ERR!|^E   "
    r"|\bexit(?:ed with)? (?:code|status):? [1-9]|BUILD FAILED|^Traceback \(most recent"
    r"|: command not found|: Permission denied|^error(?:\[\w+\])?: |^\w*Error: |not ok \d",
    re.MULTILINE,
)
_SUCCESS = re.compile(
    r"\b(?:all|both|every|success\w*|complete[ds]?|done|pass(?:es|ed|ing)?|works?|working|fixed"
    r"|running|deployed|restarted|sent|booked|placed|updated|created|applied|installed|paid"
    r"|confirmed|finished|resolved|merged|uploaded|imported|migrated|is now|are now)\b",
    re.IGNORECASE,
)
_ADMITS = re.compile(
    r"\b(?:fail\w*|error\w*|could ?n[o'’]t|unable|cannot|can't|except|but|however|not|n't|denied|"
    r"rejected|declined|unfortunately|problem|issue|remaining|still|only|skipp?ed|partial\w*|out of"
    r" stock|unavailable|sold out|invalid)\b|n't\b",
    re.IGNORECASE,
)


@rule(Category.MISREAD_OUTPUT, confidence=0.7, impact=Impact.HIGH, heard=False)
def failure_called_success(steps: Steps) -> Iterator[RuleHit]:
    """A result says that something failed, nothing repaired it, and the answer reports success.

    Found at: the answer.
    """
    claims = Claims(steps)
    answer = claims.answer
    if answer is None or not _SUCCESS.search(answer.text) or _ADMITS.search(answer.text):
        return
    failed: dict[str, tuple[Span, str]] = {}
    for _, tool in calls_of(claims):
        said = failure_in(tool)
        arguments = plain(tool.tool_input)
        if said:
            failed[f"{call_name(tool)} {arguments}"] = (tool, said)
            continue
        # A later good call of the kind repairs it: the same arguments, or another attempt.
        for key, (other, _) in list(failed.items()):
            if _repairs(tool, other):
                del failed[key]
    for tool, said in failed.values():
        yield RuleHit(
            answer.span,
            f"reports success although {call_name(tool)} returned {line(said, 80)}",
            (sentence_at(answer.text, 0), answer.text),
            causes=(tool,),
        )
        return


def failure_in(tool: Span) -> str:
    """Return the part of a result that says that the call, or a part of it, failed."""
    data = parsed(tool.tool_output)
    if isinstance(data, str):
        found = _FAILED_OUTPUT.search(data[-4000:])
        if found is None:
            return ""
        start = data[-4000:].rfind("\n", 0, found.start()) + 1
        return data[-4000:][start:].split("\n")[0]
    for key, value in entries_of(data):
        if isinstance(value, str) and _STATE_KEY.match(key) and _FAILED_STATE.fullmatch(value):
            return f"{key}: {value}"
    return ""


def _repairs(tool: Span, failed: Span) -> bool:
    """Return whether a good call makes up for a failed one: the same tool for the same thing."""
    if call_name(tool) != call_name(failed):
        return False
    one, other = dict(entries_of(tool.tool_input)), dict(entries_of(failed.tool_input))
    if one == other or not one:
        return True
    commands = [str(next(iter(each.values()), "")).split()[:1] for each in (one, other)]
    named = [
        {value for key, value in each.items() if re.search(r"id|name|service|path|file|host", key)}
        for each in (one, other)
    ]
    # A shell runs anything: the same program again.
    return commands[0] == commands[1] if not named[0] else named[0] == named[1]
