"""Answer from recorded traces: no agent runs, only the checks.

A trace belongs to a case if the map says so, else if it names the case (in its metadata, as its
trace id or as its file name), else if its query equals the case's input. A case without a trace is
an infrastructure error, never skipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Literal

import msgspec
from pydantic import Field, PrivateAttr

from proctor.agents.base import AgentConfig, AgentError, AgentReply, AgentRequest
from proctor.trace import Trace
from proctor.trace.load import TraceProblem, load_traces

# Metadata keys that may hold the case id of a trace.
CASE_KEYS = ("case", "case_id", "proctor.case")


class Recordings:
    """Index of traces by id, file, case and input."""

    def __init__(self, chosen: Mapping[str, str | list[str]]) -> None:
        self._by_name: dict[str, list[Trace]] = defaultdict(list)
        self._by_input: dict[str, list[Trace]] = defaultdict(list)
        self._chosen = chosen
        self._files: dict[int, str] = {}
        self._errors: dict[int, AgentError] = {}
        self.traces: list[Trace] = []
        self.problems: list[TraceProblem] = []
        """Problems found in the files."""
        self.missing: dict[str, dict[str, int]] = {}
        """Planned trials of recorded runs that never ended, by case and cell."""

    def add(
        self,
        trace: Trace,
        file: str | None = None,
        *,
        case: str | None = None,
        error: AgentError | None = None,
    ) -> None:
        """Add a trace and its source file.

        A trial of a run names its case; `error` is why it gave no answer there, which its trace
        does not show.
        """
        # `self.traces` keeps the object alive, so that its id is not reused.
        self.traces.append(trace)
        if file is not None:
            self._files[id(trace)] = file
        if error is not None:
            self._errors[id(trace)] = error
        for name in {case} if case is not None else _names(trace, file):
            self._by_name[name].append(trace)
        if trace.query is not None:
            self._by_input[_normal(trace.query)].append(trace)

    def of(self, case: str, value: Any) -> list[Trace]:
        """Return the traces of a case, in loading order."""
        chosen = self._chosen.get(case)
        if chosen is not None:
            names = [chosen] if isinstance(chosen, str) else chosen
            return [trace for name in names for trace in self._by_name.get(name, ())]
        # Names first: two cases may share an input.
        return self._by_name.get(case) or self._by_input.get(_normal(value), [])

    def missing_of(self, case: str) -> int:
        """Return how many planned trials of a case never ended in the recorded run."""
        return 0 if case in self._chosen else sum(self.missing.get(case, {}).values())

    def error_of(self, trace: Trace) -> AgentError | None:
        """Return the error that ended the trial of a trace when it was recorded."""
        return self._errors.get(id(trace))

    def file_of(self, trace: Trace) -> str | None:
        """Return the source file of a trace."""
        return self._files.get(id(trace))

    def why_none(self, case: str) -> str:
        """Return why a case has no trace."""
        chosen = self._chosen.get(case)
        if chosen is None:
            return f"no recorded trace for case {case!r}, by name or by input"
        return f"no recorded trace named {chosen!r}, as the map says for case {case!r}"


def _names(trace: Trace, file: str | None) -> set[str]:
    names = {str(trace.metadata[key]) for key in CASE_KEYS if trace.metadata.get(key)}
    if file is not None:
        parts = PurePath(file).parts
        # A map may name a file relative to any folder, so any suffix of its path matches.
        names |= {"/".join(parts[start:]) for start in range(len(parts))}
        names |= {file, parts[-1].split(".", 1)[0]}
    return {trace.trace_id, *names}


def _normal(value: Any) -> str:
    """Return the input normalised for white space and JSON formatting."""
    if isinstance(value, str):
        if value.lstrip()[:1] in ("{", "["):
            with suppress(msgspec.DecodeError, RecursionError):
                return _normal(msgspec.json.decode(value))
        return " ".join(value.split())
    return msgspec.json.encode(value, order="sorted", enc_hook=str).decode()


class ReplayAgentConfig(AgentConfig):
    """Recorded traces in place of an agent."""

    kind: Literal["replay"] = "replay"
    traces: list[str] = Field(min_length=1)
    """Files, folders or globs."""
    map: dict[str, str | list[str]] = Field(default_factory=dict)
    """Case id → trace id, file name or a list of them, for traces not found otherwise."""
    base_dir: Path | None = Field(default=None, exclude=True)

    _recordings: Recordings | None = PrivateAttr(default=None)

    @classmethod
    def of(
        cls, traces: Iterable[Trace], chosen: Mapping[str, str | list[str]] | None = None
    ) -> ReplayAgentConfig:
        """Create a replay of traces in memory."""
        config = cls(traces=["-"], map=dict(chosen or {}))
        recordings = Recordings(config.map)
        for trace in traces:
            recordings.add(trace)
        return config.with_recordings(recordings)

    def with_recordings(self, recordings: Recordings) -> ReplayAgentConfig:
        """Use recordings that are in memory already."""
        self._recordings = recordings
        return self

    @cached_property
    def recordings(self) -> Recordings:
        """Return the traces, loaded once."""
        if self._recordings is not None:
            return self._recordings
        base = self.base_dir or Path()
        recordings = Recordings(self.map)
        loaded = load_traces([base / name for name in self.traces])
        for trace, file in zip(loaded, loaded.files, strict=True):
            recordings.add(trace, file)
        recordings.problems = loaded.problems
        return recordings

    async def run(self, request: AgentRequest) -> AgentReply:
        """Return the recorded trace of this case; if there are several, by trial number."""
        traces = self.recordings.of(request.case, request.input)
        if request.index >= len(traces):
            raise self._missing(request, len(traces))
        trace = traces[request.index]
        if (error := self.recordings.error_of(trace)) is not None:
            raise error
        return AgentReply(answer=trace.response or "", trace=trace)

    def _missing(self, request: AgentRequest, found: int) -> AgentError:
        if not found:
            return AgentError(
                self.recordings.why_none(request.case),
                category="",
                hint="name it in the map, or give the trace the case's id or input",
            )
        return AgentError(
            f"trial {request.index + 1} of case {request.case!r} has no recorded trace: "
            f"there are {found} of them",
            category="",
            hint=f"use --trials {found}, or record more",
        )
