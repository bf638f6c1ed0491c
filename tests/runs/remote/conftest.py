"""One S3 server for all tests here; each gets an empty bucket behind a proxy of its own."""

from collections.abc import Iterator

import pytest
from cloud_parts import Proxy, faulty_s3, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def s3(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with faulty_s3(server, monkeypatch) as proxy:
        yield proxy
