"""Convert test files of promptfoo, pydantic-evals and Inspect, and tasks of Harbor, into suites.

Guarantees: what the suite checks, the source checked too: an assertion without an exact counterpart
is left out and counted by its type. Nothing of the source is executed; files it names are read from
its folder.
"""

from __future__ import annotations

import ast
import csv
import io
import itertools
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from textwrap import indent
from typing import Any, cast

import yaml
from pydantic import TypeAdapter, ValidationError

from proctor import checks
from proctor.checks.layers import Assertion
from proctor.errors import ProctorError
from proctor.runs.case_rows import escaped, slug
from proctor.spec.suite import same_id

SOURCES = ("promptfoo", "pydantic-evals", "inspect", "harbor")

_ASSERTION: TypeAdapter[Any] = TypeAdapter(Assertion)

# A JSON object somewhere in a text: the grammar as a recursive pattern.
_JSON = (
    r'(?(DEFINE)(?<s>"(?:[^"\\]|\\.)*")(?<v>\s*(?:(?&s)|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false'
    r"|null|(?&o)|(?&a))\s*)(?<o>\{(?:\s*(?&s)\s*:(?&v)(?:,\s*(?&s)\s*:(?&v))*|\s*)\})"
    r"(?<a>\[(?:(?&v)(?:,(?&v))*|\s*)\]))(?&o)"
)

_ANY_OBJECT = """\
from jsonschema.validators import validator_for
found, at = [], output.find("{")
while at >= 0:
    try:
        value, at = json.JSONDecoder().raw_decode(output, at)
        found.append(value)
    except ValueError:
        at += 1
    at = output.find("{", at)
return any(validator_for(schema)(schema).is_valid(value) for value in found)"""
"""Whether a JSON object in the output is valid for the schema, as code of a `python` assertion."""

_NO_OUTPUT = ("cost", "latency", "trace-", "trajectory:", "not-trajectory:")
"""Assertions of promptfoo that do not look at the output."""

_FACTUAL = "The answer agrees with the expected answer in every fact that both state."


class Converter:
    """The suite of one file, and what has no equivalent in it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.cases: list[dict[str, Any]] = []
        self.agents: dict[str, dict[str, Any]] = {}
        self.judge: str | None = None
        self.trials: int | None = None
        self.converted = 0
        self.left_out: Counter[str] = Counter()
        self._ids: set[str] = set()

    @property
    def uses_judge(self) -> bool:
        """Whether a check needs the judge of the suite."""
        every = (each for case in self.cases for each in case.get("assertions", ()))
        return any(each["type"] == "judge" and "model" not in each for each in every)

    def suite(self, agent: str | None = None, judge: str | None = None) -> dict[str, Any]:
        """Return the suite as data; `agent` and `judge` replace those of the source."""
        document: dict[str, Any] = {"version": 1}
        if agent is not None:
            document["agent"] = agent
        elif self.agents:
            document["agents"] = self.agents
        else:
            raise ProctorError(
                "the file names no agent that Proctor can run",
                where=str(self.file),
                hint="name yours with --agent my_package.agent:answer",
            )
        if not self.cases:
            raise ProctorError("the file contains no tests", where=str(self.file))
        if (judge or self.judge) and self.uses_judge:
            document["judge"] = judge or self.judge
        if self.trials is not None:
            document["defaults"] = {"trials": self.trials}
        return escaped({**document, "cases": self.cases})

    # -- shared ----------------------------------------------------------------------------------

    def add(
        self, name: str | None, given: Any, judged_by: Iterable[dict[str, Any]], **more: Any
    ) -> None:
        """Add a case; it is judged by assertions and by custom checks (with a key `check`)."""
        # A case needs an input.
        if given in (None, "", [], {}) or (isinstance(given, str) and not given.strip()):
            self.left_out["empty input"] += 1
            return
        base = slug(str(name) if name else given)
        numbered = (f"{base}-{number}" for number in itertools.count(2))
        case_id = next(i for i in itertools.chain((base,), numbered) if same_id(i) not in self._ids)
        self._ids.add(same_id(case_id))
        case: dict[str, Any] = {"id": case_id, "input": given}
        case.update({key: value for key, value in more.items() if value not in (None, {}, [])})
        listed = list(judged_by)
        assertions = [each for each in listed if "check" not in each]
        custom = [each for each in listed if "check" in each]
        self.cases.append(
            case
            | ({"checks": custom} if custom else {})
            | ({"assertions": assertions} if assertions else {})
        )

    def valid(self, kind: str, found: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        """Count an assertion and return its checks; none where it has no valid equivalent."""
        try:
            for each in found or ():
                if "check" not in each:
                    _ASSERTION.validate_python(each)
                else:
                    getattr(checks, each["check"].rpartition(":")[2])(**each["params"])
        # For example a regular expression with JavaScript's syntax.
        except (ValidationError, ProctorError, ValueError):
            found = None
        if found is None:
            self.left_out[kind] += 1
            return []
        self.converted += 1
        return found

    def text(self, name: str) -> str:
        """Return the text of a file beside the source (`file://` is optional)."""
        path = self.file.parent / name.removeprefix("file://")
        try:
            return path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ProctorError(f"cannot read: {error}", where=str(path)) from None

    def data(self, name: str) -> Any:
        """Return the content of a YAML, JSON, JSONL or CSV file beside the source."""
        text, where = self.text(name), str(self.file.parent / name.removeprefix("file://"))
        try:
            if where.endswith((".jsonl", ".ndjson")):
                return [json.loads(line) for line in text.splitlines() if line.strip()]
            if where.endswith((".csv", ".tsv")):
                delimiter = max(",;\t", key=text.partition("\n")[0].count)
                return list(csv.DictReader(io.StringIO(text), delimiter=delimiter))
            return json.loads(text) if where.endswith(".json") else yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
            raise ProctorError(f"not readable: {error.problem}", where=place) from None
        except (ValueError, yaml.YAMLError, csv.Error) as error:
            raise ProctorError(f"not readable: {error}", where=where) from None


def convert(file: Path, source: str | None = None) -> Converter:
    """Convert a file; its source is recognised by its content unless given."""
    done = Converter(file)
    if file.is_dir() and source in (None, "harbor"):
        _read_harbor(done)
        return done
    if not file.is_file():
        raise ProctorError("the file does not exist", where=str(file))
    content = done.data(file.name)
    if source is None and isinstance(content, dict):
        keys = set(cast("dict[str, Any]", content))
        source = "pydantic-evals" if "cases" in keys else None
        if keys & {"prompts", "providers", "targets", "tests", "scenarios"}:
            source = "promptfoo"
    elif source is None and isinstance(content, list) and content:
        if {"actual_output", "expected_output"} & set(_map(content[0])):
            raise ProctorError(
                "goldens of DeepEval name no checks, so they are data and not a suite",
                where=str(file),
                hint=f"write `cases: {{data: {file.name}, case: {{correctness:"
                " {exact_match: '{expected_output}'}}}`, or other checks, in a suite",
            )
        source = "inspect" if "input" in content[0] else None
    if source == "promptfoo" and isinstance(content, dict):
        _Promptfoo(done, cast("dict[str, Any]", content)).read()
    elif source == "pydantic-evals" and isinstance(content, dict):
        _read_pydantic(done, cast("dict[str, Any]", content))
    elif source == "inspect" and isinstance(content, list):
        _read_inspect(done, cast("list[dict[str, Any]]", content))
    else:
        raise ProctorError(
            "not a promptfoo config, nor a data set of pydantic-evals or Inspect",
            where=str(file),
            hint=f"--from {'|'.join(SOURCES)}",
        )
    return done


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _map(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _equals(value: Any, *, inverse: bool = False) -> list[dict[str, Any]]:
    path = "response" if isinstance(value, str) else "response_json"
    return [{"type": "jmespath", "path": path, "ne" if inverse else "eq": value}]


def _regex(pattern: str, *, inverse: bool = False) -> list[dict[str, Any]]:
    pattern = re.sub(r"\(\?<(?=[A-Za-z_])", "(?P<", pattern)  # JavaScript's names of groups
    pattern = rf"\A(?![\s\S]*?(?:{pattern}))" if inverse else pattern
    params = {"patterns": [pattern], "case_sensitive": True}
    return [{"check": "proctor.checks:Matches", "params": params}]


def _python(code: str, inverse: bool = False) -> list[dict[str, Any]]:
    params = {"code": code} | ({"inverse": True} if inverse else {})
    return [{"check": "proctor.checks:PythonAssertion", "params": params}]


def _any(texts: list[str], case_sensitive: bool) -> list[dict[str, Any]]:
    params = {"texts": texts, "case_sensitive": case_sensitive}
    return [{"check": "proctor.checks:ContainsAny", "params": params}]


# -- promptfoo -----------------------------------------------------------------------------------

_CONFIG_KEYS = (
    *("prompts", "providers", "targets", "tests", "scenarios", "defaultTest", "assertionTemplates"),
    *("evaluateOptions", "description", "tags", "sharing", "outputPath", "commandLineOptions"),
    *("$schema", "metadata", "writeLatestResults", "tracing"),
)
_TEST_KEYS = ("vars", "assert", "description", "threshold", "options", "metadata")
_TEST_OPTIONS = ("prefix", "suffix", "transform", "postprocess", "provider")
"""Keys that are converted, and those without effect on a verdict."""

_MODEL_OPTIONS = {
    "temperature": "temperature",
    "max_tokens": "max_tokens",
    "apiBaseUrl": "base_url",
    "apiKeyEnvar": "api_key_env",
}
"""Option of a provider → option of a chat agent."""


class _Promptfoo:
    """A promptfoo config: prompts × tests become cases, providers agents."""

    def __init__(self, out: Converter, config: dict[str, Any]) -> None:
        from jinja2.sandbox import SandboxedEnvironment

        self.out, self.config = out, config
        self.templates = SandboxedEnvironment()
        self.default = self._loaded(config.get("defaultTest"))

    def read(self) -> None:
        """Convert the whole config."""
        out = self.out
        self._left_out("option", self.config, _CONFIG_KEYS)
        for provider in _list(self.config.get("providers") or self.config.get("targets")):
            self._provider(provider)
        repeat = _map(self.config.get("evaluateOptions")).get("repeat")
        out.trials = int(repeat) if repeat else None
        grader = _map(self.default.get("options")).get("provider")
        out.judge = _model(grader) if isinstance(grader, str) else None
        prompts = [p for each in _list(self.config.get("prompts")) for p in self._prompts(each)]
        tests = list(self._tests(self.config.get("tests")))
        for scenario in map(self._loaded, _list(self.config.get("scenarios"))):
            rows = list(self._tests(scenario.get("config"))) or [{}]
            inner = list(self._tests(scenario.get("tests"))) or [{}]
            tests += [_over(row, test) for row in rows for test in inner]
        for test in tests:
            merged = _over(self.default, test)
            for values in _combinations(_map(merged.get("vars"))):
                for label, prompt in prompts or [("", "{{prompt}}")]:
                    self._case(merged, values, label if len(prompts) > 1 else "", prompt)

    def _case(self, test: dict[str, Any], values: dict[str, Any], label: str, prompt: Any) -> None:
        values = {name: self._file(value) for name, value in values.items()}
        # A variable may name others.
        values = {name: self._rendered(value, values) for name, value in values.items()}
        given = self._rendered(prompt, values)
        messages = _decoded(given.strip()) if isinstance(given, str) else given
        # A prompt written as JSON is a conversation.
        if isinstance(messages, list) and all("role" in _map(m) for m in _list(messages)):
            given = cast("list[Any]", messages)
        options = _map(test.get("options"))
        self._left_out("test", test, _TEST_KEYS)
        self._left_out("test option", options, _TEST_OPTIONS)
        if isinstance(given, str):
            given = f"{options.get('prefix', '')}{given}{options.get('suffix', '')}"
        transformed = bool(options.get("transform") or options.get("postprocess"))
        if transformed:
            self.out.left_out["options.transform"] += 1
        threshold = test.get("threshold")
        name = test.get("description") or " ".join(
            str(value) for value in values.values() if isinstance(value, str | int | float)
        )
        self.out.add(
            f"{name} {label}"[:200] if name and label else name,
            given,
            self._assertions(
                _list(test.get("assert")), values, 1.0, threshold is None, transformed
            ),
            description=test.get("description"),
            threshold=threshold,
            properties={
                **_map(test.get("metadata")),
                **({"vars": values} if values else {}),
                **({"prompt": label} if label else {}),
            },
        )

    def _assertions(
        self,
        listed: list[Any],
        values: dict[str, Any],
        share: float,
        required: bool,
        transformed: bool,
    ) -> Iterator[dict[str, Any]]:
        """Yield the checks of assertions; `share` scales their weights within a set.

        Of a test that transforms its output, only those on something else have an equivalent.
        """
        for entry in listed:
            given = _map(entry)
            if reference := given.get("$ref"):
                name = str(reference).rpartition("/")[2]
                given = _map(_map(self.config.get("assertionTemplates")).get(name)) | given
            kind = str(given.get("type") or given.get("$ref") or "assertion")
            weight = float(given.get("weight", 1)) * share
            if kind == "assert-set":
                members = _list(given.get("assert"))
                total = sum(float(_map(each).get("weight", 1)) for each in members) or 1.0
                own = given.get("threshold")
                if own is not None:
                    self.out.left_out["assert-set threshold"] += 1
                yield from self._assertions(
                    members, values, weight / total, required and own is None, transformed
                )
                continue
            found = None
            if "transform" not in given and not (transformed and not kind.startswith(_NO_OUTPUT)):
                value = self._rendered(self._file(given.get("value")), values)
                inverse = kind.startswith("not-")
                if (name := kind.removeprefix("not-")) in ("python", "javascript"):
                    found = self._code(name, str(value), given, inverse=inverse)
                else:
                    found = _equivalent(name, value, given, inverse)
            for each in self.out.valid(kind, found):
                if "check" in each:
                    each["id"] = str(given.get("metric") or kind)
                # Weight 0 means: reported, and without effect on the result.
                each["required"] = required and weight > 0
                if (own := round(weight / len(found or [0]), 6)) != 1:
                    each["weight"] = own
                yield each

    def _code(
        self, language: str, value: str, given: Mapping[str, Any], *, inverse: bool
    ) -> list[dict[str, Any]] | None:
        """Return a check with the code of an assertion, or of the file it names."""
        params: dict[str, Any] = {"code": value}
        if value.startswith("file://"):
            found = re.fullmatch(r"file://(.*\.(py|js|cjs|mjs))(?::(\w+))?", value)
            if found is None or (found[2] == "py") != (language == "python"):
                return None
            main = "get_assert" if language == "python" else "default"
            params = {"code": self.out.text(found[1]), "function": found[3] or main}
            # The suite has the text of one file.
            if re.search(r"""(?:from|require\(|import\(?)\s*["']\.""", params["code"]):
                return None
        if language == "python":
            code = params["code"]
            body = code if "function" in params else f"def f():\n{indent(value, ' ')}"
            try:
                ast.parse(body if "\n" in value.strip() or "function" in params else value.strip())
            except SyntaxError:
                return None
        params |= {name: given[name] for name in ("threshold", "config") if name in given}
        params |= {"inverse": True} if inverse else {}
        check = "PythonAssertion" if language == "python" else "JavaScriptAssertion"
        return [{"check": f"proctor.checks:{check}", "params": params}]

    def _provider(self, provider: Any) -> None:
        options = {"id": provider} if isinstance(provider, str) else _map(provider)
        if "id" not in options and len(options) == 1:
            # The form {openai:gpt-4o: {label: …}}.
            name, more = next(iter(options.items()))
            options = {"id": name, **_map(more)}
        identity = str(options.get("id") or "provider")
        config = _map(options.get("config"))
        agent: dict[str, Any] | None = None
        if identity == "echo":
            agent = {"kind": "command", "command": "cat", "protocol": "text"}
        elif model := _model(identity):
            agent = {"kind": "chat", "model": model}
            agent |= {ours: config[name] for name, ours in _MODEL_OPTIONS.items() if name in config}
            self._left_out("provider config", config, _MODEL_OPTIONS)
        if agent is None:
            self.out.left_out[f"provider {identity}"] += 1
        else:
            self._left_out("provider option", options, ("id", "label", "config"))
            self.out.agents[str(options.get("label") or identity)] = agent

    def _left_out(self, what: str, given: Mapping[str, Any], known: Collection[str]) -> None:
        """Count the keys that change what is tested and have no equivalent."""
        self.out.left_out.update(f"{what} {name}" for name in given if name not in known)

    def _prompts(self, entry: Any) -> Iterator[tuple[str, Any]]:
        """Yield the label and the template of each prompt of an entry."""
        label = None
        if options := _map(entry):
            label = options.get("label")
            entry = options.get("raw") or options.get("id")
        if isinstance(entry, str):
            name = entry.removeprefix("file://")
            if re.search(r"\.(?:py|[cm]?js|ts)(?::\w+)?$", name):
                self.out.left_out["prompt function"] += 1
                return
            if entry.startswith("file://") or name.endswith((".txt", ".md", ".json", ".j2")):
                text = self.out.text(name)
                if not name.endswith(".json"):
                    for part in re.split(r"(?m)^---\s*$", text):
                        yield str(label or name), part.strip()
                    return
                entry = text
        yield str(label or entry), entry

    def _tests(self, listed: Any) -> Iterator[dict[str, Any]]:
        for entry in _list(listed):
            if isinstance(entry, dict):
                test = cast("dict[str, Any]", entry)
                yield {**test, "vars": self._variables(test.get("vars"))}
            elif re.match(r"https?://|huggingface://", str(entry)) or str(entry).endswith(
                (".py", ".js", ".ts")
            ):
                self.out.left_out[f"tests from {entry}"] += 1
            elif "*" in (pattern := str(entry).removeprefix("file://")):
                for path in sorted(self.out.file.parent.glob(pattern)):
                    yield from self._tests(str(path.relative_to(self.out.file.parent)))
            else:
                rows = _list(self.out.data(str(entry)))
                table = str(entry).endswith((".csv", ".tsv"))
                yield from (self._row(row) if table else _map(row) for row in rows)

    def _row(self, row: Mapping[str, str | None]) -> dict[str, Any]:
        """Return a row of a CSV file as a test."""
        test: dict[str, Any] = {"vars": {}, "assert": [], "metadata": {}, "options": {}}
        for column, cell in row.items():
            name, value = str(column).strip(), str(cell or "")
            if name.startswith("__expected"):
                test["assert"] += [_from_text(value.strip())] if value.strip() else []
            elif name == "__threshold":
                test |= {"threshold": float(value)} if value.strip() else {}
            elif name == "__description":
                test["description"] = value
            elif name in ("__prefix", "__suffix"):
                test["options"][name[2:]] = value
            elif name.startswith("__metadata:"):
                test["metadata"][name[11:].removesuffix("[]")] = value
            elif name.startswith("__"):
                self.out.left_out[f"column {name}"] += 1
            else:
                test["vars"][name] = value
        return test

    def _variables(self, value: Any) -> dict[str, Any]:
        """Return the variables of a test, which may be in files."""
        if isinstance(value, dict):
            return _map(value)
        return {name: each for file in _list(value) for name, each in self._loaded(file).items()}

    def _loaded(self, value: Any) -> dict[str, Any]:
        return _map(self.out.data(value) if isinstance(value, str) else value)

    def _file(self, value: Any) -> Any:
        """Return the content of a `file://` text; code stays as it is and has no equivalent."""
        if not isinstance(value, str) or not value.startswith("file://"):
            return value
        if value.endswith((".json", ".yaml", ".yml")):
            return self.out.data(value)
        return self.out.text(value) if value.endswith((".txt", ".md", ".html")) else value

    def _rendered(self, value: Any, values: dict[str, Any]) -> Any:
        if isinstance(value, list):
            return [self._rendered(item, values) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {key: self._rendered(item, values) for key, item in _map(value).items()}
        if not isinstance(value, str) or ("{{" not in value and "{%" not in value):
            return value
        from jinja2 import TemplateError

        # Nunjucks, which promptfoo uses, has Jinja's syntax for what test files use.
        try:
            return self.templates.from_string(value).render(values)
        except (TemplateError, TypeError, ValueError):
            self.out.left_out["template"] += 1
            return value


def _over(base: dict[str, Any], test: dict[str, Any]) -> dict[str, Any]:
    """Return a test with the values of another one below it; assertions add up."""
    merged = {**base, **test}
    for key in ("vars", "options", "metadata"):
        merged[key] = {**_map(base.get(key)), **_map(test.get(key))}
    merged["assert"] = _list(base.get("assert")) + _list(test.get("assert"))
    return merged


def _combinations(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the variables of each case: a list gives one case per item."""
    options = [_list(value) if isinstance(value, list) else [value] for value in values.values()]
    for chosen in itertools.product(*options):
        yield dict(zip(values, chosen, strict=True))


def _model(identity: str) -> str | None:
    """Return the model of a provider's id: `openai:chat:gpt-4o` is `openai:gpt-4o`."""
    match = re.fullmatch(
        r"(openai|anthropic|google|mistral|groq|openrouter|deepseek):"
        r"(?:(?:chat|messages|responses|completion):)?([^:]+(?::free)?)",
        identity,
    )
    return f"{match[1]}:{match[2]}" if match else None


def _from_text(text: str) -> dict[str, Any]:
    """Return the assertion that a cell of `__expected` writes: `contains: Paris`, else equals."""
    match = re.match(r"((?:not-)?[a-z][a-z:-]*?)(?:\(([\d.]+)\))?:\s*(.*)", text, re.DOTALL)
    kinds = {"grade": "llm-rubric", "fn": "javascript", "eval": "javascript"}
    if text.startswith("file://") or match is None:
        known = re.fullmatch(r"(?:not-)?(?:is-json|contains-json|is-\w+)", text)
        kind = "javascript" if text.startswith("file://") else text if known else "equals"
        return {"type": kind, "value": None if known else text}
    kind, number, value = kinds.get(match[1], match[1]), match[2], match[3]
    if kind in ("latency", "cost"):
        number = number or value
    given: dict[str, Any] = {"type": kind, "value": value}
    return given | ({"threshold": float(number)} if number else {})


def _texts(value: Any) -> list[str]:
    found = value.split(",") if isinstance(value, str) else _list(value)
    return [str(item).strip() if isinstance(value, str) else str(item) for item in found]


def _equivalent(
    kind: str, value: Any, given: Mapping[str, Any], inverse: bool
) -> list[dict[str, Any]] | None:
    """Return the checks of an assertion; None where there is no exact equivalent."""
    match kind:
        case "contains" | "icontains" | "contains-all" | "icontains-all":
            texts = _texts(value) if kind.endswith("-all") else [str(value)]
            if inverse and len(texts) > 1:
                text = "output" if kind[0] != "i" else "output.lower()"
                every = texts if kind[0] != "i" else [each.lower() for each in texts]
                return _python(f"not all(each in {text} for each in {every!r})")
            wanted = "output_not_contains" if inverse else "output_contains"
            return [{"type": wanted, "value": texts, "case_sensitive": kind[0] != "i"}]
        case "contains-any" | "icontains-any":
            if inverse:
                sensitive = kind[0] != "i"
                options = {"value": _texts(value), "case_sensitive": sensitive}
                return [{"type": "output_not_contains", **options}]
            return _any(_texts(value), kind[0] != "i")
        case "equals":
            return _equals(value, inverse=inverse)
        # JavaScript has no flags at the beginning of a pattern.
        case "regex" if not str(value).startswith("(?i"):
            return _regex(str(value), inverse=inverse)
        case "starts-with":
            return _regex(rf"\A{'(?!' if inverse else '(?:'}{re.escape(str(value))})")
        case "is-json" if inverse:
            return None if value else _equals(None)
        case "is-json":
            schema = yaml.safe_load(value) if isinstance(value, str) else value
            params: dict[str, Any] = {"json_schema": schema or {}}
            return [{"check": "proctor.checks:JSONSchema", "params": params}]
        case "contains-json" if not value:
            return _regex(_JSON, inverse=inverse)
        case "contains-json":
            schema = yaml.safe_load(value) if isinstance(value, str) else value
            return _python(f"schema = {schema!r}\n{_ANY_OBJECT}", inverse)
        case "word-count":
            return _word_count(value, inverse)
        case "levenshtein":
            code = (
                "from proctor.checks.metrics import edit_distance\n"
                f"return edit_distance(output, {str(value)!r}) <= {given.get('threshold', 5)!r}"
            )
            return _python(code, inverse)
        case "latency" | "cost" if not inverse and "threshold" in given:
            key = "ms" if kind == "latency" else "usd"
            return [{"type": f"{kind}_under", key: given["threshold"]}]
        case _ if inverse and kind != "trajectory:tool-used":
            return None
        case "llm-rubric" | "model-graded-closedqa" | "g-eval" | "trajectory:goal-success":
            rule = _map(value).get("goal", value)
            rule = "\n".join(map(str, _list(rule)))
            goal = f"The agent achieved this goal: {rule}"
            judge: dict[str, Any] = {"type": "judge", "rule": goal if ":" in kind else rule}
            if kind != "model-graded-closedqa" and "threshold" in given:
                judge["threshold"] = given["threshold"]
            grader = given.get("provider")
            model = _model(grader) if isinstance(grader, str) else None
            return [judge | ({"model": model} if model else {})]
        case "factuality" | "model-graded-factuality":
            return [{"type": "judge", "rule": _FACTUAL, "expected": str(value)}]
        case _ if kind.startswith(("trajectory:", "trace-")):
            return _trace_check(kind, value, inverse)
        case _:
            return None


def _word_count(value: Any, inverse: bool) -> list[dict[str, Any]] | None:
    bounds = _map(value) or {"min": value, "max": value}
    try:
        least, most = (
            f"{float(bounds[key]):g}" if bounds.get(key) is not None else None
            for key in ("min", "max")
        )
    except (TypeError, ValueError):
        return None
    if least is None and most is None:
        return None
    left, right = f"{least} <= " if least else "", f" <= {most}" if most else ""
    return _python(f"{left}len(output.split()){right}", inverse)


def _trace_check(kind: str, value: Any, inverse: bool) -> list[dict[str, Any]] | None:
    """Return the checks of an assertion on the trace or the tool calls."""
    options = _map(value)
    bounds = {name: options[name] for name in ("min", "max") if name in options}
    tool = options.get("name") or options.get("pattern")
    # Names of tools have no wildcards here.
    plain = isinstance(tool, str) and "*" not in tool and "?" not in tool
    pattern = str(options.get("pattern") or "*")
    name = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    where: dict[str, Any] = {} if pattern == "*" else {"name_matches_regex": f"{name}$"}
    match kind:
        case "trajectory:tool-used" if not options:
            tools = [str(each) for each in _list(value)]
            wanted = "tool_not_called" if inverse else "tool_called"
            wild = not inverse and any("*" in each or "?" in each for each in tools)
            return None if wild else [{"type": wanted, "tool": each} for each in tools]
        case "trajectory:tool-used" if plain and not inverse:
            return [{"type": "tool_call_count", "tool": tool, **({"min": 1} | bounds)}]
        case "trajectory:tool-sequence":
            steps = [_map(s).get("name", s) for s in _list(options.get("steps", value))]
            mode = options.get("mode", "in_order")
            return [{"type": "tool_sequence", "tools": steps, "mode": mode}]
        case "trajectory:tool-args-match" if plain and not options.keys() & {"defaults", "ignore"}:
            arguments = options.get("args", options.get("arguments"))
            how = "exact" if options.get("mode") == "exact" else "superset"
            return [{"type": "tool_called", "tool": tool, "arguments": arguments, "match": how}]
        case "trajectory:step-count" if options.get("type") == "tool" and (plain or not tool):
            named = {"tool": tool} if tool else {}
            return [{"type": "tool_call_count", **named, **bounds}]
        case "trace-span-count":
            return [{"type": "span", "query": {"count": {"where": where, **bounds}}}]
        case "trace-error-spans" if "max_percentage" not in options:
            most = value if isinstance(value, int) else options.get("max_count", 0)
            count = {"where": {"has_status": "error", **where}, "max": most}
            return [{"type": "span", "query": {"count": count}}]
        case "trace-span-duration" if "max" in options and "percentile" not in options:
            # The limit itself is allowed, and a condition on the duration includes its bound.
            slow = {**where, "min_duration": options["max"] / 1000 + 1e-6}
            return [{"type": "span", "query": {"none": slow}}]
        case _:
            return None


# -- pydantic-evals ------------------------------------------------------------------------------


def _read_pydantic(out: Converter, content: dict[str, Any]) -> None:
    shared = _list(content.get("evaluators"))
    for name in _list(content.get("report_evaluators")):
        out.left_out[f"report evaluator {_evaluator(name)[0]}"] += 1
    for case in map(_map, _list(content.get("cases"))):
        expected = case.get("expected_output")
        found_checks: list[dict[str, Any]] = []
        for spec in (*shared, *_list(case.get("evaluators"))):
            kind, arguments = _evaluator(spec)
            found = _evaluator_checks(kind, arguments, case)
            found_checks += [each | {"required": True} for each in out.valid(kind, found)]
        metadata = case.get("metadata")
        properties = _map(metadata) or ({} if metadata is None else {"metadata": metadata})
        more = {} if expected is None else {"expected": expected}
        out.add(
            case.get("name"), case.get("inputs"), found_checks, properties={**properties, **more}
        )


def _evaluator(spec: Any) -> tuple[str, Any]:
    """Return the name and the arguments of an evaluator in any of its written forms."""
    if not isinstance(spec, dict):
        return str(cast("object", spec)), {}
    options = _map(spec)
    if "name" in options:
        return str(options["name"]), options.get("arguments") or {}
    name = next(iter(options), "evaluator")
    return name, options.get(name)


def _evaluator_checks(
    kind: str, arguments: Any, case: Mapping[str, Any]
) -> list[dict[str, Any]] | None:
    # A single argument is written without its name.
    first = {"LLMJudge": "rubric", "MaxDuration": "seconds", "HasMatchingSpan": "query"}
    named = isinstance(arguments, dict) and (kind != "HasMatchingSpan" or "query" in arguments)
    single: Any = next(iter(_list(arguments)), None)
    given = _map(arguments) if named else {first.get(kind, "value"): single}
    expected = case.get("expected_output")
    match kind:
        case "Equals":
            return _equals(given.get("value"))
        case "EqualsExpected":
            # Without an expected output the evaluator has no result.
            return [] if expected is None else _equals(expected)
        case "Contains" if isinstance(given.get("value"), str):
            sensitive = bool(given.get("case_sensitive", True))
            value = given["value"]
            return [{"type": "output_contains", "value": value, "case_sensitive": sensitive}]
        case "MaxDuration" if isinstance(given.get("seconds"), int | float):
            return [{"type": "latency_under", "ms": given["seconds"] * 1000}]
        case "LLMJudge" if given.get("rubric"):
            judge: dict[str, Any] = {"type": "judge", "rule": given["rubric"]}
            if given.get("model"):
                judge["model"] = str(given["model"])
            if given.get("include_expected_output") and expected is not None:
                judge["expected"] = expected if isinstance(expected, str) else json.dumps(expected)
            return [judge]
        case "HasMatchingSpan":
            return [{"type": "span", "query": given.get("query")}]
        case _:
            return None


# -- Inspect -------------------------------------------------------------------------------------

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CHOOSE = "Answer with a line `ANSWER: LETTER`, where LETTER is one of the choices."


def _read_inspect(out: Converter, samples: list[dict[str, Any]]) -> None:
    """Convert samples. Scorers are code and not in a data set: a target must be in the answer."""
    known = {"input", "target", "choices", "id", "metadata"}
    for sample in samples:
        for name in sample.keys() - known:
            out.left_out[f"field {name}"] += 1
        given = _decoded(sample.get("input"))
        targets = [str(each) for each in _list(_decoded(sample.get("target")))]
        choices = [str(each) for each in _list(_decoded(sample.get("choices") or None))]
        found: list[dict[str, Any]] | None = None
        if choices and isinstance(given, str) and len(choices) <= len(_LETTERS):
            shown = [f"{letter}) {text}" for letter, text in zip(_LETTERS, choices, strict=False)]
            given = "\n".join([given, "", *shown, "", _CHOOSE])
            letters = r"\W*".join(re.escape(each.upper()) for each in sorted("".join(targets)))
            found = _regex(rf"(?i)ANSWER\s*:\W*{letters}\b") if letters else None
        elif targets and any(targets):
            found = _any([each for each in targets if each], case_sensitive=False)
        metadata = _decoded(sample.get("metadata"))
        properties = _map(metadata) | ({"target": sample["target"]} if targets else {})
        identity = sample.get("id")
        name = None if identity in (None, "") else str(identity)
        out.add(
            name,
            given,
            [each | {"required": True} for each in out.valid("target", found)],
            properties=properties,
        )


def _decoded(value: Any) -> Any:
    """Return the data of a JSON cell of a CSV file; other values as they are."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


# -- Harbor --------------------------------------------------------------------------------------

TASK = "task.toml"

_ONLY_IMAGES = "only in a sandbox with `image: workspace`"

_OF_IMAGES = ("RUN", "COPY", "ADD", "ENV", "USER", "SHELL", "VOLUME")
"""Instructions whose effect only an image has; other lines are comments, or parts of a text."""

_BUILD_FILES = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", ".dockerignore")


def _read_harbor(done: Converter) -> None:
    """Add each task at or below a folder; paths are those from the folder above it.

    A task's files are its workspace, shown at the image's working directory; its tests appear at
    /tests after the agent, and the reward they write is the score.
    """
    root = done.file
    tasks = [root] if (root / TASK).is_file() else sorted(p.parent for p in root.glob(f"**/{TASK}"))
    if not tasks:
        raise ProctorError(f"there is no Harbor task: no {TASK} here or below", where=str(root))
    for task in tasks:
        _add_task(done, task)


def _add_task(done: Converter, task: Path) -> None:
    try:
        config = tomllib.loads((task / TASK).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProctorError(f"cannot read: {error}", where=str(task / TASK)) from None
    about, verifier = _map(config.get("task")), _map(config.get("verifier"))
    agent, environment = _map(config.get("agent")), _map(config.get("environment"))
    name = str(about.get("name") or task.name).rpartition("/")[2]
    test, instruction = task / "tests" / "test.sh", task / "instruction.md"
    if config.get("steps") or not test.is_file() or not instruction.is_file():
        missing = "several steps" if config.get("steps") else "no instruction.md or tests/test.sh"
        done.left_out[f"task: {missing}"] += 1
        return
    for section, keys in (
        (agent, {"timeout_sec": "agent.timeout_sec (run with --timeout)", "user": "agent.user"}),
        (verifier, {"env": "verifier.env", "environment": "verifier.environment"}),
        (environment, {"env": "environment.env", "mcp_servers": "environment.mcp_servers"}),
        (environment, {"healthcheck": "environment.healthcheck"}),
    ):
        done.left_out.update(text for key, text in keys.items() if section.get(key))
    compose = [name for name in _BUILD_FILES if "compose" in name]
    done.left_out.update(n for n in compose if (task / "environment" / n).is_file())
    limits = [name for name in ("cpus", "memory_mb") if environment.get(name)]
    done.left_out.update(f"environment.{each} (`limits` of a sandbox)" for each in limits)
    metadata = _map(config.get("metadata"))
    tags = _list(about.get("keywords")) or _list(metadata.get("tags"))
    workspace = _task_workspace(done, task, environment)
    place = task.resolve()
    command = {
        "run": f"bash /tests/{test.name}",
        "add": str(place / "tests"),
        "add_to": "/tests",
        "reward": "/logs/verifier",
        "timeout": float(verifier.get("timeout_sec") or 600.0),
    }
    done.converted += 1
    done.add(
        name,
        instruction.read_text(encoding="utf-8"),
        (),
        description=about.get("description") or None,
        tags=[str(each) for each in tags],
        difficulty=str(metadata["difficulty"]) if metadata.get("difficulty") else None,
        workspace=workspace,
        # A reward below 1 is a failure, not a hard one: Harbor knows no such thing.
        correctness={"command": command, "blocking": False},
    )


def _task_workspace(done: Converter, task: Path, environment: dict[str, Any]) -> dict[str, Any]:
    """Return the workspace of a task: its image, and for others the files that one would have."""
    folder = (task / "environment").resolve()
    file = folder / "Dockerfile"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    at = "/app"
    setup: list[str] = []
    whole = False
    for line in re.sub(r"\\\s*\n", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word.upper() == "WORKDIR":
            at = str(PurePosixPath(at, rest.strip().strip("'\"")))
        elif word.upper() in ("COPY", "ADD") and "--from" not in rest:
            *sources, target = [each for each in shlex.split(rest) if not each.startswith("--")]
            to = PurePosixPath(at, target)
            if not to.is_relative_to(at) or rest.lstrip().startswith("["):
                done.left_out[f"Dockerfile: {word} outside of {at} ({_ONLY_IMAGES})"] += 1
            elif sources in (["."], ["./"]) and str(to) == at:
                whole = True
            else:
                inner = shlex.quote(str(to.relative_to(at)))
                several = len(sources) > 1 or target.endswith("/") or str(to) == at
                setup.append(f"mkdir -p {inner}" if several else f"mkdir -p $(dirname {inner})")
                for each in sources:
                    found = folder / each
                    # The content of a folder is copied, not the folder, as Docker does.
                    end = "/." if found.is_dir() else ""
                    setup.append(f"cp -R {shlex.quote(str(found) + end)} {inner}")
        elif word.upper() in _OF_IMAGES:
            done.left_out[f"Dockerfile: {word.upper()} ({_ONLY_IMAGES})"] += 1
    workspace: dict[str, Any] = {"at": str(environment.get("workdir") or at)}
    if image := environment.get("docker_image"):
        workspace["image"] = str(image)
    elif text:
        workspace["build"] = str(folder)
    if seconds := environment.get("build_timeout_sec"):
        workspace["timeout"] = float(seconds)
    if text or not image:
        exclude = list(_BUILD_FILES) if whole else ["**"]
        workspace |= {"folder": str(folder), "exclude": exclude}
    if setup:
        workspace["setup_case"] = setup
    return workspace
