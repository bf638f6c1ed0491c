"""Scenarios as cases: selected like cases, built for each seed and set of parameters.

Promise: a trial's scenario depends only on the template, the seed of the experiment and the
parameters. An agent sees the visible part of the scenario, never its parameters or its truth; only
the scenario's own solution gets the truth.

A run records its templates whole, so a resumed or repeated run uses the templates it started with.
Their catalog is used while its content is the same, because code may lie beside the templates;
otherwise they are written from the spec to the user's cache, by content hash.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from proctor.agents.base import Agent, AgentReply, AgentRequest
from proctor.agents.registry import resolve_agent
from proctor.conversations import converse
from proctor.errors import ProctorError, did_you_mean
from proctor.files import write_atomic
from proctor.runs.case_rows import merge
from proctor.runs.trial import PlannedTrial, params_key
from proctor.scenarios import Built, Catalog, Template, UnknownTemplateError, catalog_for
from proctor.scenarios.builder import default_cache_folder
from proctor.scenarios.scenario import act
from proctor.spec import Case, Configuration, SpecError, checks_of, select_cases
from proctor.spec.select import NothingSelectedError
from proctor.trials.run_trial import CallAgent, PreparedCase
from proctor.worlds import world_check

MAX_BUILT = 512
"""Built scenarios cached in memory for other agents and repeats; the rest are loaded again."""

FIXED_FIELDS = ("description", "tags", "difficulty", "type", "properties")
"""Fields of a template that do not depend on the seed."""


class Scenario(NamedTuple):
    """A scenario of the catalog, with or without a variant, selected for an experiment."""

    template: Template
    overrides: Mapping[str, Any] = {}
    """Case fields that the experiment sets."""

    @property
    def id(self) -> str:
        """The id of the case."""
        return self.template.id

    def placeholder(self) -> dict[str, Any]:
        """Return the case before it is built: what is known without a seed."""
        found = {key: getattr(self.template, key) for key in FIXED_FIELDS}
        known = {key: value for key, value in found.items() if value}
        about: dict[str, Any] = {"scenario": self.template.name}
        if self.template.variant is not None:
            about["variant"] = self.template.variant
        if self.template.threshold is not None:
            known["threshold"] = self.template.threshold
        trials = self.template.tree.child("trials")
        if trials is not None and isinstance(trials.value, int):
            known["trials"] = trials.value
        if "tags" in known:
            known["tags"] = list(known["tags"])
        return {"id": self.id, "input": about, **known}


# -- selection -----------------------------------------------------------------------------------


class ScenarioPool:
    """The scenarios to select from; the catalog is read at the first use."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog of the project and the built-in one."""
        return catalog_for(self._configuration)

    def select(self, text: str) -> list[Scenario]:
        """Select by name, by scope, else by glob or filter; raise if nothing matches."""
        dotted = text.strip().strip("/").replace("/", ".")
        if self.has(dotted):
            return [Scenario(self.catalog.get(dotted))]
        if found := self.scope(dotted):
            return found
        entries = self.catalog.entries()
        try:
            wanted = text if ":" in text else dotted
            return [Scenario(entry) for entry in select_cases(entries, filter=wanted)]
        except NothingSelectedError:
            known = [*self.names(), *(entry.id for entry in entries)]
            listed = f"`proctor list cases` shows the {len(entries)} there are"
            raise ProctorError(
                f"no scenario is selected by {text!r}", hint=did_you_mean(dotted, known) or listed
            ) from None

    def has(self, dotted: str) -> bool:
        """Whether a scenario has this name, with or without a variant."""
        name, _, variant = dotted.partition("@")
        if not name.replace(".", "_").replace("-", "_").isidentifier() or set(variant) & set("*?["):
            return False
        try:
            self.catalog.get(dotted)
        except UnknownTemplateError:
            return False
        return True

    def scope(self, dotted: str) -> list[Scenario]:
        """Return every scenario below a name; none if it is not a scope."""
        if not dotted.replace(".", "_").replace("-", "_").isidentifier():
            return []
        try:
            return [Scenario(entry) for entry in self.catalog.scope(dotted)]
        except UnknownTemplateError:
            return []

    def names(self) -> list[str]:
        """Return the names of scenarios and of the scopes they are in."""
        names = self.catalog.names()
        return sorted({*names, *(name.rpartition(".")[0] for name in names)} - {""})


# -- parameters ----------------------------------------------------------------------------------


def check_parameter(name: str, values: Iterable[Any], scenarios: Iterable[Scenario]) -> list[Any]:
    """Return the values as scenarios parse them; raise for an unknown parameter or a bad value.

    Text is parsed as on a command line.
    """
    given = list(values)
    found = given
    for scenario in scenarios:
        known = scenario.template.params
        if name not in known:
            listed = f"it has {', '.join(known) or 'none'}"
            raise ProctorError(
                f"{scenario.id} has no parameter {name!r}", hint=did_you_mean(name, known) or listed
            )
        found = [scenario.template.check_params({name: value})[name] for value in given]
    return found


def check_required(given: Iterable[str], scenarios: Iterable[Scenario]) -> None:
    """Raise for a parameter that has no default and no value."""
    names = set(given)
    for scenario in scenarios:
        template = scenario.template
        for name, param in template.params.items():
            if param.default is None and name not in names and name not in template.given:
                raise ProctorError(
                    f"{scenario.id} needs the parameter {name!r}",
                    hint=f"--set {name}=…, or `set` or `params` of the experiment",
                )


@contextmanager
def error_at(where: object) -> Generator[None]:
    """Give errors raised inside the place that the user wrote, unless they have one."""
    try:
        yield
    except ProctorError as error:
        if error.where is None:
            error.where = str(where)
        raise


# -- trials --------------------------------------------------------------------------------------


def scenario_case(scenario: Scenario, case: Case) -> PreparedCase:
    """Return a case that is built for its seed and parameters when a trial begins."""
    cache: dict[tuple[int, str], PreparedCase] = {}

    def build(planned: PlannedTrial) -> PreparedCase:
        key = (planned.axis_seed or 0, params_key(planned.params))
        found = cache.get(key)
        if found is None:
            if len(cache) >= MAX_BUILT:
                cache.clear()
            built = scenario.template.build(key[0], planned.params)
            found = cache[key] = _built_case(built, scenario, case.threshold)
        return found

    return PreparedCase(case, threshold=case.threshold, build=build)


def _built_case(built: Built, scenario: Scenario, threshold: float) -> PreparedCase:
    case = built.case()
    if scenario.overrides:
        place, folder = case.place, case.folder
        written = case.given()
        case = Case.model_validate(merge(written, scenario.overrides))
        assert place is not None
        assert folder is not None
        case.put(place, folder)
    checks = tuple(checks_of(case))
    world = built.world_spec is not None
    conversation = case.turns or case.user or case.state or case.approvals
    return PreparedCase(
        case,
        (world_check(threshold=threshold), *checks) if world else checks,
        threshold=threshold,
        play=_episode(built)
        if world
        else partial(converse, case)
        if conversation
        else _question(built),
    )


def _episode(built: Built) -> CallAgent:
    async def play(agent: Agent, request: AgentRequest) -> AgentReply:
        request.params = {}  # they may give the truth away
        return (await act(built, _actor(agent, built), request)).reply

    return play


def _question(built: Built) -> CallAgent:
    async def ask(agent: Agent, request: AgentRequest) -> AgentReply:
        request.params = {}
        return await _actor(agent, built).run(request)

    return ask


def _actor(agent: Agent, built: Built) -> Agent:
    """Return the agent, or the scenario's own solution for a scripted agent without a script."""
    if not getattr(agent, "uses_solution", False):
        return agent
    if built.solution is None:
        raise ProctorError(
            f"{built.name} does not say how it is solved", hint="give `scripted` a script"
        )
    return resolve_agent(built.solution["agent"], base_dir=built.folder).create()


def scenarios_record(scenarios: Mapping[str, Scenario]) -> dict[str, Any]:
    """Return the scenarios and their templates as the run folder records them."""
    templates: dict[str, Any] = {}
    for scenario in scenarios.values():
        template = scenario.template
        if template.name not in templates:
            templates[template.name] = {
                "catalog": str(template.root.resolve()),
                "hash": template.content_hash,
                "files": dict(sorted(template.sources.items())),
            }
    cases = {
        case: {
            "template": each.template.name,
            **({"variant": each.template.variant} if each.template.variant else {}),
            **({"overrides": dict(each.overrides)} if each.overrides else {}),
        }
        for case, each in sorted(scenarios.items())
    }
    return {"templates": dict(sorted(templates.items())), "cases": cases}


def restored_scenarios(record: Mapping[str, Any]) -> dict[str, Scenario]:
    """Return the scenarios of a run folder, with the templates the run started with."""
    recorded: Mapping[str, Mapping[str, Any]] = record.get("templates") or {}
    cases: Mapping[str, Mapping[str, Any]] = record.get("cases") or {}
    templates = {name: _restored(name, each) for name, each in recorded.items()}
    found: dict[str, Scenario] = {}
    for case, about in cases.items():
        template = templates[about["template"]]
        variant = about.get("variant")
        under = template if variant is None else template.under(variant)
        found[case] = Scenario(under, about.get("overrides") or {})
    return found


def _restored(name: str, record: Mapping[str, Any]) -> Template:
    for root in (Path(record["catalog"]), None):
        try:
            template = Catalog([root or _write_template(record)]).get(name)
        except (ProctorError, SpecError):
            if root is None:
                raise
            continue
        if template.content_hash == record["hash"]:
            return template
    raise ProctorError(
        f"the template {name!r} in the spec of the run does not match its hash",
        hint="the spec was changed by hand",
    )


def _write_template(record: Mapping[str, Any]) -> Path:
    root = default_cache_folder(os.environ).parent / "templates" / str(record["hash"])
    for name, text in record["files"].items():
        path = root / name
        # A spec may come from elsewhere: it must not write outside the cache.
        if ".." in path.parts or not path.resolve().is_relative_to(root.resolve()):
            raise ProctorError(f"a template's file is called {name!r}", hint="do not run this spec")
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode())
    return root
