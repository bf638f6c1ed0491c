"""gzip and zstd are undone within a limit by one function, for files and for requests."""

import gzip
import io
from collections.abc import Callable

import httpx
import pytest
import zstandard
from server_parts import TRACE, serving, wire_request

from proctor.agents._otlp_receiver import Receiver
from proctor.files import DecompressionError, decompress
from proctor.server._otlp_endpoint import decompressed
from proctor.server.app import Service
from proctor.server.decoder_process import Refused
from proctor.server.store import open_store
from proctor.trace.load import TraceLoadError, load_traces

SPANS = wire_request({"id": 1, "name": "agent"}, {"id": 2, "parent": 1})
ZSTD = zstandard.ZstdCompressor(write_checksum=True).compress

COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": ZSTD}


@pytest.mark.parametrize("name", COMPRESS)
def test_members_in_a_row_are_one_text(name: str) -> None:
    """R-T7: both formats allow several parts in a row, found by their first bytes."""
    data = b"".join(COMPRESS[name](part) for part in (b"one ", b"two ", b"x" * 3_000_000))
    assert decompress(data, 4_000_000) == b"one two " + b"x" * 3_000_000
    assert decompress(data, 4_000_000, name) == decompress(data, 4_000_000)
    assert decompress(b"plain", 5) == b"plain"


@pytest.mark.parametrize("name", COMPRESS)
def test_a_bomb_is_refused_before_it_is_whole(name: str) -> None:
    """R-T7: a kilobyte that would be a gigabyte takes no more memory than the limit."""
    bomb = COMPRESS[name](bytes(200_000_000))
    with pytest.raises(DecompressionError, match="more than 1,000 bytes") as caught:
        decompress(bomb, 1000)
    assert caught.value.too_large
    with pytest.raises(Refused) as refused:
        decompressed(bomb, name, 1000)
    assert refused.value.status == 413
    with pytest.raises(TraceLoadError, match="unpacks to more than"):
        load_traces(bomb, max_bytes=len(bomb))


@pytest.mark.parametrize("name", COMPRESS)
@pytest.mark.parametrize("harm", ["cut", "broken"])
def test_damaged_data_is_an_error_that_says_so(name: str, harm: str) -> None:
    """R-T7: a request is refused with 400, a file is named with the reason."""
    good = COMPRESS[name](SPANS * 50)
    data = good[:-5] if harm == "cut" else good[:12] + bytes(20) + good[32:]
    with pytest.raises(DecompressionError, match=name) as caught:
        decompress(data, 10_000_000)
    assert not caught.value.too_large
    assert (caught.value.partial is not None) == (harm == "cut")
    with pytest.raises(Refused) as refused:
        decompressed(data, name)
    assert refused.value.status == 400


def test_traces_before_a_torn_frame_are_read() -> None:
    """R-T7: a run that was killed leaves a torn frame; the traces before it are not lost."""
    lines = [b'{"proctor_trace":1,"trace_id":"%d","spans":[]}\n' % n for n in range(3)]
    data = b"".join(map(ZSTD, lines))
    assert [t.trace_id for t in load_traces(data[:-4])][:2] == ["0", "1"]


@pytest.mark.parametrize("name", COMPRESS)
def test_the_server_takes_what_files_hold(tmp_path, name: str) -> None:
    """R-D7: the same bytes are one trace in a request and in a file."""
    store = open_store(f"sqlite:////{tmp_path}/t.db".replace("/////", "////"))
    data = COMPRESS[name](SPANS)
    headers = {"content-type": "application/x-protobuf", "content-encoding": name}
    with serving(Service.receiving(store)) as running:
        httpx.post(f"{running.url}/v1/traces", content=data, headers=headers).raise_for_status()
        assert len(store.trace(TRACE).spans) == 2
    (trace,) = load_traces(io.BytesIO(data))
    assert len(trace.spans) == 2


def test_the_receiver_of_agents_refuses_what_is_damaged() -> None:
    """R-A3: an exporter of a child process gets 400 for a body that is cut off."""
    receiver = Receiver()
    receiver.start()
    try:
        headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
        whole = gzip.compress(SPANS)
        for body, status in ((whole, 200), (whole[:-5], 400), (b"no", 400)):
            sent = httpx.post(f"{receiver.url}/v1/traces", content=body, headers=headers)
            assert sent.status_code == status
    finally:
        receiver.stop()
