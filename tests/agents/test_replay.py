"""Recorded traces in place of an agent: which trace belongs to which case."""

import pytest
from trial_parts import trace_of

from proctor.agents.base import AgentError, AgentRequest
from proctor.agents.registry import agent_config
from proctor.agents.replay import ReplayAgentConfig
from proctor.trace.export import save_traces


def recorded(path, trace_id, query, response, **metadata):
    trace = trace_of("search", query=query, response=response)
    trace.trace_id = trace_id
    for span in trace.spans:
        span.trace_id = trace_id
    trace.metadata.update(metadata)
    path.parent.mkdir(exist_ok=True)
    save_traces([trace], path, "jsonl")


async def answer(config, case, value="?", index=0):
    reply = await config.create().run(AgentRequest(value, case=case, index=index))
    return reply.answer


@pytest.fixture
def folder(tmp_path):
    recorded(tmp_path / "t" / "named.jsonl", "a1", "first question", "by file")
    recorded(tmp_path / "t" / "x.jsonl", "b2", "second  question", "by input")
    recorded(tmp_path / "t" / "y.jsonl", "c3", "third", "by metadata", case="third-case")
    recorded(tmp_path / "t" / "z.jsonl", "d4", {"q": 1, "k": [2]}, "by structure")
    return tmp_path


def replay(folder, **options):
    return agent_config({"kind": "replay", "traces": ["t"], **options}, base_dir=folder)


@pytest.mark.parametrize(
    ("case", "value", "told"),
    [
        ("named", "whatever", "by file"),
        ("a1", "whatever", "by file"),
        ("other", "second question", "by input"),
        ("other", " second question\n", "by input"),
        ("third-case", "whatever", "by metadata"),
        ("other", {"k": [2], "q": 1}, "by structure"),
        ("other", '{"k": [2],  "q": 1}', "by structure"),
        ("named", "second question", "by file"),
    ],
)
async def test_a_trace_is_found(folder, case, value, told):
    """R-A2: by file name, trace id, metadata, else by input; a name goes before an input."""
    assert await answer(replay(folder), case, value) == told


@pytest.mark.parametrize("name", ["b2", "x.jsonl", "x", "t/x.jsonl"])
async def test_a_map_goes_before_everything(folder, name):
    """R-A2: a map names a trace by its id, its file, or the end of the file's path."""
    assert await answer(replay(folder, map={"named": name}), "named") == "by input"


async def test_several_traces_are_several_trials(folder):
    """R-A2: the trial with number n replays the n-th trace, in the order of the map."""
    config = replay(folder, map={"case": ["c3", "a1"]})
    assert [await answer(config, "case", index=i) for i in (0, 1)] == ["by metadata", "by file"]
    with pytest.raises(
        AgentError, match="trial 3 of case 'case' has no recorded trace: there are 2"
    ):
        await answer(config, "case", index=2)


async def test_a_missing_trace_is_an_error(folder):
    """R-R1: no trace is a failure to run, with what was looked for."""
    with pytest.raises(AgentError, match="no recorded trace for case 'nobody'") as raised:
        await answer(replay(folder), "nobody", "never asked")
    assert not raised.value.transient
    with pytest.raises(AgentError, match="no recorded trace named 'nowhere'"):
        await answer(replay(folder, map={"named": "nowhere"}), "named")


async def test_traces_at_hand():
    """R-A2: the same from traces in Python."""
    config = ReplayAgentConfig.of([trace_of("search", query="hi", response="hello")])
    assert await answer(config, "any", "hi") == "hello"


async def test_a_broken_file_costs_only_itself(folder):
    """R-T7: the other traces are still there, and the problem is kept for the report."""
    (folder / "t" / "broken.json").write_text("{")
    config = replay(folder)
    assert isinstance(config, ReplayAgentConfig)
    assert await answer(config, "named") == "by file"
    assert any("broken.json" in str(problem) for problem in config.recordings.problems)
