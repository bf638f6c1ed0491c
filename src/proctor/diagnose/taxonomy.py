"""The TRAIL taxonomy: 21 kinds of agent error in three groups, and the parsing of labels.

Guarantees: every label maps to one leaf or to None, never to a guess: an exact match ignoring case,
spaces and punctuation, a plural, or a trailing word such as "Error". The official scorer reads
labels in its own, laxer way (`official_label`), which is separate because its numbers depend on it.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple


class Group(StrEnum):
    """The three groups of the taxonomy."""

    REASONING = "Reasoning"
    SYSTEM = "System Execution"
    PLANNING = "Planning"


class Category(StrEnum):
    """A leaf of the taxonomy, in the official scorer's order, on which its matches depend."""

    LANGUAGE_ONLY = "Language-only"
    TOOL_RELATED = "Tool-related"
    POOR_RETRIEVAL = "Poor Information Retrieval"
    MEMORY = "Incorrect Memory Usage"
    MISREAD_OUTPUT = "Tool Output Misinterpretation"
    WRONG_PROBLEM = "Incorrect Problem Identification"
    TOOL_SELECTION = "Tool Selection Errors"
    FORMATTING = "Formatting Errors"
    NON_COMPLIANCE = "Instruction Non-compliance"
    TOOL_DEFINITION = "Tool Definition Issues"
    ENVIRONMENT = "Environment Setup Errors"
    RATE_LIMIT = "Rate Limiting"
    AUTHENTICATION = "Authentication Errors"
    SERVICE = "Service Errors"
    NOT_FOUND = "Resource Not Found"
    EXHAUSTION = "Resource Exhaustion"
    TIMEOUT = "Timeout Issues"
    CONTEXT = "Context Handling Failures"
    RESOURCE_ABUSE = "Resource Abuse"
    GOAL_DEVIATION = "Goal Deviation"
    ORCHESTRATION = "Task Orchestration"

    @property
    def group(self) -> Group:
        """The group this leaf belongs to."""
        return LEAVES[self].group

    @property
    def meaning(self) -> str:
        """What the leaf means, in one line."""
        return LEAVES[self].meaning


class Leaf(NamedTuple):
    """Description of a leaf."""

    group: Group
    meaning: str


LEAVES: dict[Category, Leaf] = {
    Category.LANGUAGE_ONLY: Leaf(
        Group.REASONING, "A statement that nothing in the trace supports: made up from language."
    ),
    Category.TOOL_RELATED: Leaf(
        Group.REASONING, "Tool results or abilities that are made up: no such call was made."
    ),
    Category.POOR_RETRIEVAL: Leaf(
        Group.REASONING, "What was looked up does not serve the task, or was looked up badly."
    ),
    Category.MEMORY: Leaf(Group.REASONING, "Something known earlier is recalled wrongly."),
    Category.MISREAD_OUTPUT: Leaf(
        Group.REASONING, "A tool's answer is read as saying what it does not say."
    ),
    Category.WRONG_PROBLEM: Leaf(
        Group.REASONING, "The task, or the cause of a failure, is understood wrongly."
    ),
    Category.TOOL_SELECTION: Leaf(Group.REASONING, "The wrong tool for the step."),
    Category.FORMATTING: Leaf(
        Group.REASONING, "Output that does not parse or lacks the required form."
    ),
    Category.NON_COMPLIANCE: Leaf(Group.REASONING, "An explicit instruction is not followed."),
    Category.TOOL_DEFINITION: Leaf(
        Group.SYSTEM, "A tool does not do what its definition says, or is defined wrongly."
    ),
    Category.ENVIRONMENT: Leaf(
        Group.SYSTEM, "The environment lacks a permission, package or resource."
    ),
    Category.RATE_LIMIT: Leaf(Group.SYSTEM, "A service refuses because of too many requests."),
    Category.AUTHENTICATION: Leaf(Group.SYSTEM, "Access is refused: 401, 403, a bad key."),
    Category.SERVICE: Leaf(Group.SYSTEM, "A service fails on its side: 5xx."),
    Category.NOT_FOUND: Leaf(Group.SYSTEM, "The requested resource does not exist: 404."),
    Category.EXHAUSTION: Leaf(Group.SYSTEM, "Memory, disk, context or another resource runs out."),
    Category.TIMEOUT: Leaf(Group.SYSTEM, "A step takes longer than it may."),
    Category.CONTEXT: Leaf(Group.PLANNING, "Context is lost or confused over a long run."),
    Category.RESOURCE_ABUSE: Leaf(Group.PLANNING, "The same call again and again, to no end."),
    Category.GOAL_DEVIATION: Leaf(Group.PLANNING, "The agent leaves the task or its own plan."),
    Category.ORCHESTRATION: Leaf(Group.PLANNING, "Steps or sub-agents are coordinated badly."),
}

# Words annotators add or leave out; no two leaves differ in them alone.
_TAIL = re.compile(r"(errors?|issues?|failures?|problems?)$")


def _key(label: str) -> str:
    letters = "".join(ch for ch in label.casefold() if ch.isalnum())
    return _TAIL.sub("", letters).rstrip("s") or letters


_BY_KEY = {_key(category.value): category for category in Category}


def parse_category(label: str) -> Category | None:
    """Return the leaf a label names in any of its common spellings, or None."""
    return _BY_KEY.get(_key(label))


@lru_cache(maxsize=1024)
def official_label(label: str) -> str:
    """Return the label as the official scorer reads it; an unknown label is only lower-cased.

    Equality ignoring case and spaces first, then "is a part of", in the order of the taxonomy.
    """
    folded = label.lower().strip()
    bare = folded.replace(" ", "")
    if not bare:
        return ""
    names = [(category.value, category.value.lower().replace(" ", "")) for category in Category]
    for name, known in names:
        if bare == known:
            return name
    return next((name for name, known in names if bare in known), folded)
