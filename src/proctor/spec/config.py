"""Load settings of a project or a user, as opposed to one suite.

Guarantees: flags override `PROCTOR_*` variables, then the project's file, then the user's file,
then defaults; every value records its source; an unknown key is an error with its location. Files
are merged key by key, lists replace. Relative folders start at the project's file (also for values
of the user's file and defaults, so that results stay with the project). Without a project, results
are stored in the working directory, where `latest` is searched for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

from pydantic import AfterValidator, BaseModel, Field

from proctor.errors import ProctorError, did_you_mean
from proctor.llm.rate_limits import RateLimit
from proctor.runs.remote.object_store import is_address
from proctor.runs.summary import MAX_NOT_JUDGED
from proctor.runs.trial import OnAgentError
from proctor.spec.located import (
    Problems,
    SourceLocation,
    SpecError,
    SpecProblem,
    Tree,
    merged,
    read_toml,
)
from proctor.spec.suite import DEFAULT_TRIALS, Agent, Count, Judge, Positive, Trials
from proctor.spec.validation import Shapes, validated
from proctor.spec.yaml_reader import read
from proctor.strict import Strict
from proctor.user_dirs import project_settings_files, user_settings_file

if TYPE_CHECKING:
    from proctor.llm.prices import PriceTable
    from proctor.trace.redact import Redactor

_log = logging.getLogger(__name__)

PREFIX = "PROCTOR_"

PROVIDER_KEYS = (
    "ANTHROPIC_API_KEY",
    "AZURE_OPENAI_API_KEY",
    "DEEPSEEK_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "GROQ_API_KEY",
    "MISTRAL_API_KEY",
    "OPENAI_API_KEY",
    "OPENROUTER_API_KEY",
    "LANGFUSE_PUBLIC_KEY",
    "LANGFUSE_SECRET_KEY",
)
"""Variables that hold keys, so that `config show` can list which are set."""

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LimitSettings(Strict):
    """Limits of a run; None is no limit."""

    trials: Trials = DEFAULT_TRIALS
    """Trials of a case that sets no number."""
    concurrency: Count | None = None
    """Concurrent trials; None lets Proctor choose."""
    timeout: Positive | None = None
    """Seconds for one trial."""
    max_cost_usd: Positive | None = None
    """Dollars for a run."""
    max_tokens: Count | None = None
    """Tokens for a run."""
    max_trials: Count | None = None
    """Trials for a run."""
    max_seconds: Positive | None = None
    """Wall time for a run."""
    max_not_judged: Annotated[float, Field(ge=0, le=1)] = MAX_NOT_JUDGED
    """Share of planned trials that may end without a verdict before `test`, `run` and `gate`
    exit with 2."""
    on_agent_error: OnAgentError = OnAgentError.FAIL
    """What an error of the agent makes of its trial: failed, or an infrastructure error."""
    worker_memory_mb: Count | None = None
    """Memory of a worker and what it started; None is 80 % of the machine or container."""
    worker_output_mb: Count = 64
    """Output of a worker beyond 1 MB for each finished trial."""
    worker_processes: Count = 2048
    """Processes that a worker may have at a time."""
    rates: dict[str, RateLimit] = Field(default_factory=dict[str, RateLimit])
    """Rate limits per provider; calls beyond them wait."""


def _patterns(value: dict[str, str]) -> dict[str, str]:
    from proctor.trace.redact import Redactor

    for name, pattern in value.items():
        try:
            # The redactor's own rules decide: a valid expression may still be refused.
            Redactor({name: pattern}, environ={})
        except ProctorError as error:
            raise ValueError(str(error)) from None
    return value


class Redaction(Strict):
    """Additional secrets to redact."""

    patterns: Annotated[dict[str, str], AfterValidator(_patterns)] = Field(
        default_factory=dict[str, str]
    )
    """Kind of secret → regular expression."""


class PriceSetting(Strict):
    """Dollars per million tokens."""

    input: Price
    output: Price
    cached_input: Price | None = None


NotifyOn = Literal["end", "failure", "regression", "budget"]


class Notify(Strict):
    """Notifications when a run ends."""

    to: str | tuple[str, ...] = ()
    """Apprise URLs; in one text, separated by blanks. They hold secrets and are not shown."""
    on: tuple[NotifyOn, ...] = ("end",)
    """When to notify."""
    template: str | None = None
    """Message text with `{fields}`; `@FILE` reads it from a file."""
    baseline: str = "baseline"
    """Baseline run or tag for `regression`."""


class Settings(Strict):
    """Every setting, with its default."""

    agent: Agent | None = None
    """Agent under test for suites that name none."""
    agents: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    """Registered agents by name."""
    results: str = "results"
    """Folder of runs; or an address (s3://bucket/prefix) to which runs are uploaded as well."""
    baselines: str | None = None
    """Folder of saved traces; None is next to each suite."""
    catalog: Annotated[str, Field(min_length=1)] | tuple[str, ...] = "catalog"
    """Folder of scenario templates, or several; the first with a matching name is used."""
    experiments: Annotated[str, Field(min_length=1)] = "experiments"
    """Folder of experiment files, for `proctor list experiments`."""
    judge: Judge | None = None
    """Judge for suites that name none."""
    limits: LimitSettings = LimitSettings()
    notify: Notify = Notify()
    redaction: Redaction = Redaction()
    prices: dict[str, PriceSetting | str] = Field(default_factory=dict[str, PriceSetting | str])
    """Model → its price, or the published model whose prices apply."""

    def redactor(self, more: Mapping[str, str] | None = None) -> Redactor:
        """Return a redactor with the patterns of these settings, and `more` of a command."""
        from proctor.trace.redact import Redactor

        return Redactor({**self.redaction.patterns, **(more or {})})

    def price_table(self) -> PriceTable | None:
        """Return the prices of these settings, which win over published ones; None without any."""
        if not self.prices:
            return None
        from proctor.llm.prices import PriceTable

        return PriceTable(
            {
                name: price if isinstance(price, str) else price.model_dump(exclude_none=True)
                for name, price in self.prices.items()
            }
        )


class Value(NamedTuple):
    """An effective value with its source; `secret` ones must not be shown."""

    key: str
    value: Any
    origin: SourceLocation
    secret: bool


DEFAULT = SourceLocation("default")

SECRET_SETTINGS = frozenset({"notify.to"})
"""Settings that always hold secrets, whatever their shape."""


class Configuration(NamedTuple):
    """The effective settings with the source of each."""

    settings: Settings
    folder: Path
    files: tuple[Path, ...]
    tree: Tree
    project: Path | None = None
    """The project's file."""

    @property
    def results(self) -> Path:
        """Return the local folder of runs, also when they are uploaded elsewhere."""
        written = self.settings.results
        # The first test is cheap, and most results are plain folders.
        if ":/" in written and is_address(written):
            written = str(Settings.model_fields["results"].default)
        # Without a project, `latest` is searched in the working directory.
        if self.project is None:
            return Path(written).expanduser()
        return self._at("results", written)

    @property
    def baselines(self) -> Path | None:
        """Return the folder of saved traces; None when each suite defines it."""
        written = self.settings.baselines
        return None if written is None else self._at("baselines", written)

    @property
    def catalogs(self) -> tuple[Path, ...]:
        """Return the project's folders of scenario templates, existing or not."""
        written = self.settings.catalog
        names = (written,) if isinstance(written, str) else written
        return tuple(self._at("catalog", name) for name in names)

    @property
    def experiments(self) -> Path:
        """Return the folder of experiment files, existing or not."""
        return self._at("experiments", self.settings.experiments)

    def _at(self, key: str, written: str) -> Path:
        """Resolve a folder: flags and variables are relative to the working directory."""
        setting = self.tree.child(key)
        # Values of files have a line; those of flags and variables do not.
        here = setting is not None and setting.place.line is None
        return (Path() if here else self.folder) / Path(written).expanduser()

    def values(self) -> Iterator[Value]:
        """Return every effective value, in the order of the model."""
        yield from _values(self.settings, self.tree, "")


def load_configuration(
    start: Path | None = None,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Configuration:
    """Return the settings for a folder (the working directory by default).

    `flags` are settings from the command line by dotted name (`limits.trials`); None means not set.
    `SpecError` lists every problem of all sources.
    """
    start = Path() if start is None else start
    environ = os.environ if environ is None else environ
    problems = Problems()
    project = find_project_file(start)
    user = user_settings_file(environ)
    tree = Tree(DEFAULT, {})
    files = tuple(path for path in (user, project) if path is not None and path.is_file())
    for path in files:
        found = _file(path, environ, problems)
        tree = merged(tree, found) if found is not None else tree
    _log.debug("settings from %s", ", ".join(map(str, files)) or "no file")
    if any(name.startswith(PREFIX) for name in environ):
        tree = merged(tree, _variables(environ, problems))
    # Last, so that flags override everything else.
    for name, value in (flags or {}).items():
        if value is not None:
            option = SourceLocation("--" + name.rpartition(".")[2].replace("_", "-"))
            tree = merged(tree, _nested(name, value, option))
    settings = validated(tree, Settings, problems)
    if problems or settings is None:
        raise SpecError(problems)
    folder = project.parent if project is not None else start
    return Configuration(settings, folder, files, tree, project)


# -- sources -------------------------------------------------------------------------------------


def find_project_file(start: Path) -> Path | None:
    """Return the nearest `proctor.yaml`, or `pyproject.toml` with `[tool.proctor]`, upwards."""
    for own, shared in project_settings_files(start):
        has_table = False
        # Most pyproject.toml files do not name Proctor; searching is quicker than parsing.
        if shared.is_file() and b"proctor" in (content := shared.read_bytes()):
            found = read_toml(shared, {})
            # An unreadable file may have the table: it is returned, and its problem reported.
            has_table = found.tree is not None or (
                bool(found.problems) and b"tool.proctor" in content
            )
        if own.is_file() and has_table:
            message = "both this file and [tool.proctor] in pyproject.toml hold settings"
            place = SourceLocation(str(own), 1, 1)
            raise SpecError([SpecProblem(place, message, "keep one of them")])
        if own.is_file() or has_table:
            return shared if has_table else own
    return None


def _file(path: Path, environ: Mapping[str, str], problems: Problems) -> Tree | None:
    is_toml = path.suffix == ".toml"
    found = read_toml(path, environ) if is_toml else read(path, environ=environ)
    problems.extend(found.problems)
    if found.tree is None or found.tree.value is None:
        return None
    if not isinstance(found.tree.value, dict):
        problems.add(found.tree.place, "settings are a mapping of names to values")
        return None
    judge = found.tree.value.get("judge")
    if judge is None or not isinstance(judge.value, str):
        return found.tree
    # `judge: MODEL` becomes `judge: {model: MODEL}`, so that sources merge in any form.
    longer = Tree(judge.place, {"model": judge}, {"model": judge.place})
    return replace(found.tree, value={**found.tree.value, "judge": longer})


@cache
def setting_names() -> Mapping[str, str]:
    """Environment variable → dotted name of the setting it holds."""
    return {PREFIX + name.upper().replace(".", "_"): name for name in _scalars(Settings, "")}


def _scalars(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in model.model_fields.items():
        options = Shapes.of(info.annotation).options
        inner = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
        if name == "agent" and not prefix:
            yield name  # its name or import path is enough
        elif inner is not None:
            yield from _scalars(inner, f"{prefix}{name}.")
        elif any(isinstance(o, type) and issubclass(o, str | int | float) for o in options):
            yield prefix + name


def _variables(environ: Mapping[str, str], problems: Problems) -> Tree:
    """Return the settings in `PROCTOR_*` variables.

    A name close to a setting is reported as a typo; others may belong to other programs.
    """
    known = setting_names()
    found = Tree(DEFAULT, {})
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        place = SourceLocation(variable)
        if variable in known:
            found = merged(found, _nested(known[variable], environ[variable], place))
            continue
        # Without the common prefix: with it, every name would look similar.
        rest = {name.removeprefix(PREFIX): name for name in known}
        if hint := did_you_mean(variable.removeprefix(PREFIX), rest):
            for short in sorted(rest, key=len, reverse=True):
                hint = hint.replace(f"'{short}'", rest[short])
            problems.add(place, "no setting has this variable", hint)
    return found


def _nested(name: str, value: Any, place: SourceLocation) -> Tree:
    """Return a mapping with one value under a dotted name."""
    tree = Tree(place, value)
    for part in reversed(name.split(".")):
        tree = Tree(place, {part: tree}, {part: place})
    return tree


# -- effective settings ---------------------------------------------------------------------------


def _values(value: Any, tree: Tree | None, prefix: str) -> Iterator[Value]:
    if isinstance(value, BaseModel):
        members: dict[str, Any] = {name: getattr(value, name) for name in type(value).model_fields}
    elif isinstance(value, dict) and value:
        members = cast("dict[str, Any]", value)
    else:
        origin = DEFAULT if tree is None else tree.place
        secret = tree is not None and (bool(tree.secrets) or prefix in SECRET_SETTINGS)
        yield Value(prefix, value, origin, secret)
        return
    for name, member in members.items():
        inner = tree.child(name) if tree is not None else None
        yield from _values(member, inner, f"{prefix}.{name}" if prefix else name)


def provider_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """Return which provider keys are set; never their values."""
    return {name: "set" if environ.get(name) else "not set" for name in PROVIDER_KEYS}
