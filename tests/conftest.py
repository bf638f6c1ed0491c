"""What every test may use."""

import gc
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requirement_ids
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# What a shell starts in the background ignores these, and so would every process of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _name in ("SIGHUP", "SIGQUIT"):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) is signal.SIG_IGN:
        signal.signal(getattr(signal, _name), signal.SIG_DFL)

# The same examples on every run, so that a red build can be made red again. Looking further:
# `pytest --hypothesis-profile=explore`. A deadline would be a timed unit test.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=2_000)
settings.load_profile("repeatable")

# Collecting imports nearly every library there is, and none of it is ever freed: a third of that
# time went into looking for garbage, and every later look would go through all of it again.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again, but only what the tests themselves make."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_module_is_left_behind() -> Iterator[None]:
    """Many tests write an `agent.py` of their own: the next must not be given the last one's."""
    before, places = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = places
    temporary, ours = tempfile.gettempdir(), (str(ROOT), sys.prefix)  # all of it may lie there
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and file.startswith(temporary) and not file.startswith(ours):
            del sys.modules[name]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real traces beside the repository, which is too large to be part of it."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no folder `shared` beside the repository")
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the requirements that no test names yet, whenever the test about them has run."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    if any("test_requirements.py" in report.nodeid for report in reports):
        left, total = requirement_ids.unnamed(), len(requirement_ids.claims())
        terminalreporter.section(f"requirements no test names yet: {len(left)} of {total}")
        terminalreporter.line(" ".join(left) or "none")
