"""Workers for a run: how many, of what kind, on which Ray.

Promise: what the run asks for and the machines cannot give is an error before the first trial
where that can be known (our own Ray), else once nobody has come up for a long while.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.agents.base import AgentConfig
from proctor.errors import ProctorError
from proctor.imports import needs_extra
from proctor.trials.executors.ray.asking import Authority
from proctor.trials.executors.ray.connect import Connection, connect, ray_package
from proctor.trials.executors.ray.crew import Load, Resources, give_back, take_crew
from proctor.trials.executors.ray.executor import RayExecutor
from proctor.trials.executors.ray.kit import kit_of, project_root, sent_by_value
from proctor.trials.options import DEFAULT_CONCURRENCY

if TYPE_CHECKING:
    from proctor.trials.prepare import RunContext


@contextmanager
def ray_workforce(ready: RunContext) -> Generator[Callable[[int], RayExecutor]]:
    """Workers for a run, warm until it ends and, for the next run, beyond."""
    needs_extra("ray", "ray")
    _refuse_people(ready.agents)
    needs = needs_of(ready.agents.values())
    options = ready.options
    wanted = options.workers or max(1, int((os.cpu_count() or 1) / (needs.cpu or 1)))
    connection = connect(options.address, wanted * needs.cpu, project_root(ready))
    room = _room(needs, connection)
    kit = kit_of(ready, shares_files=connection.shares_files)
    crew = take_crew(needs, connection)
    try:
        with sent_by_value(kit):
            load = Load(kit.digest, ray_package().put(kit))
        workers, authority = options.workers or room, Authority(ready.checkpoints)
        waits = any(config.asynchronous for config in ready.agents.values())
        each = DEFAULT_CONCURRENCY if waits else 1

        def executor_for(planned: int) -> RayExecutor:
            at_once = max(1, min(options.concurrency or workers * each, planned))
            return RayExecutor(
                crew.of(min(workers, at_once)),
                load,
                authority,
                at_once=at_once,
                max_losses=options.max_retries,
                # Trials are sent ahead where what starts next never depends on what has ended.
                ahead=not options.early_stop and not options.limited,
                keep_recorded=lambda lines: _append(options.record_to, lines),
            )

        yield executor_for
    except BaseException:
        # Whatever they are doing, nobody waits for it any more.
        crew.dismiss()
        raise
    finally:
        give_back(crew)


def needs_of(agents: Iterable[AgentConfig]) -> Resources:
    """What a worker asks for: it can run every agent, so the most that any of them needs."""
    most: dict[str, float] = {}
    for config in agents:
        own = {"cpu": 1.0, **(config.resources or {})}
        most.update({name: max(amount, most.get(name, 0.0)) for name, amount in own.items()})
    cpu, gpu = most.pop("cpu", 1.0), most.pop("gpu", 0.0)
    return Resources(cpu, gpu, tuple(sorted(most.items())))


def _refuse_people(agents: Mapping[str, AgentConfig]) -> None:
    for name, config in agents.items():
        if config.kind == "human":
            raise ProctorError(
                f"the agent {name!r} answers at this terminal, which workers do not have",
                hint="run it with --executor local",
            )


def _room(needs: Resources, connection: Connection) -> int:
    """How many workers there is room for at a time; none at all is an error on our own Ray."""
    there: dict[str, float] = ray_package().cluster_resources()
    asked = {"CPU": needs.cpu, "GPU": needs.gpu, **dict(needs.custom)}
    fits = [int(there.get(name, 0.0) / amount) for name, amount in asked.items() if amount]
    most = min(fits, default=1)
    if most < 1 and connection.ours:
        lacking = next(name for name, amount in asked.items() if there.get(name, 0.0) < amount)
        raise ProctorError(
            f"a worker needs {needs}, and this machine has no {lacking} to give",
            hint="--address names a Ray that has it; see `resources` of the agents",
        )
    return max(1, most)


def _append(path: str | None, lines: bytes) -> None:
    """Add what workers recorded to the cassette of the run, whose writer appends as well."""
    if path is None:
        return
    with Path(path).open("ab", buffering=0) as file:
        left: Any = memoryview(lines)
        while left:
            left = left[file.write(left) :]
