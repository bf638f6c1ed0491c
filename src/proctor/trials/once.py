"""Try a plan without keeping anything: what `proctor test` and the pytest plugin do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from proctor.runs.model import PlannedTrial
from proctor.trials.executors import Job
from proctor.trials.executors.local import LocalExecutor
from proctor.trials.perform import Bench, Finished


async def try_once(
    plan: Sequence[PlannedTrial],
    bench: Bench,
    *,
    concurrency: int = 1,
    on_finished: Callable[[Finished], None] | None = None,
) -> list[Finished]:
    """Every trial of the plan, in the order of the plan, nothing written."""
    done: dict[str, Finished] = {}

    def jobs() -> Iterator[Job]:
        yield from (Job(planned, place) for place, planned in enumerate(plan))

    def deliver(job: Job, finished: Finished) -> None:
        done[job.planned.key] = finished
        if on_finished is not None:
            on_finished(finished)

    await LocalExecutor(bench, concurrency).run(jobs(), deliver)
    return [done[planned.key] for planned in plan if planned.key in done]
