"""Proctor inside pytest: suites as tests, repeated tests, and a fixture that checks traces.

Promise: a project that uses none of it pays for reading this file and nothing else. So only
pytest and the standard library are imported here; the rest when the first suite is configured,
the first marker has arguments, or the first test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from proctor.pytest_plugin.fixture import Proctor

MARKER = "proctor"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings: which files are suites, and how often and how long a case is tried."""
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
        help="try each case of a suite N times, or as often as it says itself: suite  [default: 1]",
    )
    group.addoption(
        "--proctor-timeout",
        type=float,
        metavar="SECONDS",
        help="give up on one trial of a case after so long; it counts as an error",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known; collect suites only where the configuration asks for them."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(trials=1, threshold=1.0): call the test several times; it passes when at least "
        "that share of the trials does. Cases of suites have this marker too.",
    )
    if config.getini("proctor_suites"):
        from proctor.pytest_plugin._suites import Suites

        config.pluginmanager.register(Suites(config), "proctor-suites")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker that cannot be obeyed before anything of the test runs."""
    marker = item.get_closest_marker(MARKER)
    if marker is not None and (marker.args or marker.kwargs):
        from proctor.pytest_plugin._repeat import RepeatOptions

        RepeatOptions.asked(item, marker)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Call a marked test as often as its marker says."""
    marker = pyfuncitem.get_closest_marker(MARKER)
    if marker is None or not (marker.args or marker.kwargs):
        return (yield)
    from proctor.pytest_plugin._repeat import RepeatOptions

    with RepeatOptions.asked(pyfuncitem, marker).in_place_of(pyfuncitem):
        return (yield)


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """A repeated test that could not be judged is an error, not a failure."""
    if report.failed and report.when == "call" and ("proctor", "errored") in report.user_properties:
        return "error", "E", "ERROR"
    return None


@pytest.fixture
def proctor(request: pytest.FixtureRequest) -> Proctor:
    """Capture what an agent does, check it, and fail with reasons that can be acted on."""
    from proctor.pytest_plugin.fixture import Proctor

    return Proctor(request.path, request.node.nodeid)
