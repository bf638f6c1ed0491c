"""The options of commands that put the cases of a suite to its agents once: which, and how."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from proctor.cli.ranges import POSITIVE

if TYPE_CHECKING:
    from proctor.spec import Case, Suite
    from proctor.trials.options import RunOptions
    from proctor.trials.ready import AgentLike


class Asking(NamedTuple):
    """What was chosen: a suite, and of it these cases and agents."""

    suite: Suite
    cases: Sequence[Case]
    agents: dict[str, AgentLike]
    options: RunOptions
    recorded: bool


_OPTIONS = [
    click.argument("suite", type=click.Path(path_type=Path)),
    click.option("--agent", help="Only this agent of the suite."),
    click.option("--tags", default="", help="Only cases with one of these tags, with commas."),
    click.option("--filter", default="", help="Only these cases, such as difficulty:hard."),
    click.option("--traces", multiple=True, help="Recorded traces instead of running the agent."),
    click.option("--timeout", type=POSITIVE, help="Seconds for a case."),
    click.option(
        "--concurrency",
        type=click.IntRange(min=1),
        help="Cases at a time; 1 makes latencies comparable on a busy machine.",
    ),
]


def asking_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options, and hand what they say to the command as `asking`."""

    @functools.wraps(command)
    def with_asking(*args: Any, **given: Any) -> None:
        names = ("suite", "agent", "tags", "filter", "traces", "timeout", "concurrency")
        asking = _asking(**{name: given.pop(name) for name in names})
        command(*args, asking=asking, **given)

    for option in reversed(_OPTIONS):
        with_asking = option(with_asking)
    return with_asking


def _asking(
    *,
    suite: Path,
    agent: str | None,
    tags: str,
    filter: str,  # noqa: A002 (the option's name)
    traces: tuple[str, ...],
    timeout: float | None,
    concurrency: int | None,
) -> Asking:
    from proctor.spec import load_suite, select_cases
    from proctor.trials.comparing import agents_of
    from proctor.trials.options import RunOptions

    loaded = load_suite(suite, need_agent=False)
    return Asking(
        suite=loaded,
        cases=select_cases(loaded.cases, tags=tags.split(","), filter=filter),
        agents=agents_of(loaded, agent=agent, traces=traces),
        options=RunOptions(timeout=timeout, concurrency=concurrency),
        recorded=bool(traces),
    )
