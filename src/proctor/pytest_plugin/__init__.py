"""Proctor inside pytest: suites as tests, repeated tests, and a fixture that checks traces.

Every project with Proctor installed imports this file, whether it uses the plugin or not. So only
pytest and the standard library are imported here; the rest when a suite is configured, a marker
has arguments, or a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from proctor.pytest_plugin.fixture import Proctor

MARKER = "proctor"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings: which files are suites, the number of trials, the timeout."""
    parser.addini(
        "proctor_suites",
        "suite files to collect as tests: globs, relative to the configuration file",
        type="args",
        default=[],
    )
    group = parser.getgroup("proctor", "suites of agents (proctor)")
    group.addoption(
        "--proctor-trials",
        default="1",
        metavar="N",
        help="run each case of a suite N times; `suite`: as often as the suite says  [default: 1]",
    )
    group.addoption(
        "--proctor-timeout",
        type=float,
        metavar="SECONDS",
        help="timeout of one trial of a case, which then counts as an error",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; collect suites only where the configuration names some."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(trials=1, threshold=1.0): call the test several times; it passes when at least "
        "this share of the trials passes. Cases of suites have this marker too.",
    )
    if config.getini("proctor_suites"):
        from proctor.pytest_plugin._suites import Suites

        config.pluginmanager.register(Suites(config), "proctor-suites")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Reject invalid arguments of the marker before anything of the test runs."""
    marker = item.get_closest_marker(MARKER)
    if marker is not None and (marker.args or marker.kwargs):
        from proctor.pytest_plugin._repeat import RepeatOptions

        RepeatOptions.from_marker(item, marker)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Call a marked test as often as its marker says."""
    marker = pyfuncitem.get_closest_marker(MARKER)
    if marker is None and "proctor" not in pyfuncitem.fixturenames:
        return (yield)
    from proctor.background import refuse_exit

    # A wrapper, so that the plugin which calls the test (asyncio, trio) still does.
    with refuse_exit():
        if marker is None or not (marker.args or marker.kwargs):
            return (yield)
        from proctor.pytest_plugin._repeat import RepeatOptions

        with RepeatOptions.from_marker(pyfuncitem, marker).repeating(pyfuncitem):
            return (yield)


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """Report a repeated test that could not be judged as an error, not a failure."""
    # pytest counts every exception of the call as a failure; the property marks our errors.
    if report.failed and report.when == "call" and ("proctor", "errored") in report.user_properties:
        return "error", "E", "ERROR"
    return None


@pytest.fixture
def proctor(request: pytest.FixtureRequest) -> Proctor:
    """Capture an agent's trace, check it, and fail with the reasons."""
    from proctor.pytest_plugin.fixture import Proctor

    return Proctor(request.path, request.node.nodeid)
