"""The rates of an ecosystem, drawn from its seed.

Promise: left alone, the endangered species is all but gone at the end, with the lasting measure
on the cause in good time it lives, and with it on any other it does not. Decoys look like the
cause and touch the endangered species no more than bystanders do. Draws come from Python's
generator, whose numbers are the same in every version, through the inverse normal.
"""

from __future__ import annotations

import math
from random import Random
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from proctor.worlds.populations import Dynamics, Need, Vector

_NORMAL = NormalDist()

GAIN, DEATH, HALF = 0.6, 0.2, 0.5
"""Of the dependent species, per day: what it gains from plenty, what it loses in any case, and
where its gain is halved. It holds its own while the other keeps a quarter of its numbers."""

CROWDING = 1.65
"""What the competitor costs at full numbers and pressure 1, in units of the endangered species'
growth: times the pressure it must be above 1, or the endangered species would hold out."""

CONTROL = 1.3
"""How hard `control` bears on a species, in units of its growth: above 1 it does not come back."""

TANGLE = 0.3
"""What all others together take from a species at full numbers and entanglement 1, as a share of
its own limit. It leaves the endangered species two thirds of its numbers: enough to be saved."""

INVADING = 0.1
"""Share of its later numbers at which a spreading species begins."""


class Hidden(NamedTuple):
    """What the agent has to find out: indices of species."""

    endangered: int
    cause: int
    decoys: tuple[int, ...]


class Levers(NamedTuple):
    """How hard it is; see `Ecosystem`."""

    noise: float = 0.0
    weather: float = 0.0
    entanglement: float = 0.0
    pressure: float = 0.9


class Rates(NamedTuple):
    """Everything an episode is made of."""

    dynamics: Dynamics
    start: Vector
    loss: Vector
    """What each species loses each day without help."""
    relief: Vector
    """What it loses under the lasting measure."""
    usual: Vector
    """Animals at full numbers."""
    errors: Vector
    """By day and species: what a count is multiplied by."""
    weather: Vector
    """By day and species: what the numbers are multiplied by."""


def drawn_rates(
    relation: str, species: int, hidden: Hidden, days: int, levers: Levers, seed: int
) -> Rates:
    """The rates of one seed. Each kind of draw has a stream of its own."""
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
    """Everyone limits itself, and some press a little on each of the others."""
    random = Random(f"{seed}/effects")  # noqa: S311 (a simulation)
    species = len(limits)
    # All are drawn, also those not used, so that one lever does not move what others draw.
    shares = np.array([random.random() for _ in range(species * species)])
    shares = shares.reshape(species, species)
    shares[shares < 0.5] = 0.0
    np.fill_diagonal(shares, 0.0)
    shares[hidden.endangered] = 0.0
    shares[:, hidden.cause] = 0.0  # what the endangered one needs must be able to recover
    totals = np.add.reduce(shares, axis=0)
    effects = -most * TANGLE * limits * shares / np.where(totals > 0.0, totals, 1.0)
    np.fill_diagonal(effects, -limits)
    return effects


def _uniform(seed: int, stream: str, count: int, low: float, high: float) -> list[float]:
    random = Random(f"{seed}/{stream}")  # noqa: S311 (a simulation)
    return [random.uniform(low, high) for _ in range(count)]


def _lognormal(seed: int, stream: str, shape: tuple[int, int], sigma: float) -> Vector:
    """Factors with mean 1."""
    if not sigma:
        return np.ones(shape)
    random = Random(f"{seed}/{stream}")  # noqa: S311 (a simulation)
    # 1 − random() lies in (0, 1]; its half-open end is moved so that neither tail is infinite.
    size = shape[0] * shape[1]
    draws = [_NORMAL.inv_cdf(random.random() * (1.0 - 2e-12) + 1e-12) for _ in range(size)]
    factors = [math.exp(sigma * z - 0.5 * sigma * sigma) for z in draws]
    return np.array(factors).reshape(shape)
