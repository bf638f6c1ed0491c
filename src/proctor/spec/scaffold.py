"""Write the files of a new suite, next to existing files of a project.

    DIR/
      suite.yaml                      the suite, commented
      example_agent.py                an example agent
      .proctor/suite.schema.json      for editors; the suite's first line names it
    ROOT/.github/workflows/proctor.yml    ROOT is the repository's, where GitHub looks

Nothing is overwritten and there are no prompts: the repository, the Python version and the install
command are derived from existing files. A suite can be drafted from recorded traces, or from the
docstring of an agent, which is read and not imported.
"""

from __future__ import annotations

import ast
import doctest
import json
import re
import shlex
import tomllib
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from proctor.errors import ProctorError
from proctor.formatting import clipped
from proctor.imports import find_object
from proctor.spec._json_schema import schema_of
from proctor.spec.located import escaped
from proctor.trace.model import Trace

DEFAULT_PYTHON = "3.12"
"""Default Python version: supported for years, and every agent library runs on it."""


class ScaffoldFile(NamedTuple):
    """One file of a new suite; `written` is False when it existed before."""

    path: Path
    what: str
    written: bool


def scaffold(directory: Path, draft: str | None = None) -> list[ScaffoldFile]:
    """Write the missing files of a new suite; with `draft`, that suite and no example agent."""
    here = directory.resolve()
    # GitHub reads workflows only at the root of a repository.
    root = next((each for each in (here, *here.parents) if (each / ".git").exists()), directory)
    suite = directory / "suite.yaml"
    shown = suite.resolve().relative_to(root.resolve()).as_posix()
    project = _project(root)
    # The oldest Python that both the project and Proctor support.
    floor = re.search(r">=?\s*3\.(\d+)", str(project.get("requires-python", "")))
    requirements = "-r requirements.txt " if (root / "requirements.txt").is_file() else ""
    workflow = (
        _template("workflow.yml")
        .replace("@PYTHON@", f"3.{max(11, int(floor[1]))}" if floor else DEFAULT_PYTHON)
        .replace("@INSTALL@", f"pip install {'. ' if project else requirements}proctor")
        .replace("@SUITE@", shlex.quote(shown))
    )
    if draft is not None and suite.exists():
        raise ProctorError("exists already", where=str(suite), hint="name another folder")
    example = (directory / "example_agent.py", "an agent to try", _template("example_agent.py"))
    wanted = [
        (suite, "the suite", draft or _template("suite.yaml")),
        *([] if draft else [example]),
        (
            directory / ".proctor" / "suite.schema.json",
            "completion in editors",
            json.dumps(schema_of("suite"), indent=1) + "\n",
        ),
        (root / ".github" / "workflows" / "proctor.yml", "CI on GitHub", workflow),
    ]
    return [ScaffoldFile(path, what, _write(path, text)) for path, what, text in wanted]


# -- drafts ----------------------------------------------------------------------------------------

_HEAD = """\
# yaml-language-server: $schema=./.proctor/suite.schema.json
#
# Drafted from {source}. A draft repeats what was there: read every case, and
# keep the checks that must hold of every right answer.
"""

_FACT = re.compile(r"\d+(?:[.,:]\d+)*")
_QUESTION = re.compile(r"[\"“']([^\"“”']+\?)[\"”']|^[ \t]*[-*][ \t]+(\S.*\?)[ \t]*$", re.MULTILINE)

MOST_FACTS = 3
"""Facts of an answer to check; more would tie the case to one wording."""


def draft_from_traces(traces: Iterable[Trace], source: str) -> str:
    """Return a suite with a case for each input of the traces: its tools, and facts of its answer.

    Facts are numbers of two digits or more that the answer has and the input does not. Without an
    agent: recorded traces can be checked at once, and the agent is for the user to name.
    """
    cases: dict[str, dict[str, Any]] = {}
    for trace in traces:
        if not trace.query or trace.query in cases:
            continue
        answer = trace.response if isinstance(trace.response, str) else ""
        facts = [
            fact for fact in _FACT.findall(answer) if len(fact) > 1 and fact not in trace.query
        ]
        case: dict[str, Any] = {"id": _case_id(trace.query, cases), "input": trace.query}
        if answer:
            case["description"] = f"Recorded answer: {clipped(' '.join(answer.split()), 200)}"
        if facts:
            unique = list(dict.fromkeys(facts))
            case["correctness"] = {"expected_in_answer": unique[:MOST_FACTS]}
        if tools := trace.tools_used:
            # Twice the recorded number: an agent may search once more than it did that day.
            limit = 2 * len(trace.tool_calls)
            case["path"] = {"expected_tools": tools, "max_tool_calls": limit}
        cases[trace.query] = case
    if not cases:
        raise ProctorError("no trace has an input to draft a case from", where=source)
    agent = (
        "# What is under test: a Python function as package.module:name.\n# agent: agent:answer\n"
    )
    return (
        _HEAD.format(source=source) + "version: 1\n" + agent + _yaml({"cases": [*cases.values()]})
    )


def draft_from_module(path: str, base_dir: Path) -> str:
    """Return a suite for an agent with a case for each example in its docstring.

    Examples are doctests (`>>> answer("…")`) and questions, in quotes or as items of a list.
    """
    file = find_object(path, base_dir)
    if file is None:
        raise ProctorError("its source cannot be read", where=path, hint="name a Python function")
    name = path.rpartition(":")[2].rpartition(".")[2]
    module = ast.parse(file.read_bytes())
    found = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name == name
    ]
    doc = (ast.get_docstring(found[0]) if found else None) or ast.get_docstring(module) or ""
    cases: dict[str, dict[str, Any]] = {}

    def add(question: str, expected: list[str]) -> None:
        case: dict[str, Any] = {"id": _case_id(question, cases), "input": question}
        if expected:
            case["correctness"] = {"expected_in_answer": expected}
        cases.setdefault(question, case)

    for example in doctest.DocTestParser().get_examples(doc):
        calls = [n for n in ast.walk(ast.parse(example.source)) if isinstance(n, ast.Call)]
        given = [a.value for n in calls for a in n.args[:1] if isinstance(a, ast.Constant)]
        if given and isinstance(given[0], str):
            # As in doctests, dots stand for any text.
            wanted = example.want.strip().strip("'\"")
            add(given[0], [part.strip() for part in wanted.split("...") if part.strip()])
    prose = re.sub(r"^[ \t]*(>>>|\.\.\.).*$", "", doc, flags=re.MULTILINE)
    for quoted, item in _QUESTION.findall(prose):
        add(quoted or item, [])
    if not cases:
        raise ProctorError(
            "its docstring has no example to draft a case from",
            where=path,
            hint='add one, such as >>> answer("When are you open?"), or draft from a trace',
        )
    suite = {"agent": path, "defaults": {"trials": 3}, "cases": [*cases.values()]}
    return _HEAD.format(source=f"the docstring of {path}") + "version: 1\n" + _yaml(suite)


def _case_id(text: str, taken: Iterable[Any]) -> str:
    """Return a short id made of the first words of an input."""
    words = re.findall(r"[a-z0-9]+", text.lower())[:5]
    number = len(list(taken)) + 1
    return "-".join([*words, str(number)] if words else ["case", str(number)])


def _yaml(values: dict[str, Any]) -> str:
    # Escaped: a suite replaces ${NAME} by a variable, and recorded text may contain it.
    text = yaml.safe_dump(escaped(values), sort_keys=False, allow_unicode=True, width=96)
    return text.replace("\n- id:", "\n\n- id:")


def _write(path: Path, text: str) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Mode `x` fails if the file exists: two commands at once overwrite nothing either.
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    # The user's own file stays as it is.
    except FileExistsError:
        return False
    except OSError as error:
        raise ProctorError(f"cannot write: {error.strerror or error}", where=str(path)) from None
    return True


def _template(name: str) -> str:
    return (files("proctor") / "data" / "templates" / name).read_text(encoding="utf-8")


def _project(root: Path) -> dict[str, Any]:
    """Return the `[project]` table, empty when missing or unreadable."""
    try:
        data = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}
    project = data.get("project")
    return cast("dict[str, Any]", project) if isinstance(project, dict) else {}
