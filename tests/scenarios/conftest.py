"""A catalog to write templates into, and caches and stores that are nobody else's."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from proctor.scenarios import Catalog


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees what another one, or the user, has built or stored."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user-data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user-config"))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """An empty catalog."""
    (tmp_path / "catalog").mkdir()
    return Catalog([tmp_path / "catalog"])


Write = Callable[..., Path]


@pytest.fixture
def write(catalog: Catalog) -> Write:
    """Write a template, or a file beside one, by its path in the catalog."""

    def written(text: str, path: str = "a/b/spec.yaml") -> Path:
        file = catalog.paths[0] / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(dedent(text).encode())
        return file

    return written
