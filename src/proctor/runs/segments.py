"""Store the traces of a run compressed: one zstd frame per trace, frames concatenated.

    traces/000001.jsonl.zst     `zstdcat` prints one trace per line

Guarantees: a frame is on disk before the journal line that refers to it, so a referenced frame can
always be read. The reference has the frame's checksum, and the frame one of its content, for
readers that have only the file. Bytes after the last referenced frame are left over from a crash
and are truncated on resume.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path

import msgspec
import zstandard

from proctor.errors import ProctorError
from proctor.files import FOLDER_MODE, as_private, fsync_folder, unblocked
from proctor.runs.trial import TraceRef
from proctor.trace import Trace

SEGMENT_BYTES = 64 * 1024 * 1024
"""Maximum file size: small enough to upload while running, large enough to keep files few."""

LEVEL = 3
"""zstd's default; higher levels double the time for 5 %."""

SMALL, SMALL_LEVEL = 1024, -1
"""Traces below this size use a faster level: half the time, for some 40 bytes more each."""


MAX_TRACE = 512 << 20
"""Maximum bytes of a trace, compressed or not: a million spans. A damaged or hostile reference must
not make a reader allocate more."""


class SegmentError(ProctorError):
    """A trace cannot be written or read back."""


class SegmentWriter:
    """Append traces; owned by the single writer of a run."""

    def __init__(
        self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES, fsync_names: bool = False
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._fsync_names = fsync_names
        self._compress, self._compress_small = (
            zstandard.ZstdCompressor(level=level, write_checksum=True).compress
            for level in (LEVEL, SMALL_LEVEL)
        )
        self._number = max((number for number, _ in segments(folder)), default=0)
        self._offset = 0
        self.file: FileIO | None = None
        """The file of the last trace."""

    def append(self, encoded: bytes) -> TraceRef:
        """Write one trace, as `json_bytes` encodes it, and return its location."""
        return self.extend([encoded])[0]

    def extend(self, traces: Sequence[bytes]) -> list[TraceRef]:
        """Write traces with one call, a frame each, and return their locations."""
        frames = [
            (self._compress_small if len(encoded) < SMALL else self._compress)(encoded + b"\n")
            for encoded in traces
        ]
        try:
            if self.file is None or self._offset >= self._segment_bytes:
                # Always a fresh file, so that a resumed run never appends to a torn frame.
                self.close()
                self._folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
                self._number += 1
                path = segment_path(self._folder, self._number)
                self.file = open(path, "xb", buffering=0, opener=as_private)  # noqa: SIM115
                self._offset = 0
                if self._fsync_names:
                    fsync_folder(self._folder)
                    fsync_folder(self._folder.parent)
            write_whole(self.file, b"".join(frames))
        except OSError as error:
            raise SegmentError(
                f"cannot write a trace: {error.strerror}",
                where=str(self._folder),
                hint="finished trials are safe; free disk space or restore the folder, --resume",
            ) from None
        refs: list[TraceRef] = []
        for frame in frames:
            refs.append(TraceRef(self._number, self._offset, len(frame), zlib.crc32(frame)))
            self._offset += len(frame)
        return refs

    def close(self) -> None:
        """Close the current file."""
        # Forgotten first: after an error there is nothing to close a second time.
        file, self.file = self.file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            raise SegmentError(
                f"cannot write a trace: {error.strerror}", where=str(self._folder)
            ) from None


def write_whole(file: FileIO, data: bytes) -> None:
    """Write all bytes; the operating system may accept them in parts."""
    written = file.write(data)
    while written < len(data):
        data = data[written:]
        written = file.write(data)


def segment_path(folder: Path, number: int) -> Path:
    """Return the file of a segment."""
    return folder / f"{number:06d}.jsonl.zst"


def segments(folder: Path) -> Iterator[tuple[int, Path]]:
    """Return the segment files by number."""
    for path in sorted(folder.glob("*.jsonl.zst")):
        stem = path.name.removesuffix(".jsonl.zst")
        if stem.isdigit():  # else a file of another program
            yield int(stem), path


def read_trace(folder: Path, ref: TraceRef) -> Trace:
    """Return the trace that a trial refers to."""
    frame = read_frame(folder, ref)
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= MAX_TRACE:
            raise zstandard.ZstdError(f"it claims {size:,} bytes")
        # 0: the frame states the size of its content.
        line = zstandard.ZstdDecompressor().decompress(frame, max_output_size=0)
        return msgspec.json.decode(line, type=Trace)
    except (zstandard.ZstdError, msgspec.MsgspecError, RecursionError) as error:
        raise _unreadable(folder, ref, error) from None


def read_frame(folder: Path, ref: TraceRef) -> bytes:
    """Return the compressed trace that a trial refers to, as it was written."""
    try:
        if ref.length > MAX_TRACE or ref.offset < 0:
            raise ValueError(f"{ref.length:,} bytes are too many")
        with open(segment_path(folder, ref.segment), "rb", opener=unblocked) as file:
            file.seek(ref.offset)
            frame = file.read(max(0, ref.length))
        if ref.crc is not None and zlib.crc32(frame) != ref.crc:
            raise ValueError("it is not as it was written")
    except (OSError, ValueError, OverflowError) as error:
        raise _unreadable(folder, ref, error) from None
    return frame


def _unreadable(folder: Path, ref: TraceRef, error: Exception) -> SegmentError:
    where = str(segment_path(folder, ref.segment))
    return SegmentError(f"cannot read the trace at byte {ref.offset}: {error}", where=where)


def trim(folder: Path, refs: Iterator[TraceRef]) -> list[str]:
    """Truncate each segment after its last referenced frame; return what was removed."""
    ends: dict[int, int] = {}
    for ref in refs:
        ends[ref.segment] = max(ends.get(ref.segment, 0), ref.offset + ref.length)
    cut: list[str] = []
    for number, path in segments(folder):
        size, end = path.stat().st_size, ends.get(number, 0)
        if size <= end:
            continue
        if end == 0:  # no trial refers to it
            path.unlink()
        else:
            with path.open("rb+") as file:
                file.truncate(end)
        cut.append(f"{path.name}: cut {size - end} unreferenced bytes")
    return cut
