"""Detect by hash whether a case was the same in two runs: input, judges and fixtures.

Guarantees: a changed case is reported with the part that changed, so that a changed question is
never reported as a changed agent. Descriptions, tags and the number of trials do not count. The
code of custom checks is not hashed, only its import path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from proctor.results.metadata import as_mapping
from proctor.results.outcomes import case_properties
from proctor.runs.folder import spec_hash

# Parts of a case that affect neither the agent's input nor its grading.
_UNGRADED_KEYS = frozenset(
    {"id", "description", "tags", "difficulty", "type", "properties", "trials"}
)

# Keys of a case that use the default judge unless they name another.
_JUDGE_KEYS = frozenset({"llm_judge", "safety_check", "hallucination_check", "quality"})

# Parts of a judge's configuration that do not affect its verdicts.
_JUDGE_ACCESS_KEYS = frozenset({"cache", "api_key_env"})

DEFAULT_JUDGE = "default"

# Displayed length of a hash: enough to distinguish two at a glance.
_HASH_CHARS = 8


class CaseFingerprint(NamedTuple):
    """Hash of each part of a case in a run."""

    case: Mapping[str, Any]
    judges: Mapping[str, Any]
    fixtures: Mapping[str, Any]

    @property
    def hashes(self) -> dict[str, str]:
        """Return a short hash of each part that is present."""
        parts = {"case": self.case, "judge": self.judges, "fixtures": self.fixtures}
        return {name: spec_hash(part)[:_HASH_CHARS] for name, part in parts.items() if part}


def fingerprints(spec: Mapping[str, Any]) -> dict[str, CaseFingerprint]:
    """Return the hashes of every case in the spec of a run, by id."""
    judges = _judges(spec)
    fixtures = as_mapping(spec.get("fixtures"))
    scenarios = _scenarios(as_mapping(spec.get("experiment")))
    by_case: dict[str, CaseFingerprint] = {}
    for name, written in case_properties(spec).items():
        graded = {key: value for key, value in written.items() if key not in _UNGRADED_KEYS}
        if "query" in graded:  # an older name of `input`: renaming it is no change of the case
            graded["input"] = graded.pop("query")
        # Custom checks may call any judge, and their code is not visible here.
        used = set(judges) if graded.get("checks") else set(_judges_named_in(graded))
        parts = {"files": fixtures.get(name), "scenario": scenarios.get(name)}
        by_case[name] = CaseFingerprint(
            graded,
            {judge: judges.get(judge) for judge in sorted(used)},
            {key: value for key, value in parts.items() if value is not None},
        )
    return by_case


def case_hashes(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return one hash of everything that makes a case what it is, by id."""
    return {name: spec_hash(list(found)) for name, found in fingerprints(spec).items()}


def changed_cases(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str]:
    """Return the cases of both runs that differ, and what changed."""
    before, after = fingerprints(first), fingerprints(second)
    common = [name for name in before if name in after]
    changes = {name: _changes(before[name], after[name]) for name in common}
    return {name: change for name, change in changes.items() if change}


def remarks(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    """Return notes on differing conditions that change no case."""
    versions = [as_mapping(spec.get("provenance")).get("proctor") for spec in (first, second)]
    if None not in versions and versions[0] != versions[1]:
        yield f"the runs were made by proctor {versions[0]} and {versions[1]}"
    if not fingerprints(first) or not fingerprints(second):
        yield "a run does not contain its cases: they are matched by id only"


def _changes(before: CaseFingerprint, after: CaseFingerprint) -> str:
    changes: list[str] = []
    if spec_hash(before.case) != spec_hash(after.case):
        keys = _differing(before.case, after.case)
        changes.append(f"the case changed ({', '.join(keys)})")
    if spec_hash(before.judges) != spec_hash(after.judges):
        names = _differing(before.judges, after.judges)
        which = "" if names == [DEFAULT_JUDGE] else f" ({', '.join(names)})"
        changes.append(f"the judge changed{which}")
    if spec_hash(before.fixtures) != spec_hash(after.fixtures):
        changes.append("the fixtures changed")
    if not changes:
        return ""
    old, new = before.hashes, after.hashes
    pairs = (
        f"{part} {old.get(part, 'none')} → {new.get(part, 'none')}"
        for part in ("case", "judge", "fixtures")
        if old.get(part) != new.get(part)
    )
    return f"{' and '.join(changes)}: {', '.join(pairs)}"


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [
        key
        for key in sorted({*before, *after})
        if spec_hash(before.get(key)) != spec_hash(after.get(key))
    ]


def _scenarios(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what generated cases are built from: templates by hash, and parameters.

    Seeds are not part of it: they distinguish the instances of a case, which are paired by seed.
    """
    record = as_mapping(experiment.get("scenarios"))
    templates = as_mapping(record.get("templates"))
    by_case: dict[str, Any] = {}
    for case, staged in as_mapping(record.get("cases")).items():
        template = as_mapping(templates.get(str(as_mapping(staged).get("template"))))
        by_case[case] = {**as_mapping(staged), "hash": template.get("hash")}
    return by_case


def _judges(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return every judge of a run by name, with its configuration."""
    suite, settings = as_mapping(spec.get("suite")), as_mapping(spec.get("settings"))
    # The suite's own judge wins over the settings, as in a run.
    default = suite.get("judge") or settings.get("judge")
    judges = {DEFAULT_JUDGE: default} if default else {}
    judges |= as_mapping(suite.get("judges"))
    for name, config in judges.items():
        if isinstance(config, str):  # the short form, which is the same judge as the long one
            judges[name] = {"model": config}
        elif isinstance(config, dict):
            options = cast("dict[str, Any]", config)
            judges[name] = {k: v for k, v in options.items() if k not in _JUDGE_ACCESS_KEYS}
    return judges


def _judges_named_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        options = cast("dict[str, Any]", value)
        if options.get("type") == "judge" and "judge" not in options:
            yield DEFAULT_JUDGE
        for key, part in options.items():
            if key == "judge" and isinstance(part, str):
                yield part
            elif key in _JUDGE_KEYS and part not in (None, False, []):
                yield DEFAULT_JUDGE
                yield from _judges_named_in(part)
            else:
                yield from _judges_named_in(part)
    elif isinstance(value, list | tuple):
        for part in cast("list[Any]", value):
            yield from _judges_named_in(part)
