"""The workers of a run: actors that are made when needed, made anew when lost, kept warm after.

Promise: a worker that dies is replaced, and whoever was talking to it gets `WorkerLost`; one that
cannot even load what the run needs is an error that says why. Workers are kept for the next run
of this process that wants the same ones, since starting one costs as much as many trials.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NamedTuple

from proctor.errors import ProctorError
from proctor.runs.trial import PlannedTrial
from proctor.trials.executors.ray.connect import Connection, ray_package
from proctor.trials.executors.ray.wire import DriverReply, Parcel, pack, parcel_of

MOST_DEATHS = 3
"""Times in a row a worker may die while it loads: by then it is what it loads."""


class Resources(NamedTuple):
    """What a worker asks of the machine it is on."""

    cpu: float = 1.0
    gpu: float = 0.0
    custom: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        named = {"cpu": self.cpu, "gpu": self.gpu, **dict(self.custom)}
        return ", ".join(f"{name} {amount:g}" for name, amount in named.items() if amount)


class WorkerLost(Exception):
    """The process of a worker, or its machine, is gone."""


class Load(NamedTuple):
    """What workers load: the kit, where Ray keeps it, and its digest."""

    digest: str
    ref: Any


class Member:
    """One worker, whichever actor it is at the time."""

    def __init__(self, needs: Resources) -> None:
        self.needs = needs
        self._actor: Any = None
        self._loaded: str | None = None
        self._loading: Any = None
        self.about: dict[str, Any] = {}
        """Process, machine and version of the actor."""

    def has_loaded(self, load: Load) -> bool:
        """Whether it can be given orders."""
        return self._loaded == load.digest

    async def ready(self, load: Load) -> None:
        """Return once it has loaded this; again after it was lost."""
        deaths = 0
        while not self.has_loaded(load):
            if self._actor is None:
                self._actor = _new_actor(self.needs)
            try:
                about = await self._load(load)
            except WorkerLost as lost:
                self.dismiss()
                deaths += 1
                if deaths >= MOST_DEATHS:
                    raise ProctorError(
                        f"{deaths} workers died while they loaded the agents: {lost}",
                        hint="`--executor local` shows what the agent's code does",
                    ) from None
                continue
            if "error" in about:
                raise ProctorError(
                    f"on a worker: {about['error']}",
                    where=about.get("where"),
                    hint=about.get("hint"),
                )
            self.about, self._loaded = about, load.digest

    async def _load(self, load: Load) -> dict[str, Any]:
        """What it says to a kit. Ray does not keep the order of calls, and one that a run gave up
        waiting for may still come: it is waited for first, or it would undo this one."""
        if self._loading is not None:
            await _outcome(self._loading)
        self._loaded, self._loading = None, self._actor.load.remote(load.digest, load.ref)
        about = await _outcome(self._loading)
        self._loading = None
        return about

    async def exchange(self, orders: list[PlannedTrial], slots: int) -> Parcel:
        """Hand over orders and wait for news; `WorkerLost` when there will be none."""
        if self._actor is None:
            raise WorkerLost("it was dismissed")
        sent = self._actor.exchange.remote(self._loaded, pack(orders), slots)
        return parcel_of(await _outcome(sent))

    def answer(self, answer: DriverReply) -> None:
        """Tell it what it asked for."""
        if self._actor is not None:
            self._actor.answer.remote(pack(answer))

    def stop(self) -> None:
        """Tell it to cancel what it runs."""
        if self._actor is not None and self._loaded is not None:
            self._actor.stop.remote()

    def dismiss(self) -> None:
        """End its process; `ready` makes another."""
        actor, self._actor, self._loaded, self._loading = self._actor, None, None, None
        if actor is not None:
            with contextlib.suppress(Exception):
                ray_package().kill(actor)


def _new_actor(needs: Resources) -> Any:
    from proctor.trials.executors.ray.worker import Worker

    return (
        ray_package()
        .remote(Worker)
        .options(
            num_cpus=needs.cpu,
            num_gpus=needs.gpu,
            resources=dict(needs.custom),
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        .remote()
    )


async def _outcome(ref: Any) -> Any:
    """What a call came to; whatever Ray itself has lost is a lost worker."""
    known = ray_package().exceptions
    try:
        # A call cannot be taken back: Ray must find its future as it left it.
        coming = asyncio.wrap_future(ref.future())
        coming.add_done_callback(_seen)
        return await asyncio.shield(coming)
    except known.RayTaskError as error:
        raise ProctorError(
            f"a worker failed: {_in_short(getattr(error, 'cause', None) or error)}",
            hint="what is given in code must be importable on the workers",
        ) from error
    except (known.ActorUnschedulableError, known.RuntimeEnvSetupError) as error:
        raise ProctorError(f"Ray starts no worker: {_in_short(error)}") from error
    except known.RayError as error:
        raise WorkerLost(_in_short(error)) from error


def _seen(done: asyncio.Future[Any]) -> None:
    """Nobody may wait any more; what it came to is then nobody's concern."""
    if not done.cancelled():
        done.exception()


def _in_short(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class Crew:
    """Workers that are alike, on one Ray."""

    def __init__(self, needs: Resources, connection: Connection) -> None:
        self.needs = needs
        self.connection = connection
        self.members: list[Member] = []

    def of(self, count: int) -> list[Member]:
        """So many of them: more are made, those too many dismissed."""
        while len(self.members) > count:
            self.members.pop().dismiss()
        while len(self.members) < count:
            self.members.append(Member(self.needs))
        return self.members

    def dismiss(self) -> None:
        """End them all."""
        self.of(0)


_idle: list[Crew] = []
"""The crew of the last run, at most one: others would hold resources that the next one wants."""


def take_crew(needs: Resources, connection: Connection) -> Crew:
    """A crew for a run: the one that is warm, if it is of the right kind and still there."""
    if _idle and _idle[0].needs == needs and _idle[0].connection is connection:
        return _idle.pop()
    let_go()
    return Crew(needs, connection)


def give_back(crew: Crew) -> None:
    """Keep a crew warm for the next run; on a Ray of others, who want its room, let it go."""
    if _idle or not crew.connection.ours:
        crew.dismiss()
    else:
        _idle.append(crew)


def let_go() -> None:
    """Dismiss the crew that is warm: whoever else is on this Ray has its room."""
    while _idle:
        _idle.pop().dismiss()
