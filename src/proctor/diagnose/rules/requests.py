"""Rules that compare calls with the request: the record it names, its values, units and days, what
it forbids, and what it never asked for.

Like the rules on claims they need no training and no framework. Each reports only what the trace
itself shows to be inconsistent; where a value may be derived, or a condition may allow an act, it
is silent.
"""

from __future__ import annotations

import re
from datetime import date
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from proctor.checks.grounding import quantities
from proctor.diagnose._steps import MAX_TEXT, gives_up, plain
from proctor.diagnose._values import (
    ISO_DAY,
    NUMBER_WORDS,
    UNITS,
    Unit,
    changes,
    days_in,
    entries_of,
    hands_over,
    key_unit,
    measured,
    measured_data,
    parsed,
    record_lists,
    relative_days,
    stem,
    stems,
    tool_name,
    words_of,
)
from proctor.diagnose.finding import Category, Impact
from proctor.diagnose.rules._failures import RuleHit, rule
from proctor.diagnose.rules.claims import (
    MAX_CALLS,
    Claims,
    call_name,
    calls_of,
    offered_tools,
    result_of,
    sentence_at,
)
from proctor.sanitize import line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from proctor.diagnose._steps import Act, Steps
    from proctor.trace import Span

# Equal calls with equal results from which on the agent is in a loop.
LOOP = 3

# Names and values that a statement is compared with, and its characters: each with each.
MAX_TABLES, MAX_TABLE, MAX_STATED = 20, 50, 4000

# Days between a day of the request and one that may be it, miscounted.
SLIP_DAYS = 3


# -- which record --------------------------------------------------------------------------------

_MONEY = r"price|cost|fare|fee|amount|total"
# What a request asks for, the keys of records that say it, and which value is better.
_BEST = (
    (r"cheapest|least expensive|lowest (?:price|cost|fare)", _MONEY, min),
    (r"most expensive|highest (?:price|cost)", _MONEY, max),
    (r"(?:best|highest|top)[- ]rated|highest rating", r"rating|score|stars", max),
    (r"fastest|quickest|shortest", r"duration|minutes|hours|time|length", min),
    (r"nearest|closest", r"dist|km|miles|metres|meters", min),
    (r"newest|latest|most recent", r"date|time|created|updated|published|year|version|day", max),
    (r"oldest|earliest", r"date|time|created|updated|published|year|day|departs?|departure", min),
    (r"largest|biggest|highest", r"size|population|value|amount|total|count|area|revenue", max),
    (r"smallest|lowest", r"size|population|value|amount|total|count|area|revenue", min),
)  # fmt: skip


@rule(Category.MISREAD_OUTPUT, confidence=0.7, impact=Impact.HIGH, heard=False)
def wrong_record(steps: Steps) -> Iterator[RuleHit]:
    """Of several records that a call returned, the agent takes one that fits the request less.

    The request names what only another one has, or asks for the cheapest, and another one is
    cheaper and equal in all else. Found at: the call that takes it, or the answer.
    """
    claims = Claims(steps)
    lists: list[tuple[Span, list[dict[str, Any]]]] = []
    for _, tool in calls_of(claims):
        given = [value for _, value in entries_of(tool.tool_input)]
        for source, records in lists:
            chosen = [n for n, one in enumerate(records) if _identified(one, records, given)]
            if len(chosen) != 1:
                continue
            better = _better(records, chosen[0], claims.asked)
            if better is not None:
                why, other = better
                first = _first_to_name(steps, records, chosen[0], source)
                yield RuleHit(
                    tool if first is None else first.span,
                    f"{call_name(tool)} takes {_short(records[chosen[0]])}; {why} "
                    f"{_short(other)}, which {call_name(source)} returned as well",
                    (
                        plain(tool.tool_input),
                        *map(plain, given),
                        "" if first is None else first.text,
                    ),
                    causes=(source,),
                )
                return
        lists += [(tool, records) for records in record_lists(tool.tool_output)]
    answer = claims.answer
    if answer is None or claims.chat or gives_up(answer.text):
        return
    for source, records in lists[-MAX_CALLS:]:
        chosen = [
            n
            for n, one in enumerate(records)
            if any(v in answer.text for v in _own_values(one, records) if isinstance(v, str))
        ]
        better = (
            _better(records, chosen[0], claims.asked, named=False) if len(chosen) == 1 else None
        )
        if better is not None:
            why, other = better
            first = _first_to_name(steps, records, chosen[0], source) or answer
            yield RuleHit(
                first.span,
                f"states {_short(records[chosen[0]])}; {why} {_short(other)}, which "
                f"{call_name(source)} returned as well",
                (first.text,),
                causes=(source,),
            )
            return


def _first_to_name(
    steps: Steps, records: Sequence[Mapping[str, Any]], chosen: int, source: Span
) -> Act | None:
    """Return the first act after a result that names only the chosen one of its records."""
    after = False
    for act in steps.acts:
        if after and not act.calls:
            named = [
                n
                for n, one in enumerate(records)
                if any(v in act.text for v in _own_values(one, records) if isinstance(v, str))
            ]
            if named == [chosen]:
                return act
        after = after or source in act.tools
    return None


_NAMING_KEY = re.compile(
    r"id$|_id|code|number|name|title|url|path|flight|sku|email|symbol|ref", re.IGNORECASE
)


def _own_values(record: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the values that tell a record from the others: its id, its name."""
    return [
        value
        for key, value in record.items()
        if isinstance(value, str | int)
        and not isinstance(value, bool)
        and len(str(value)) > 1
        and sum(other.get(key) == value for other in records) == 1
    ]


def _identified(
    record: Mapping[str, Any], records: Sequence[Mapping[str, Any]], given: Any
) -> bool:
    keys = [key for key in record if _NAMING_KEY.search(key)] or [*record][:1]
    wanted = {str(value) for value in given}
    keys = [key for key in keys if str(record[key]) in wanted]
    # Most records are named by no call: what is their own is looked up for the others.
    own = _own_values(record, records) if keys else []
    return any(record[key] in own for key in keys)


def _short(record: Mapping[str, Any]) -> str:
    return line(", ".join(str(v) for v in record.values() if isinstance(v, str | int | float)), 60)


def _better(
    records: Sequence[Mapping[str, Any]], chosen: int, request: str, *, named: bool = True
) -> tuple[str, Mapping[str, Any]] | None:
    """Return the record that fits the request better than the chosen one, and why."""
    for found in _EXCLUDED.finditer(request) if named else ():
        unwanted = stem(found[1])
        free = [one for one in records if unwanted not in stems(plain([*one.values()]))]
        if free and unwanted in stems(plain([*records[chosen].values()])):
            return f"the request says {line(found[0], 40)!r}, which fits", free[0]
    flags = [_flags(record, request) for record in records]
    for n, other in enumerate(flags):
        if missing := other - flags[chosen]:
            return f"the request names {line(', '.join(sorted(missing)), 40)}, as in", records[n]
    if named:
        fits = [_named(record, request) for record in records]
        wider = [n for n, fit in enumerate(fits) if fits[chosen] < fit]
        if len(wider) == 1 and all(fits[n] <= fits[wider[0]] for n in range(len(fits))):
            words = ", ".join(sorted(fits[wider[0]] - fits[chosen]))
            return f"the request names {line(words, 40)}, as in", records[wider[0]]
    mine = records[chosen]
    for asked, metric, best in _BEST:
        found = re.search(rf"\b(?:{asked})\b", request, re.IGNORECASE)
        if found is None:
            continue
        for key in mine:
            if not re.search(metric, key, re.IGNORECASE):
                continue
            for other in records:
                if other is mine or not _comparable(mine, other, key, records):
                    continue
                value, rival = _figure(mine[key]), _figure(other.get(key))
                if value is None or rival is None or type(value) is not type(rival):
                    continue
                if value != rival and best(value, rival) == rival:  # pyright: ignore[reportArgumentType]
                    return f"the request asks for the {found[0].lower()}, and better is", other
            return None
    return None


def _figure(value: Any) -> float | str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    return value if isinstance(value, str) and value[:4].isdigit() else None


def _named(record: Mapping[str, Any], request: str) -> frozenset[str]:
    """Return the texts of a record that the request contains."""
    return frozenset(
        value.casefold()
        for value in record.values()
        if isinstance(value, str)
        and len(value) > 2
        and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", request, re.IGNORECASE)
    )


_EXCLUDED = re.compile(
    r"\b(?:nothing with|without|no|not|avoid|allergic to|except|excluding|other than)"
    r" (?:any |the )?([a-z]{3,})\b",
    re.IGNORECASE,
)


def _flags(record: Mapping[str, Any], request: str) -> frozenset[str]:
    """Return the properties that the request names and a record has: `direct`, `pet_friendly`."""
    return frozenset(
        key
        for key, value in record.items()
        if value is True
        and re.search(rf"(?<!not )(?<!non-)\b{'[ -]'.join(words_of(key))}\b", request, re.I)
    )


def _comparable(
    one: Mapping[str, Any],
    other: Mapping[str, Any],
    metric: str,
    records: Sequence[Mapping[str, Any]],
) -> bool:
    """Return whether two records differ only in the metric and in what names them."""
    for key in {*one, *other} - {metric}:
        a, b = one.get(key), other.get(key)
        names = all(isinstance(r.get(key), str) for r in records) and len(
            {r[key] for r in records}
        ) == len(records)
        if a != b and not names and not re.search(r"(?:^|_)id$", key, re.IGNORECASE):
            return False
    return True


_IN_YEAR = re.compile(r"(?<![\w.,])(\d[\d,.]*\d)(?: [a-z]+){0,2} in ((?:19|20)\d\d)\b")
# Clauses say one thing each; "since 2020 it grew to 4.8" gives 2020 no figure.
_CLAUSE = re.compile(
    r"[.;:,]\s|\n|\b(?:and|but|while|whereas|so|than|instead|though|since|from|to|until|by|over|after"
    r"|before|against|unlike|compared|versus|vs)\b",
    re.IGNORECASE,
)


@rule(Category.MISREAD_OUTPUT, confidence=0.7, impact=Impact.HIGH, heard=False)
def crossed_value(steps: Steps) -> Iterator[RuleHit]:
    """The agent gives to one record, field or year the value that a result has for another.

    Found at: the first act that says so.
    """
    claims = Claims(steps)
    tables: list[tuple[Span, dict[str, str]]] = []
    for act in () if claims.chat else steps.acts:
        if act.span not in act.tools:
            for clause in _CLAUSE.split(act.text[:MAX_STATED]) if tables else ():
                for source, table in tables:
                    if (crossed := _crossed(clause, table)) is not None:
                        of, other = crossed
                        yield RuleHit(
                            act.span,
                            f"states {table[other]} for {of}; {call_name(source)} returned "
                            f"{line(table[of], 40)}, and {line(table[other], 40)} for {other}",
                            (clause.strip(), act.text),
                            causes=(source,),
                        )
                        return
        new = ((tool, table) for tool in act.tools for table in _tables(tool.tool_output))
        tables += [(tool, table) for tool, table in new if 1 < len(table) <= MAX_TABLE]
        del tables[:-MAX_TABLES]


def _tables(result: Any) -> Iterator[dict[str, str]]:
    """Yield what a result has for each of several records, fields of one kind, or years."""
    data = parsed(result)
    if isinstance(data, str):
        yield _distinct({year: figure for figure, year in _IN_YEAR.findall(data[:MAX_TEXT])})
    for records in record_lists(data):
        for key in records[0]:
            names = [next((v for v in one.values() if isinstance(v, str)), "") for one in records]
            if len({*names}) == len(names):
                yield _distinct({n: one.get(key) for n, one in zip(names, records, strict=True)})
    fields = (
        {" ".join(words_of(k)): v for k, v in entries_of(data)} if isinstance(data, dict) else {}
    )
    for word in {word for name in fields for word in name.split()}:
        alike = {name: v for name, v in fields.items() if word in name.split()}
        if len({isinstance(v, str) for v in alike.values()}) == 1:
            yield _distinct(alike)


def _distinct(table: Mapping[str, Any]) -> dict[str, str]:
    """Return a table as text; nothing of one in which a value has no name, or several."""
    values = {name: str(value) for name, value in table.items() if value is not None}
    named = all(values) and len(set(values.values())) == len(table)
    return values if named else {}


def _crossed(clause: str, table: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the one name in a clause, and the name whose value the clause has instead."""
    folded = clause.casefold()
    named = [name for name in table if name.casefold() in folded and _says(clause, name)]
    if len(named) != 1 or _says(clause, table[named[0]]):
        return None
    others = [
        name
        for name, value in table.items()
        if len(re.sub(r"\W", "", value)) > 2 and name != value and _says(clause, value)
    ]
    return (named[0], others[0]) if len(others) == 1 else None


def _says(text: str, value: str) -> bool:
    """Return whether a text has a value; 73450 may be written as 73,450."""
    wanted = rf"(?<![\w.,]){re.escape(value)}(?!\w|[.,]\d)"
    return re.search(wanted, text, re.I) is not None or (
        value.isdigit() and re.search(wanted, text.replace(",", "")) is not None
    )


# -- values of the request -----------------------------------------------------------------------

# Arguments that name a place, a person or a thing.
_ENTITY_KEY = re.compile(
    r"(?:^|_)(?:city|town|country|state|region|customer|client|person|people|recipient|origin"
    r"|destination|place|location|company|vendor|supplier|hotel|product|brand|team|author|artist"
    r"|guest|employee|patient|project|street|airport|station|department|branch)(?:_?name)?$",
    re.IGNORECASE,
)
_PLAIN_NAME = re.compile(r"[A-Z][a-z]{2,}(?: [A-Z][a-z]+){0,2}")
_INNER_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}\b")
_NO_NAMES = (
    "January February March April May June July August September October November December Monday"
    " Tuesday Wednesday Thursday Friday Saturday Sunday Mrs Miss Please Thanks The And"
)
_RANGE_KEY = re.compile(r"start|from|to$|min|max|since|until|after|before|end|range|window", re.I)


@rule(Category.TOOL_RELATED, confidence=0.6, impact=Impact.HIGH, heard=False)
def argument_contradicts_request(steps: Steps) -> Iterator[RuleHit]:
    """A call gets another number, name or day than the request has for it.

    Found at: the call.
    """
    claims = Claims(steps)
    known = [*claims.given]
    passed: set[str] = set()
    before: dict[str, tuple[Any, str]] = {}
    for act, tool in calls_of(claims):
        text = "\n".join(known)[: 4 * MAX_TEXT]
        for key, value in entries_of(tool.tool_input):
            wanted = _other_number(key, value, claims.asked, text)
            wanted = wanted or _other_name(key, value, claims.asked, text, passed, tool)
            wanted = wanted or _other_day(key, value, claims.asked, text)
            wanted = wanted or _changed(value, before.get(key), call_name(tool), claims.asked, text)
            if wanted:
                yield RuleHit(
                    tool,
                    f"passes {line(str(value), 40)} to {call_name(tool)} as {key}; the request "
                    f"says {line(wanted, 40)}",
                    (str(value), plain(tool.tool_input)),
                )
                return
        passed |= {str(value) for _, value in entries_of(tool.tool_input)}
        before |= {key: (value, call_name(tool)) for key, value in entries_of(tool.tool_input)}
        known += [result_of(tool), act.text]


def _other_number(key: str, value: Any, asked: str, known: str) -> str:
    """Return what the request counts by the word of this key, if it is another number."""
    if type(value) not in (int, float) or len(key) < 3:
        return ""
    if re.search(r"year", key, re.IGNORECASE):
        return _other_year(value, asked, known)
    wanted = {stem(word) for word in words_of(key) if len(word) > 2}
    counted = [
        (found[1], found[2])
        for found in re.finditer(r"(?<![\w.,$€£-])(\d+(?:\.\d+)?) ([A-Za-z]{3,})", asked)
        if stem(found[2]) in wanted
    ]
    if len({number for number, _ in counted}) != 1 or float(counted[0][0]) == float(value):
        return ""
    if re.search(rf"(?<![\w.]){re.escape(f'{value:g}')}(?![\w.]*\d)", known):
        return ""
    # More than once what was asked for is a product of it.
    wanted_number = float(counted[0][0])
    product = value > wanted_number > 1 and value % wanted_number == 0
    return "" if product else " ".join(counted[0])


_YEAR = r"(?<![\w.,$€£-])(?:19|20)\d\d(?![\w-]|[.,]\d)"
_SPAN_OF_YEARS = re.compile(
    rf"{_YEAR} ?(?:to|until|through|–|-) ?{_YEAR}|\b(?:since|between|from|after|before|until|last"
    r"|past|previous|next|recent|trend|growth|years)\b",
    re.IGNORECASE,
)


def _other_year(value: float, asked: str, known: str) -> str:
    """Return the years of the request, if the argument is none of them."""
    years = set(re.findall(_YEAR, asked))
    if not years or _SPAN_OF_YEARS.search(asked) or re.search(rf"(?<!\d){value:g}(?!\d)", known):
        return ""
    return " and ".join(sorted(years))


def _other_name(key: str, value: Any, asked: str, known: str, passed: set[str], tool: Span) -> str:
    """Return the name in the request that nothing used, if the argument names another one."""
    if (
        not isinstance(value, str)
        or not _ENTITY_KEY.search(key)
        or not _PLAIN_NAME.fullmatch(value)
    ):
        return ""
    # Another spelling is no other name.
    if any(word.casefold() in known.casefold() for word in value.split()) or get_close_matches(
        value, re.findall(r"[A-Z]\w+", asked), n=1, cutoff=0.7
    ):
        return ""
    used = " ".join([*passed, plain(tool.tool_input)]).casefold()
    names = [name for name in _INNER_NAME.findall(asked) if name.casefold() not in used]
    names = [name for name in names if name not in _NO_NAMES]
    return names[0] if len(set(names)) == 1 else ""


def _other_day(key: str, value: Any, asked: str, known: str) -> str:
    """Return the day that was asked for, if the argument is another one close to it."""
    found = ISO_DAY.match(value) if isinstance(value, str) else None
    if found is None or _RANGE_KEY.search(key):
        return ""
    try:
        day = date.fromisoformat(found[0])
    except ValueError:
        return ""
    days = days_in(asked, {day.year})
    relative = relative_days(asked, known)
    if day in days | relative | (
        days_in(known, {day.year}) - relative if not relative else set[date]()
    ):
        return ""
    if relative and day in days_in(known, {day.year}) and not days:
        stated = {one for one in relative if abs((one - day).days) <= SLIP_DAYS}
        return _day_words(stated)
    lengths = {
        int(n) for n in re.findall(r"(?<![\w.])(\d{1,2})(?= (?:more )?(?:days?|nights?))", asked)
    }
    lengths |= {
        number
        for word, number in NUMBER_WORDS.items()
        if re.search(rf"\b{word} (?:more )?(?:days?|nights?)", asked, re.IGNORECASE)
    }
    if re.search(
        r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b|weeks?\b|weekend|month|flexib|around|next"
        r"|any day|before|after|between|until|within",
        asked,
        re.IGNORECASE,
    ):
        return ""
    near = {one for one in days | relative if 0 < abs((one - day).days) <= SLIP_DAYS}
    if not near or any(abs((one - day).days) in lengths for one in days | relative):
        return ""
    return _day_words(near)


def _changed(value: Any, before: tuple[Any, str] | None, tool: str, asked: str, known: str) -> str:
    """Return what another tool was given under the same name, if that was asked for and this not.

    Only what has digits is compared: it is copied, not worded.
    """
    if before is None or before[1] == tool or type(value) is not type(before[0]):
        return ""
    old, new = str(before[0]), str(value)
    if old == new or len(new) > 40 or not re.search(r"\d", old) or _holds_value(known, new):
        return ""
    # Of the same form: a day, a number of a booking. Agents reword queries.
    if type(value) is not str or re.sub(r"\d", "0", old) != re.sub(r"\d", "0", new):
        return ""
    return old if _holds_value(asked, old) else ""


def _holds_value(text: str, value: str) -> bool:
    """Return whether a text has a value, or the day that it is."""
    if ISO_DAY.fullmatch(value):
        day = date.fromisoformat(value)
        return day in days_in(text, {day.year})
    return re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", text) is not None


def _day_words(days: set[date]) -> str:
    return " or ".join(sorted(day.isoformat() for day in days))


_OPPOSITES = (
    "net gross",
    "buy sell",
    "minimum maximum",
    "lowest highest",
    "cheapest expensive",
    "arrival departure",
    "inbound outbound",
    "sent received",
    "debit credit",
    "import export",
    "ascending descending",
    "enable disable",
    "activate deactivate",
    "lock unlock",
    "increase decrease",
    "upgrade downgrade",
    "income expenses",
    "oldest newest",
)


@rule(Category.TOOL_RELATED, confidence=0.6, impact=Impact.HIGH, heard=False)
def opposite_argument(steps: Steps) -> Iterator[RuleHit]:
    """The request says net, buy or lowest; the call says gross, sell or highest.

    Found at: the call.
    """
    claims = Claims(steps)
    asked = {word.lower() for word in words_of(claims.asked)}
    for _, tool in calls_of(claims):
        said = {word.lower() for word in words_of(f"{call_name(tool)} {plain(tool.tool_input)}")}
        for pair in _OPPOSITES:
            one, other = pair.split()
            for wanted, opposite in ((one, other), (other, one)):
                if (
                    wanted in asked
                    and opposite not in asked
                    and opposite in said
                    and wanted not in said
                ):
                    yield RuleHit(
                        tool,
                        f"calls {call_name(tool)} with {opposite}; the request says {wanted}",
                        (plain(tool.tool_input),),
                    )
                    return


@rule(Category.MISREAD_OUTPUT, confidence=0.7, impact=Impact.HIGH, heard=False)
def wrong_unit(steps: Steps) -> Iterator[RuleHit]:
    """A number keeps its figures and changes its unit: 8.5 km becomes `distance_m: 8.5`, 64.90 CHF
    becomes 64.90 EUR.

    Found at: the call or the answer.
    """
    claims = Claims(steps)
    known: set[tuple[float, Unit]] = {
        (number, unit) for text in claims.given for number, unit, _ in measured(text)
    }
    for _, tool in calls_of(claims):
        for key, value in entries_of(tool.tool_input):
            unit = key_unit(key)
            if unit is None or type(value) not in (int, float):
                continue
            if (other := _other_unit(float(value), unit, known)) is not None:
                yield RuleHit(
                    tool,
                    f"passes {value:g} to {call_name(tool)} as {key}; it is {value:g} {other.name}",
                    (plain(tool.tool_input), str(value)),
                )
                return
        data = tool.tool_output if tool.tool_output is not None else tool.output
        known |= set(measured_data(data))
    answer = claims.answer
    if answer is None or claims.chat:
        return
    for number, unit, place in measured(answer.text):
        if (other := _other_unit(number, unit, known)) is not None:
            yield RuleHit(
                answer.span,
                f"states {number:g} {unit.name}; the trace has {number:g} {other.name}",
                (sentence_at(answer.text, place), answer.text),
            )
            return


def _other_unit(number: float, unit: Unit, known: set[tuple[float, Unit]]) -> Unit | None:
    """Return the unit that a number has in the trace, if it never has this one."""
    same = {u for n, u in known if abs(n - number) < 1e-9 and u.measures == unit.measures}
    # Small whole numbers count many things: 2 hours, 2 days.
    if unit in same or (number <= 12 and number == int(number) and unit.measures == "time"):
        return None
    return next(iter(sorted(same)), None)


@rule(Category.MEMORY, confidence=0.65, impact=Impact.HIGH, heard=False)
def superseded_value(steps: Steps) -> Iterator[RuleHit]:
    """A value that a later result replaced is used after all.

    Found at: the call that passes it on, or the answer.
    """
    claims = Claims(steps)
    seen: list[tuple[Span, dict[str, Any], dict[str, Any]]] = []
    old: dict[str, tuple[Any, str, Span]] = {}
    for _, tool in calls_of(claims):
        for value in (str(entry) for _, entry in entries_of(tool.tool_input)):
            if value in old and value not in claims.asked:
                yield _superseded(tool, value, old[value], plain(tool.tool_input))
                return
        data = parsed(tool.tool_output)
        if not isinstance(data, dict):
            continue
        record: dict[str, Any] = {str(k): v for k, v in data.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        given = dict(entries_of(tool.tool_input))
        for earlier, before, arguments in seen:
            if not _same_thing(before, record) or any(
                given[key] != value for key, value in arguments.items() if key in given
            ):
                continue
            for key, value in before.items():
                fresh = record.get(key)
                if _telling(value) and type(fresh) is type(value) and fresh != value:
                    old[str(value)] = (fresh, key, earlier)
                    old.pop(str(fresh), None)
        seen.append((tool, record, given))
    answer = claims.answer
    if answer is None or claims.chat:
        return
    for value, found in old.items():
        stated = re.search(rf"(?<![\w.,]){re.escape(value)}(?![\w]|[.,]\d)", answer.text)
        if stated and str(found[0]) not in answer.text and value not in claims.asked:
            yield _superseded(answer.span, value, found, sentence_at(answer.text, stated.start()))
            return


def _superseded(span: Span, value: str, found: tuple[Any, str, Span], said: str) -> RuleHit:
    fresh, key, earlier = found
    return RuleHit(
        span,
        f"uses {line(value, 30)} as {key}; a later result says {line(str(fresh), 30)}",
        (said, value),
        causes=(earlier,),
    )


_WHEN = re.compile(r"time|date|as_of|stamp|updated|note|message|status|state|count|page", re.I)


def _telling(value: Any) -> bool:
    """Return whether a value is told from others: a decimal, or a number of three digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) >= 100


def _same_thing(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two results describe the same thing: their texts agree, besides times."""
    shared = [
        key for key in one if key in other and isinstance(one[key], str) and not _WHEN.search(key)
    ]
    return bool(shared) and all(one[key] == other[key] for key in shared)


# -- what may be done ----------------------------------------------------------------------------

_FORBIDS = re.compile(
    r"\b(?:never|do not|don't|must not|mustn't|may not|not allowed to|forbidden to"
    r"|under no circumstances)\s+(?!use\b|call\b)([^.;:\n]{6,120})",
    re.IGNORECASE,
)
# A condition may allow what the clause forbids.
_CONDITION = re.compile(
    r"\b(?:unless|without|if|except|until|when|while|before|after|over|above|below|under|more|less|"
    r"outside|other than|only|again|twice|yourself|mention|say|tell|reveal|answer|assume|guess|"
    r"invent|make up|forget|worry|hesitate)\b",
    re.IGNORECASE,
)
_PATH_KEY = re.compile(r"path|file", re.IGNORECASE)
# Words for what every tool does that changes something.
_TO_CHANGE = stems("touch modify change alter edit update")
_SMALL_WORDS = frozenset(
    "my me the a an any to of in on for from with and or by at it its this that these those your"
    " our their ever directly anything all into be is are as you".split()
)


@rule(Category.NON_COMPLIANCE, confidence=0.7, impact=Impact.HIGH, heard=False)
def forbidden_act(steps: Steps) -> Iterator[RuleHit]:
    """The instructions forbid an act in words; a call does it.

    Found at: the call.
    """
    claims = Claims(steps)
    clauses: list[tuple[str, list[set[str]]]] = []
    for text in claims.given:
        for found in _FORBIDS.finditer(text[:MAX_TEXT]):
            clause = re.split(r",| but | instead", found[1])[0]
            # "push or merge to main" forbids either.
            tokens = [
                {stem(word) for word in re.findall(r"\w+", part)}
                for part in re.findall(r"\w+(?: or \w+)+|\w+", clause.lower())
                if part not in _SMALL_WORDS
            ]
            tokens = [{w for w in one if w not in ("or",)} for one in tokens]
            if len(tokens) >= 2 and not _CONDITION.search(clause):
                clauses.append((found[0], tokens))
    if not clauses:
        return
    for _, tool in calls_of(claims):
        # Of a file that is edited, its path tells what is touched, not its text.
        paths = [plain(v) for key, v in entries_of(tool.tool_input) if _PATH_KEY.search(key)]
        done = stems(f"{call_name(tool)} {' '.join(paths) or plain(tool.tool_input)[:2000]}")
        if changes(call_name(tool)):
            done |= _TO_CHANGE
        for text, tokens in clauses:
            if all(one & done for one in tokens):
                yield RuleHit(
                    tool,
                    f"calls {call_name(tool)} although the instructions say {line(text, 120)!r}",
                    (plain(tool.tool_input), call_name(tool)),
                )
                return


_BOUND = re.compile(
    r"\b(?:more than|above|over|exceed(?:s|ing)?|higher than|at most|up to|under|below|less than"
    r"|cheaper than|maximum(?: of)?|max\.?|within|budget(?: is| of)?)\s+"
    r"(?:(?P<sign>[€£$¥]|\b[A-Z]{3}) ?)?(?P<number>\d[\d,]*(?:\.\d+)?) ?(?P<unit>[A-Za-z€£]+)?",
    re.IGNORECASE,
)
_CURRENCY = frozenset(
    ["$", "dollar", "dollars", *(word for word, unit in UNITS.items() if unit.measures == "money")]
)
_ABOVE = re.compile(r"more than|above|over|exceed|higher", re.IGNORECASE)
_BINDING = re.compile(
    r"\b(?:never|not|n't|no|must|needs?|requires?|only|escalate\w*|approv\w+|refuse|reject)\b",
    re.IGNORECASE,
)
_ALLOWS = re.compile(r"approv|escalat|authori", re.IGNORECASE)
_TOTAL_KEY = re.compile(r"total|amount|sum", re.IGNORECASE)
_AMOUNT_KEY = re.compile(rf"(?:^|_)(?:{_MONEY}|value|sum)(?:$|_)", re.IGNORECASE)


@rule(Category.NON_COMPLIANCE, confidence=0.7, impact=Impact.HIGH, heard=False)
def over_limit(steps: Steps) -> Iterator[RuleHit]:
    """A call spends, pays or books more than the instructions or the request allow.

    Found at: the call.
    """
    claims = Claims(steps)
    bounds = [
        (sentence, float(found["number"].replace(",", "")), found[0])
        for text in claims.given
        for sentence in re.split(r"(?<=[.!?;])\s+|\n", text[:MAX_TEXT])
        for found in _BOUND.finditer(sentence)
        if not _CURRENCY.isdisjoint((found[name] or "").lower() for name in ("sign", "unit"))
        # "Orders above 50 EUR ship free" limits no agent.
        if not _ABOVE.match(found[0]) or _BINDING.search(sentence)
    ]
    lists: list[list[dict[str, Any]]] = []
    shown: set[float] = set()
    for act, tool in calls_of(claims) if bounds else ():
        name = call_name(tool)
        if _ALLOWS.search(name):
            return
        for reply in steps.acts[: steps.acts.index(act)]:
            shown |= set[float]() if reply.calls else {q.raw for q in quantities(reply.text)}
        given = [*entries_of(tool.tool_input)]
        values = [value for _, value in given]
        taken = [one for some in lists for one in some if _identified(one, some, values)]
        figures = {
            k: v
            for k, v in ([*given, *taken[0].items()] if len(taken) == 1 else given)
            if _AMOUNT_KEY.search(k) and type(v) in (int, float)
        }
        for sentence, most, said in bounds if changes(name) else ():
            one = re.search(r"\b(?:each|per|apiece|a night|a person)\b", sentence)
            amounts = [v for k, v in figures.items() if not (one and _TOTAL_KEY.search(k))]
            # The user saw the price and went on.
            agreed = sentence in claims.asked and max(amounts, default=0) in shown
            if max(amounts, default=0) <= most or agreed:
                continue
            if name not in sentence and (taken or stems(name) & stems(sentence)):
                yield RuleHit(
                    tool,
                    f"calls {name} with {max(amounts):g}, beyond {line(said, 40)!r}: "
                    f"{line(sentence, 120)!r}",
                    (plain(tool.tool_input), name),
                )
                return
        lists += record_lists(tool.tool_output)


_DESTROYS = (
    "delete remove erase purge wipe destroy drop clear clean trash discard unsubscribe rid",
    "cancel terminate revoke abort stop end quit void undo call",
    "refund reimburse money return credit compensate",
    "close deactivate suspend disable shut block freeze",
)


@rule(Category.TOOL_SELECTION, confidence=0.55, impact=Impact.HIGH, heard=False)
def unrequested_harm(steps: Steps) -> Iterator[RuleHit]:
    """A tool that deletes, cancels, refunds or closes is called, and nothing asked for it.

    Found at: the call.
    """
    claims = Claims(steps)
    # What tools do is no request: names with their descriptions are left out.
    given = "\n".join(claims.given)
    given = re.sub(
        r"(?m)^\s*[-*] ?`?\w+`?(?:\(.*?\))?: .*$|\b\w+_\w+\b`?(?: ?\([^)]*\))?", " ", given
    )
    asked = {stem(word) for word in words_of(given)}
    for _, tool in calls_of(claims):
        verb = words_of(call_name(tool))[:1]
        group = next(
            (g.split() for g in _DESTROYS if verb and verb[0].lower() in g.split()[:4]), None
        )
        if group is None or any(stem(word) in asked for word in group):
            continue
        if any(
            stem(word) in stems(result) for word in group for result in _results_before(steps, tool)
        ):
            continue  # a result may say that it is due
        yield RuleHit(
            tool,
            f"calls {call_name(tool)}; neither the request nor a result asks for that",
            (plain(tool.tool_input), call_name(tool)),
        )
        return


def _results_before(steps: Steps, tool: Span) -> Iterator[str]:
    for act in steps.acts:
        for other in act.tools:
            if other is tool:
                return
            yield result_of(other)[:2000]


@rule(Category.ORCHESTRATION, confidence=0.6, impact=Impact.MEDIUM, heard=False)
def wrong_handoff(steps: Steps) -> Iterator[RuleHit]:
    """An agent hands over to one whose name and duties the request does not mention, though it
    mentions another one's name.

    Found at: the handoff.
    """
    if not any(hands_over(call.name) for act in steps.acts for call in act.calls):
        return
    claims = Claims(steps)
    asked = {stem(word) for word in words_of(claims.asked) if len(word) > 2}
    offered = {hands_over(name): about for name, about in offered_tools(steps).items()}
    rules = re.split(r"[.;,]\s|\n", "\n".join(set(claims.given) - {claims.asked}))

    def duties(agent: str) -> str:
        named = [one for one in rules if agent in tool_name(one)]
        return " ".join([offered.get(agent, ""), *named])

    for act in steps.acts:
        for call in act.calls:
            chosen = hands_over(call.name)
            # What an agent is for may be known by its name alone: not well enough.
            about = duties(chosen)
            if not chosen or not about or stems(f"{chosen} {about}") & asked:
                continue
            for other in sorted(offered.keys() - {chosen, ""}):
                names = {stem(word) for word in words_of(other)} - _NO_DUTY
                if names & asked:
                    yield RuleHit(
                        act.span,
                        f"hands over to {chosen}; the request is one for {other}",
                        (call.name,),
                    )
                    return


_NO_DUTY = stems("agent assistant bot team specialist expert service support help desk worker")

_WAITING = re.compile(
    r"pending|running|queued|in.progress|processing|waiting|not ready|still|building|started",
    re.IGNORECASE,
)


@rule(Category.RESOURCE_ABUSE, confidence=0.5, heard=False)
def loop(steps: Steps) -> Iterator[RuleHit]:
    """The same call, three times in a row with the same result: the agent learned nothing from it.

    Found at: the second call.
    """
    row: list[Span] = []
    last = None
    for _, tool in [*calls_of(Claims(steps)), (None, None)]:
        key = tool and (call_name(tool), plain(tool.tool_input), result_of(tool))
        if key == last and tool is not None:
            row.append(tool)
            continue
        if len(row) >= LOOP and last is not None and not row[0].failed:
            name, arguments, result = last
            if not _WAITING.search(result[:500]):
                yield RuleHit(
                    row[1],
                    f"calls {name} again with the same arguments, {len(row)} times in a row, "
                    f"always with the same result: {line(result, 60) or 'nothing'}",
                    (arguments, name),
                    causes=(row[0],),
                )
        row, last = [tool] if tool is not None else [], key
