"""One Ray for all tests of executors: starting one takes seconds, and it is never quite idle."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="package")
def a_ray() -> Iterator[str]:
    """The address of a Ray with room for four workers, started as `--executor ray` starts it."""
    if find_spec("ray") is None:
        pytest.skip("the extra `ray` is not installed")
    from proctor.trials._ray import connect, ray_package, shut_down

    connect(None, 4, Path())
    yield ray_package().get_runtime_context().gcs_address
    shut_down()


@pytest.fixture
def room_on_ray(a_ray: str) -> str:
    """The same address, for processes of their own: no workers of this one hold its processors."""
    from proctor.trials._ray import let_go

    let_go()
    return a_ray


@pytest.fixture(params=["local", "ray"])
def where(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of a run that say where its trials run."""
    if request.param == "local":
        return {}
    request.getfixturevalue("a_ray")
    return {"executor": "ray", "workers": 2}
