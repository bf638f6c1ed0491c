"""Ecosystem with a hidden relation: find the species that another one depends on.

One species is endangered. Either it lives on another that is dying out (`dependency`) or another
that spreads crowds it out (`competition`); decoys die out or spread in the same way without being
the cause. Observation is therefore not enough: the agent must intervene, measure and infer within a
limited time. It may place one lasting measure (protect or control one species) and must name the
cause. Score: half for the name, half for the final population of the endangered species.

The hidden values come from the options (a template draws them) or else from the seed; all rates
come from the seed. Species names carry no information.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from proctor.agents.actions import Actions
from proctor.errors import did_you_mean
from proctor.formatting import percent
from proctor.worlds._base import InvalidAction, Scores, WorldError

# Population dynamics of several species, day by day.  Lotka–Volterra with an obligate mutualism,
# integrated by the classical Runge–Kutta rule with one step a day, vectorised over species.
# Populations are relative to the habitat's capacity. Guarantees: the same bits on every machine
# (sums run in a fixed order, independent of BLAS); the trade-off of one step a day is an error
# under 0.1 % of the exact solution at the rates used here.


Vector = NDArray[np.float64]

EXTINCT = 0.01
"""Share of the usual population below which a species is extinct."""


@dataclass(slots=True)
class Need:
    """Dependency of one species on another: growth rises with its population and saturates."""

    who: int
    on: int
    gain: float
    half: float
    """Population of the other species at half of the gain."""


@dataclass(slots=True)
class Dynamics:
    """Rates per day. `effects[j, i]` is the effect of j on the growth of i; the diagonal limits."""

    growth: Vector
    effects: Vector
    need: Need | None = None

    def rate(self, x: Vector, loss: Vector) -> Vector:
        """Return the change of every species at once."""
        # Row by row: adding along the first axis has a fixed order; a matrix product would depend
        # on the machine's linear algebra library.
        total: Vector = self.growth - loss + np.add.reduce(self.effects * x[:, None], axis=0)
        need = self.need
        if need is not None:
            other = x[need.on]
            total[need.who] += need.gain * other / (other + need.half)
        return x * total

    def day(self, x: Vector, loss: Vector, shock: Vector | None = None) -> Vector:
        """Return the populations a day later; `shock` is the weather factor."""
        first = self.rate(x, loss)
        second = self.rate(x + 0.5 * first, loss)
        third = self.rate(x + 0.5 * second, loss)
        fourth = self.rate(x + third, loss)
        after: Any = x + (first + 2.0 * second + 2.0 * third + fourth) / 6.0
        if shock is not None:
            after = after * shock
        after[after < EXTINCT] = 0.0
        return after


# Rates of an ecosystem, drawn from its seed.  Guarantees: without intervention the endangered
# species is nearly extinct at the end, with the lasting measure on the cause in good time it
# survives, and with it on any other species it does not. Decoys look like the cause and affect the
# endangered species no more than bystanders do. Draws use Python's generator, whose numbers are the
# same in every version, through the inverse normal.


_NORMAL = NormalDist()

GAIN, DEATH, HALF = 0.6, 0.2, 0.5
"""Rates of the dependent species per day: maximum gain, constant loss, and the half-saturation
level. It is stable while the other species has a quarter of its population.
"""

CROWDING = 1.65
"""Effect of the competitor at full population and pressure 1, in units of the endangered species'
growth: times the pressure it must be above 1, or the endangered species would survive.
"""

CONTROL = 1.3
"""Effect of `control` on a species, in units of its growth: above 1 it does not recover."""

TANGLE = 0.3
"""Total effect of all other species at full population and entanglement 1, as a share of a species'
own limit. It leaves the endangered species two thirds of its population: enough to be saved.
"""

INVADING = 0.1
"""Initial share of a spreading species' final population."""


class Hidden(NamedTuple):
    """The solution: indices of species."""

    endangered: int
    cause: int
    decoys: tuple[int, ...]


class Levers(NamedTuple):
    """Difficulty; see `Ecosystem`."""

    noise: float = 0.0
    weather: float = 0.0
    entanglement: float = 0.0
    pressure: float = 0.9


class Rates(NamedTuple):
    """All parameters of an episode."""

    dynamics: Dynamics
    start: Vector
    loss: Vector
    """Daily loss of each species without help."""
    relief: Vector
    """Daily loss under the lasting measure."""
    usual: Vector
    """Number of animals at full population."""
    errors: Vector
    """By day and species: error factor of a count."""
    weather: Vector
    """By day and species: weather factor of the population."""


def drawn_rates(
    relation: str, species: int, hidden: Hidden, days: int, levers: Levers, seed: int
) -> Rates:
    """Draw the rates of one seed. Each kind of draw has its own random stream."""
    growth = np.array(_uniform(seed, "growth", species, 0.28, 0.42))
    usual = np.floor(np.exp(np.array(_uniform(seed, "usual", species, 5.3, 8.0))))
    start = np.array(_uniform(seed, "start", species, 0.9, 1.05))
    limits = growth.copy()
    loss, relief = np.zeros(species), np.zeros(species)
    need = None
    moved = [hidden.cause, *hidden.decoys]
    if relation == "dependency":
        who = hidden.endangered
        need = Need(who, hidden.cause, GAIN, HALF)
        growth[who], limits[who] = -DEATH, GAIN / (1.0 + HALF) - DEATH
        loss[moved] = levers.pressure * growth[moved]
    effects = _entangled(seed, limits, hidden, levers.entanglement)
    if relation == "competition":
        effects[hidden.cause, hidden.endangered] = -(
            CROWDING * levers.pressure * growth[hidden.endangered]
        )
        start[moved] *= INVADING
        relief = CONTROL * growth
    shape = (days + 1, species)
    return Rates(
        Dynamics(growth, effects, need),
        start,
        loss,
        relief,
        usual,
        _lognormal(seed, "errors", shape, levers.noise),
        _lognormal(seed, "weather", shape, levers.weather),
    )


def _entangled(seed: int, limits: Vector, hidden: Hidden, most: float) -> Vector:
    """Return effects: every species limits itself, and some reduce each of the others a little."""
    random = Random(f"{seed}/effects")  # noqa: S311 (a simulation)
    species = len(limits)
    # All are drawn, even unused ones, so that one option does not change the draws of others.
    shares = np.array([random.random() for _ in range(species * species)])
    shares = shares.reshape(species, species)
    shares[shares < 0.5] = 0.0
    np.fill_diagonal(shares, 0.0)
    shares[hidden.endangered] = 0.0
    # The species that the endangered one needs must be able to recover.
    shares[:, hidden.cause] = 0.0
    totals = np.add.reduce(shares, axis=0)
    effects = -most * TANGLE * limits * shares / np.where(totals > 0.0, totals, 1.0)
    np.fill_diagonal(effects, -limits)
    return effects


def _uniform(seed: int, stream: str, count: int, low: float, high: float) -> list[float]:
    random = Random(f"{seed}/{stream}")  # noqa: S311 (a simulation)
    return [random.uniform(low, high) for _ in range(count)]


def _lognormal(seed: int, stream: str, shape: tuple[int, int], sigma: float) -> Vector:
    """Draw factors with mean 1."""
    if not sigma:
        return np.ones(shape)
    random = Random(f"{seed}/{stream}")  # noqa: S311 (a simulation)
    # 1 − random() is in (0, 1]; it is shifted so that neither tail is infinite.
    size = shape[0] * shape[1]
    draws = [_NORMAL.inv_cdf(random.random() * (1.0 - 2e-12) + 1e-12) for _ in range(size)]
    factors = [math.exp(sigma * z - 0.5 * sigma * sigma) for z in draws]
    return np.array(factors).reshape(shape)


Relation = Literal["dependency", "competition"]

MEASURE = {"dependency": "protect", "competition": "control"}
"""Lasting measure of each kind of world."""

ENOUGH = 0.5
"""Share of its usual population at which the endangered species counts as saved."""


class Ecosystem:
    """The ecosystem world; the options set its difficulty.

    `noise` is the relative error of a count, `weather` the daily variation of the populations,
    `entanglement` the effect of bystanders on each other and on the endangered species (as a share
    of its growth), `pressure` the effect of the cause (how fast it dies out, or how much it
    crowds), `interventions` the number of times animals may be released or removed.
    """

    quick = True
    """A day takes about fifty microseconds, less than a switch to a thread."""

    def __init__(
        self,
        *,
        relation: Relation = "dependency",
        species: int | Sequence[str] = 4,
        endangered: str | None = None,
        cause: str | None = None,
        decoys: int | Sequence[str] = 1,
        days: int = 60,
        interventions: int = 12,
        levers: Mapping[str, float] | None = None,
    ) -> None:
        self.relation: Relation = _one_of("relation", relation, MEASURE)
        names = [f"s{i + 1}" for i in range(species)] if isinstance(species, int) else list(species)
        if len(names) < 3 or len(set(names)) != len(names):
            raise WorldError(f"species {names} need to be three or more, no two alike")
        self.names = names
        self._endangered, self._cause, self._decoys = endangered, cause, decoys
        self._days, self._interventions = days, interventions
        self._levers = Levers(**_known(levers or {}))
        if days < 10 or interventions < 0:
            raise WorldError("an episode has at least 10 days, and interventions are not negative")
        for name in (endangered, cause, *(() if isinstance(decoys, int) else decoys)):
            if name is not None:
                _one_of("species", name, names)
        self._state: _State | None = None

    # -- world interface -------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start at day 0, with a first count of every species."""
        seed = 0 if seed is None else seed
        hidden = self._draw_hidden(Random(f"{seed}/hidden"))  # noqa: S311 (a simulation)
        rates = drawn_rates(self.relation, len(self.names), hidden, self._days, self._levers, seed)
        self._state = _State(rates, hidden, self._days, self._interventions)
        return self._observation(counted=True), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Perform one action; one day passes, or the number of days waited."""
        state = self._running
        call, arguments = action["call"], action["arguments"]
        counted = False
        days = 1
        if call == "declare":
            state.declared = self.names.index(arguments["species"])
            score = self.score({})
            answer = {"answer": f"{call} {arguments['species']}"}
            return self._observation(), score.score or 0.0, True, False, answer
        if call == "measure":
            counted = True
        elif call == "wait":
            days = arguments["days"]
        elif call in ("add", "remove"):
            state.interfere(call, self.names.index(arguments["species"]), arguments["percent"])
        elif call == MEASURE[self.relation]:
            state.treat(self.names.index(arguments["species"]))
        else:
            raise InvalidAction(f"there is no action {call!r}")
        state.pass_days(days)
        over = state.day >= self._days
        reward = (self.score({}).score or 0.0) if over else 0.0
        return self._observation(counted=counted), reward, False, over, {}

    def actions(self) -> Actions:
        """Return the valid actions."""
        state = self._running
        others = [name for i, name in enumerate(self.names) if i != state.hidden.endangered]
        percent = {"type": "integer", "low": 10, "high": 100}
        calls: list[dict[str, Any]] = [
            {"call": "measure", "arguments": {}},
            {"call": "wait", "arguments": {"days": {"type": "integer", "low": 1, "high": 10}}},
        ]
        if state.interventions:
            calls += [
                {"call": "add", "arguments": {"species": others, "percent": percent}},
                {
                    "call": "remove",
                    "arguments": {"species": others, "percent": {**percent, "high": 90}},
                },
            ]
        if state.treated is None:
            calls.append({"call": MEASURE[self.relation], "arguments": {"species": others}})
        calls.append({"call": "declare", "arguments": {"species": others}})
        return calls

    def score(self, truth: Mapping[str, Any]) -> Scores:
        """Score half for the named cause, half for the final endangered population."""
        state = self._running
        cause = truth.get("cause", self.names[state.hidden.cause])
        named = state.declared is not None and self.names[state.declared] == cause
        share = state.at_the_end()
        # Six digits: beyond them machines may differ.
        alive = round(min(1.0, share / ENOUGH), 6)
        answer = "nothing" if state.declared is None else self.names[state.declared]
        who = self.names[state.hidden.endangered]
        reason = (
            f"named {answer}, it was {cause}; {who} ends at {percent(share)} of its usual numbers"
        )
        return Scores(0.5 * named + 0.5 * alive, {"named": float(named), "alive": alive}, reason)

    # -- internals -------------------------------------------------------------------------------

    @property
    def truth(self) -> dict[str, Any]:
        """Return the hidden values by visible names. Never part of an observation."""
        hidden = self._running.hidden
        return {
            "endangered": self.names[hidden.endangered],
            "cause": self.names[hidden.cause],
            "decoys": [self.names[i] for i in hidden.decoys],
        }

    @property
    def _running(self) -> _State:
        if self._state is None:
            raise WorldError("the world has not been reset", hint="call reset(seed=…) first")
        return self._state

    def _observation(self, *, counted: bool = False) -> dict[str, Any]:
        state = self._running
        seen: dict[str, Any] = {
            "day": state.day,
            "days_left": self._days - state.day,
            "endangered": self.names[state.hidden.endangered],
            "interventions_left": state.interventions,
        }
        if state.treated is not None:
            seen[MEASURE[self.relation]] = self.names[state.treated]
        if counted:
            seen["counts"] = dict(zip(self.names, state.counts(), strict=True))
        return seen

    def _draw_hidden(self, random: Random) -> Hidden:
        """Return the roles of the species: as given, the rest drawn."""
        order = list(range(len(self.names)))
        random.shuffle(order)
        at = self.names.index
        endangered = order[0] if self._endangered is None else at(self._endangered)
        others = [i for i in order if i != endangered]
        cause = others[0] if self._cause is None else at(self._cause)
        others = [i for i in others if i != cause]
        if isinstance(self._decoys, int):
            decoys = tuple(others[: self._decoys])
        else:
            decoys = tuple(at(name) for name in self._decoys)
        if cause == endangered or {cause, endangered} & set(decoys):
            raise WorldError("the endangered species, the cause and the decoys must differ")
        return Hidden(endangered, cause, decoys)


class _State:
    """State of a running episode: populations, days, and interventions."""

    def __init__(self, rates: Rates, hidden: Hidden, days: int, interventions: int) -> None:
        self.hidden = hidden
        self.interventions = interventions
        self.day = 0
        self.treated: int | None = None
        self.declared: int | None = None
        self._days = days
        self._rates = rates
        self._x = rates.start.copy()
        self._loss = rates.loss.copy()
        self._end: float | None = None  # valid until the next action

    def interfere(self, how: str, who: int, percent: int) -> None:
        """Release or remove animals."""
        if not self.interventions:
            raise InvalidAction("no interventions are left")
        self.interventions -= 1
        self._end = None
        share = percent / 100
        self._x[who] = self._x[who] + share if how == "add" else self._x[who] * (1.0 - share)

    def treat(self, who: int) -> None:
        """Place the lasting measure: at most once."""
        if self.treated is not None:
            raise InvalidAction("the measure is placed already, and stays")
        self.treated = who
        self._end = None
        self._loss[who] = self._rates.relief[who]

    def pass_days(self, days: int) -> None:
        """Advance time, up to the last day."""
        for _ in range(min(days, self._days - self.day)):
            self._x = self._next(self._x, self.day)
            self.day += 1

    def counts(self) -> list[int]:
        """Return a count of every species, with measurement error."""
        # The errors are drawn beforehand: counting twice on a day gives the same count.
        seen = self._x * self._rates.usual * self._rates.errors[self.day]
        return [int(value) for value in np.floor(seen + 0.5)]

    def at_the_end(self) -> float:
        """Return the endangered species' share of its usual population on the last day."""
        if self._end is None:
            x = self._x
            # Simulated on a copy: asking for the score must not change the episode.
            for day in range(self.day, self._days):
                x = self._next(x, day)
            self._end = float(x[self.hidden.endangered])
        return self._end

    def _next(self, x: Vector, day: int) -> Vector:
        return self._rates.dynamics.day(x, self._loss, self._rates.weather[day])


def _one_of(what: str, value: Any, known: Mapping[str, Any] | Sequence[str]) -> Any:
    if value not in known:
        raise WorldError(
            f"{what}: {value!r} is not one of {', '.join(known)}",
            hint=did_you_mean(str(value), known),
        )
    return value


def _known(levers: Mapping[str, float]) -> dict[str, float]:
    for name, value in levers.items():
        _one_of("levers", name, Levers._fields)
        if not 0.0 <= value <= 2.0:
            raise WorldError(f"levers: {name} is {value}", hint="a number from 0 to 2")
    return dict(levers)
