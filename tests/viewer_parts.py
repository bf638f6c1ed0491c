"""Runs of a small shop for tests of the viewer: conversations, an image, hostile text, a diff."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import proctor
from proctor.background import run_sync
from proctor.spec import Case, Suite
from proctor.trace.model import Message, ToolCall
from proctor.trials.options import RunOptions
from proctor.trials.prepare import prepare
from proctor.trials.session import new_folder, run_session

PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
        "0000000d49444154789c6360f8cfc0f01f0005050102cfa02ccd0000000049454e44ae426082"
    )
).decode()
HOSTILE = (
    "<script>window.hacked=1</script></textarea></style></pre>"
    "<img src=x onerror=window.hacked=1>{{7*7}}{%x%}'\"`&lt; [a](javascript:alert(1)) "
    "![b](http://example.com/x.png) <http://example.com> \x1b[31mred\x1b[0m \u202egnp.exe\0"
)
ANSWER = """Order **4711** was shipped.

| item | state |
|---|---|
| lamp | shipped |

```python
print("<b>done</b>")
```
See [our page](https://example.com/orders) ![logo](https://example.com/logo.png).
"""


def shop_agent(right: bool = True, model: str = "gpt-4o-mini"):
    """An agent that looks an order up, with a picture in its question, and answers."""

    def agent(question: str) -> str:
        system = Message("system", "You are the desk of a *shop*.")
        asked = Message("user", question, other=("image_url",))
        call = ToolCall("find_order", {"order": 4711}, id="call_1")
        picture = json.dumps({"media_type": "image/png", "data": PIXEL})
        with proctor.capture.llm_call(
            model, input_messages=(system, asked), attributes={"picture": picture}
        ) as step:
            step.output_messages = (Message("assistant", None, (call,)),)
            step.input_tokens, step.output_tokens = 120, 18
        with proctor.capture.tool_call("find_order", {"order": 4711}) as tool:
            tool.tool_call_id = "call_1"
            tool.tool_output = {"order": 4711, "state": "shipped" if right else "unknown"}
        if not right:
            with proctor.capture.tool_call("delete_account", {"customer": 7}) as tool:
                tool.tool_output = "deleted"
        result = Message("tool", '{"order": 4711}', tool_call_id="call_1")
        said = Message("assistant", None, (call,))
        with proctor.capture.llm_call(model, input_messages=(system, asked, said, result)) as step:
            answer = ANSWER if right else "I deleted your account."
            step.output_messages = (Message("assistant", answer),)
            step.input_tokens, step.output_tokens = 180, 40
        return answer

    return agent


def hostile_agent(_question: str) -> str:
    """An agent whose every text tries to be markup."""
    message = Message("user", HOSTILE, other=(HOSTILE,), name=HOSTILE)
    with proctor.capture.llm_call(HOSTILE, input_messages=(message,)) as step:
        step.output_messages = (Message("assistant", HOSTILE, (ToolCall(HOSTILE, HOSTILE),)),)
    with proctor.capture.tool_call(HOSTILE, {"q": HOSTILE}) as call:
        call.tool_output = HOSTILE
    with proctor.capture.llm_call("big", input_messages=(message,)) as step:
        step.output_messages = (Message("assistant", "x<b>" * 2_500_000),)
    return HOSTILE


def offline_agent(_question: str) -> str:
    """An agent whose service is away."""
    raise ConnectionError("the shop is closed")


def shop_suite(*names: str) -> Suite:
    """Cases that a careful agent passes."""
    checks = {
        "correctness": {"expected_in_answer": ["shipped"]},
        "path": {"forbidden_tools": ["delete_account"]},
    }
    return Suite(
        cases=[Case(id=name, input=f"Where is my order? ({name})", **checks) for name in names]
    )


def run_suite(suite: Suite, agents: dict, results: Path, **options) -> Path:
    """Run in a thread of its own: a browser's driver has an event loop in this one."""
    ready = prepare(suite, RunOptions(**{"trials": 2, **options}), agents=agents)
    return finish(ready, new_folder(ready, results))


def finish(ready, folder) -> Path:
    """Run everything in a folder that is left to do."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: run_sync(run_session(ready, folder))).result().path
