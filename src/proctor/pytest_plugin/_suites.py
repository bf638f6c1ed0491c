"""Suites as tests: one file, one test per case and agent.

A test passes, fails or errors as the verdict of its cell says: what could not be judged is an
error, never a failure. The agent runs while the test is set up, because that is the phase in which
pytest, JUnit and every reporter distinguish an error from a failure.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proctor import api
from proctor.background import refuse_exit, run_sync
from proctor.checks.base import CheckStatus
from proctor.errors import ProctorError
from proctor.formatting import plural
from proctor.pytest_plugin._repeat import NotJudged, ProctorWarning, explain, input_text, reason_of
from proctor.runs.run import Run
from proctor.runs.summary import CellSummary, Verdict
from proctor.runs.trial import Trial, TrialStatus
from proctor.sanitize import line, shown
from proctor.spec import Case, SpecError, SpecProblem, load_suite
from proctor.trials.options import RunOptions
from proctor.trials.prepare import RunContext, choose_agents, prepare
from proctor.trials.session import run_session

_NO_MARKER = re.compile(r"[^\w.+-]")
"""Characters that are not allowed in expressions after `-m`."""


class Suites:
    """Collects the files that the configuration names."""

    def __init__(self, config: pytest.Config) -> None:
        trials = str(config.getoption("proctor_trials"))
        if trials != "suite" and (not trials.isdecimal() or int(trials) < 1):
            raise pytest.UsageError(
                f"--proctor-trials {trials!r} is neither a number from 1 nor 'suite'"
            )
        # Patterns are relative to the file they are written in.
        base = config.inipath.parent if config.inipath is not None else config.rootpath
        self._files: set[Path] = set()
        for pattern in config.getini("proctor_suites"):
            if Path(pattern).is_absolute():
                raise pytest.UsageError(f"proctor_suites: {pattern!r} is not relative to {base}")
            # Resolved, since pytest may pass a path through a symbolic link.
            found = {path.resolve() for path in base.glob(pattern) if path.is_file()}
            if not found:
                # A gate without tests would pass.
                raise pytest.UsageError(f"proctor_suites: no file matches {pattern!r} in {base}")
            self._files |= found
        # Agents are imported from the project folder, whichever tests are selected. At the end of
        # the path, so that nothing is shadowed.
        if self._files and str(base) not in sys.path:
            sys.path.append(str(base))

    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """Collect a file that the configuration names as a suite."""
        if file_path.resolve() in self._files:
            return SuiteFile.from_parent(parent, path=file_path)  # pyright: ignore[reportUnknownMemberType]
        return None


class SuiteFile(pytest.File):
    """A suite; all its problems are reported at once, each with its place."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test for each case and agent."""
        try:
            suite = load_suite(self.path, need_agent=False)
            configuration = api.settings(suite.folder)
            agents = choose_agents(suite, (), configuration)
        except SpecError as error:
            raise self.CollectError("\n".join(map(_error_text, error.problems))) from None
        except ProctorError as error:
            raise self.CollectError(_error_text(error)) from None
        for case in suite.cases:
            for agent in agents:
                name = case.id if len(agents) == 1 else f"{case.id}[{agent}]"
                item = CaseItem.from_parent(self, name=name)  # pyright: ignore[reportUnknownMemberType]
                # pytest builds items by from_parent only, so the case is set afterwards.
                given = {"agents": {agent: agents[agent]}, "configuration": configuration}
                item.set_case(case, agent, partial(prepare, suite, cases=[case], **given))
                yield item


class CaseItem(pytest.Item):
    """One case and one agent; run once by default, as `proctor test` does."""

    _prepare: Callable[[RunOptions], RunContext]
    _case: Case
    _agent: str
    _run: Run | None = None

    def set_case(self, case: Case, agent: str, prepare: Callable[[RunOptions], RunContext]) -> None:
        """Set case and agent; tags become markers, so that `-m` selects by them."""
        self._case, self._agent, self._prepare = case, agent, prepare
        self.add_marker("proctor")
        for tag in case.tags:
            # The tag itself for `-k`, which takes more characters than `-m`.
            self.extra_keyword_matches.add(tag)
            if name := _NO_MARKER.sub("_", tag).lstrip("_"):
                # Registered here, so that a tag need not be declared in the configuration too.
                self.config.addinivalue_line("markers", f"{name}: a tag of a suite")
                self.add_marker(name)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the place of the case in its file."""
        place = self._case.place
        if place is None or place.line is None:
            return self.path, None, self.name
        return Path(place.file), place.line - 1, self.name

    def setup(self) -> None:
        """Run the agent; raise `NotJudged` if the result cannot be judged."""
        super().setup()
        # --setup-only and --setup-plan show fixtures; no agent should be called for that.
        if self.config.getoption("setuponly", False):
            return
        try:
            trials = str(self.config.getoption("proctor_trials"))
            options = RunOptions(
                trials=None if trials == "suite" else int(trials),
                timeout=self.config.getoption("proctor_timeout"),
            )
            with refuse_exit():
                self._run = run = run_sync(run_session(self._prepare(options)), nested=True)
        except ProctorError as error:
            raise NotJudged(_error_text(error)) from None
        self._record(run.cells[0])
        if run.cells[0].verdict in (
            Verdict.INFRA_ERROR,
            Verdict.NOT_JUDGED,
            Verdict.NOT_RUN,
            Verdict.INCOMPLETE,
        ):
            raise NotJudged(self._why(run))

    def runtest(self) -> None:
        """Fail or warn as the verdict says."""
        run = self._run
        if run is None:
            return
        if run.cells[0].verdict != Verdict.PASS:
            pytest.fail(self._why(run), pytrace=False)
        for result in _worst(run).checks:
            if result.status == CheckStatus.WARN:
                self.warn(ProctorWarning(f"{self.name}: {line(result.id)}: {line(result.reason)}"))

    def teardown(self) -> None:
        """Release the traces."""
        self._run = None

    def _record(self, summary: CellSummary) -> None:
        """Add the counts as properties, for JUnit and other reporters."""
        facts: dict[str, Any] = {
            "verdict": summary.verdict.value,
            "trials": summary.trials,
            "passed": summary.passed,
            "infra_error": summary.infra_error,
            "not_judged": summary.not_judged or None,
            "score": summary.score_mean,
            "cost_usd": summary.cost_usd,
        }
        self.user_properties += [
            (f"proctor_{name}", value) for name, value in facts.items() if value is not None
        ]

    def _where(self) -> str:
        """Return the place of the case, relative to the root folder if possible."""
        path, row, _ = self.reportinfo()
        inside = path.is_relative_to(self.config.rootpath)
        shown_path = path.relative_to(self.config.rootpath) if inside else path
        return line(shown_path) + (f":{row + 1}" if row is not None else "")

    def _why(self, run: Run) -> str:
        trial = _worst(run)
        if trial.error is not None:
            headline = f"{line(trial.error.type)}: {line(trial.error.message)}"
        else:
            headline = reason_of(trial.checks, trial.score, self._case.threshold)
        facts = [
            ("case", f"{line(self._case.id)}, {self._where()}"),
            ("agent", line(self._agent)),
            ("verdict", _verdict_text(run.cells[0])),
            ("input", input_text(self._case.input)),
            ("answer", "" if trial.answer is None else shown(trial.answer)),
        ]
        return explain(headline, facts, trial.checks, run.trace(trial))


_WORST_FIRST = (
    TrialStatus.INFRA_ERROR,
    TrialStatus.NOT_JUDGED,
    TrialStatus.CANCELLED,
    TrialStatus.HARD_FAIL,
    TrialStatus.FAILED,
    TrialStatus.PASSED,
)


def _worst(run: Run) -> Trial:
    """Return the worst trial, which explains the verdict best."""
    return min(run.trials, key=lambda trial: _WORST_FIRST.index(trial.status))


def _verdict_text(summary: CellSummary) -> str:
    """Return the verdict with the counts behind it."""
    counts = {
        "passed": summary.passed,
        "failed": summary.failed,
        "failed hard": summary.hard_fail,
        "not judged": summary.unjudged + summary.cancelled,
    }
    each = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    mean = "" if summary.score_mean is None else f", mean score {summary.score_mean:.2f}"
    return (
        f"{summary.verdict.value}: {each} of {plural(summary.trials, 'trial')}{mean}, "
        f"threshold {summary.threshold:g}"
    )


def _error_text(error: ProctorError | SpecProblem) -> str:
    return f"{line(error)}{f' ({line(error.hint)})' if error.hint else ''}"
