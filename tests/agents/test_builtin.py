"""`random`, `scripted` and `human`."""

import asyncio
import io
import os
import pty
import select
import sys
from collections import Counter
from typing import Any

import pytest

from proctor.agents._builtin import converse
from proctor.agents.base import AgentError, AgentRequest, NoActionsError
from proctor.agents.registry import UnknownAgentError, agent_config
from proctor.trace.capture import capture

MOVES = {"board": "...", "actions": ["left", "right", "stay", {"jump": 2}]}


async def answer(options, value: Any = "q", **trial):
    request = AgentRequest(value, **{"case": "c", **trial})
    return await agent_config(options).create().run(request)


async def test_random_is_uniform_and_repeats_with_its_seed():
    """R-A2: each action equally likely, the same action for the same seed."""
    said = [(await answer({"kind": "random"}, MOVES, seed=seed)).answer for seed in range(4000)]
    again = [(await answer({"kind": "random"}, MOVES, seed=seed)).answer for seed in range(50)]
    assert again == said[:50]
    counts = Counter(said)
    assert set(counts) == {"left", "right", "stay", '{"jump":2}'}
    # Five standard deviations of a binomial with n = 4000 and p = 1/4.
    assert all(abs(count - 1000) < 137 for count in counts.values())


async def test_random_needs_actions():
    """R-A2: without a list of actions there is nothing to choose from, and it is said."""
    with pytest.raises(NoActionsError, match="lists no possible answers"):
        await answer({"kind": "random"}, "free text")
    with capture("q") as trace:
        reply = await answer({"kind": "random", "actions": ["yes"]}, "free text")
    assert reply.answer == "yes"
    assert trace.any({"name_equals": "choose"})


async def test_scripted_by_case_and_by_trial():
    """R-A2: an answer depends on the case and the trial's number, not on who runs first."""
    options = {"kind": "scripted", "cases": {"a": "A", "b": ["1", {"x": 2}]}, "replies": ["r"]}
    assert (await answer(options, case="a", index=5)).answer == "A"
    said = await asyncio.gather(*(answer(options, case="b", index=i) for i in (3, 2, 1, 0)))
    assert [r.answer for r in said] == ['{"x":2}', "1", '{"x":2}', "1"]
    assert (await answer(options, case="other")).answer == "r"
    once = {"kind": "scripted", "cases": {"b": ["1"]}, "repeat": False}
    with pytest.raises(AgentError, match="only 1 answers"):
        await answer(once, case="b", index=1)
    with pytest.raises(AgentError, match="no scripted answer for case 'c'"):
        await answer(once)


@pytest.mark.parametrize(
    "options",
    [
        {"cases": {"a": []}},
        {"replies": []},
        {"actions": []},
        {"options": {"x": 1}},
        {"script": "a.b:c", "actions": [1]},
    ],
)
def test_a_script_that_says_nothing(options):
    """R-A2: a script that is empty or contradicts itself is refused before it runs."""
    with pytest.raises(UnknownAgentError):
        agent_config({"kind": "scripted", **options})


def asked(value, *lines):
    out = io.StringIO()
    return converse(AgentRequest(value, case="c"), io.StringIO("".join(lines)), out), out.getvalue()


def test_a_person_chooses_by_number_or_in_words():
    """R-A2: the input and the valid actions are shown; anything else is asked again."""
    said, shown = asked(MOVES, "up\n", "9\n", "2\n")
    assert said == "right"
    assert "1) left" in shown
    assert '4) {"jump":2}' in shown
    assert "up is not one of left, right" in shown
    assert "9 is not one of the 4 actions" in shown
    assert asked(MOVES, "stay\n")[0] == "stay"
    assert asked(MOVES, "4\n")[0] == {"jump": 2}
    assert asked({"actions": ["2", "1"]}, "1\n")[0] == "1"
    assert asked("What now?", "  go home \n")[0] == "go home"


def test_a_person_may_leave_and_text_cannot_take_the_terminal():
    """R-A2: quitting, or closed input, is an error; terminal escapes are shown, not executed."""
    with pytest.raises(AgentError, match="quit without an answer"):
        asked("q", "/quit\n")
    with pytest.raises(AgentError, match="standard input is closed"):
        asked("q")
    _, shown = asked("a\x1b[2Jb", "x\n")
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown


def test_a_real_terminal_is_used_whatever_the_standard_streams_are(tmp_path):
    """R-A2: with input and output redirected, the person is still asked at the terminal."""
    program = (
        "import asyncio; from proctor.agents.base import AgentRequest\n"
        "from proctor.agents.registry import agent_config\n"
        "reply = asyncio.run(agent_config({'kind': 'human'}).create().run(AgentRequest('Well?')))\n"
        "import sys; open(sys.argv[1], 'w').write(reply.answer)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover (the child, which becomes another program)
        os.dup2(0, 9)  # a terminal that nobody holds open is hung up
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.execv(sys.executable, [sys.executable, "-c", program, str(tmp_path / "answer")])
    seen = b""
    while b"answer (/quit" not in seen and select.select([terminal], [], [], 60)[0]:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"fine\n")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"Well?" in seen
    assert status == 0
    assert (tmp_path / "answer").read_text() == "fine"
