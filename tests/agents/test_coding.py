"""Coding agents: presets, their sessions merged with what the gateway saw."""

import json
import stat
import sys
import textwrap
from pathlib import Path

import pytest

import proctor
from proctor.agents._coding import PRESETS, CodingAgentConfig
from proctor.agents.registry import agent_config, kind_class
from proctor.llm import MockLLM

# A program with the manners of `claude -p`: prompt on standard input, a session on standard output.
CLAUDE = """
    #!{python}
    import json, os, sys, urllib.request
    assert "-p" in sys.argv and sys.argv[sys.argv.index("--model") + 1] == "m"
    assert sys.argv[-1] == "--extra", sys.argv
    home, here = os.environ["CLAUDE_CONFIG_DIR"], os.getcwd()
    assert os.path.basename(here) == "workspace" and os.listdir(here) == []
    prompt = sys.stdin.read()
    def line(kind, **more):
        print(json.dumps({{"type": kind, "session_id": "s", **more}}), flush=True)
    def ask(messages):
        body = {{"model": "m", "max_tokens": 9, "messages": messages}}
        url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
        key = os.environ["ANTHROPIC_API_KEY"]
        headers = {{"content-type": "application/json", "x-api-key": key}}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            message = json.load(answer)
        line("assistant", message=message)
        return message
    line("system", subtype="init", model="m")
    messages = [{{"role": "user", "content": prompt}}]
    message = ask(messages)
    call = message["content"][-1]
    if call["type"] == "tool_use":
        open("made.txt", "w").write("x")
        if "telemetry" in prompt and "CLAUDE_CODE_ENABLE_TELEMETRY" in os.environ:
            _, trace, parent, _ = os.environ["TRACEPARENT"].split("-")
            texts = {{"span.type": "tool", "tool_name": "Write", "tool_use_id": call["id"]}}
            attributes = [
                {{"key": key, "value": {{"stringValue": value}}}} for key, value in texts.items()
            ]
            span = {{"traceId": trace, "spanId": "00000000000000aa", "parentSpanId": parent,
                    "name": "claude_code.tool", "startTimeUnixNano": "1700000000000000000",
                    "endTimeUnixNano": "1700000001000000000", "attributes": attributes}}
            scope = {{"name": "com.anthropic.claude_code.tracing"}}
            sent = {{"resourceSpans": [{{"scopeSpans": [{{"scope": scope, "spans": [span]}}]}}]}}
            url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
            headers = {{"content-type": "application/json"}}
            urllib.request.urlopen(urllib.request.Request(url, json.dumps(sent).encode(), headers))
        result = {{"type": "tool_result", "tool_use_id": call["id"], "content": "written"}}
        line("user", message={{"role": "user", "content": [result]}})
        messages += [{{"role": "assistant", "content": message["content"]}},
                     {{"role": "user", "content": [result]}}]
        message = ask(messages)
    failed = "fail" in prompt
    line("result", subtype="success", is_error=failed, result=message["content"][0]["text"],
         total_cost_usd=0.5)
    sys.exit(1 if failed else 0)
"""


def trace_of(run: proctor.Run, trial: proctor.Trial) -> proctor.Trace:
    trace = run.trace(trial)
    assert trace is not None
    return trace


def test_a_session_joins_what_the_gateway_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-N3: each call is one span: usage from the gateway, tools and answer from the session."""
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(textwrap.dedent(CLAUDE.format(python=sys.executable)).lstrip())
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    call = {"name": "Write", "arguments": {"path": "made.txt"}}
    script = [
        {
            "when": {"tool_result": True},
            "text": "Made it.",
            "usage": {"input": 9, "output": 4},
            "times": "forever",
        },
        {
            "when": "make",
            "tool_calls": [call],
            "usage": {"input": 5, "output": 3},
            "times": "forever",
        },
        {"text": "cannot", "usage": {"input": 2, "output": 1}},
    ]
    with MockLLM(script) as server:
        agent = {
            "kind": "claude_code",
            "model": "m",
            "arguments": ["--extra"],
            "gateway": {"upstream": {"anthropic": server.url}},
        }
        cases = [
            {"id": "a", "input": "make a file", "correctness": {"exact_match": "Made it."}},
            {"id": "b", "input": "fail", "correctness": {"exact_match": "x"}},
            {
                "id": "c",
                "input": "make it with telemetry",
                "correctness": {"exact_match": "Made it."},
            },
        ]
        suite = tmp_path / "suite.yaml"
        suite.write_text(json.dumps({"agent": agent, "cases": cases}))
        run = proctor.run(suite, results=tmp_path / "results", concurrency=1, trials=1)
    trials = {trial.case: trial for trial in run.trials}
    assert trials["a"].passed, trials["a"]
    trace = trace_of(run, trials["a"])
    calls = [span for span in trace.spans if span.kind == "llm"]
    assert [(s.input_tokens, s.output_tokens) for s in calls] == [(5, 3), (9, 4)]
    (tool,) = (span for span in trace.spans if span.kind == "tool")
    assert (tool.tool_name, tool.tool_output, tool.parent_id) == (
        "Write",
        "written",
        trace.spans[0].span_id,
    )
    # The session has no times: the call begins when the reply that asked for it has ended.
    assert calls[0].end_ns == tool.start_ns <= (tool.end_ns or 0)
    assert 0 < (trace.duration or 0) < 3600
    assert set(trace.observed) >= {"model_calls", "tool_calls", "arguments"}
    # The program's own span of the tool and the session's are one call.
    trace = trace_of(run, trials["c"])
    assert [span.model for span in trace.llm_calls] == ["m", "m"]
    (tool,) = [span for span in trace.spans if span.kind == "tool"]
    assert (tool.span_id, tool.duration) == ("00000000000000aa", 1.0)
    assert (tool.tool_input, tool.tool_output) == ({"path": "made.txt"}, "written")
    assert trials["c"].tool_calls == 1
    assert trials["b"].status == "failed"
    assert "cannot" in str(trials["b"].error)


def test_presets_are_kinds() -> None:
    """R-N3: every preset is a kind; a missing program is an error that says how to install it."""
    for kind, preset in PRESETS.items():
        config = agent_config({"kind": kind, "command": ["no-such-program-here"], "model": "m"})
        assert type(config) is kind_class(kind)
        assert isinstance(config, CodingAgentConfig)
        line = config.command_line()
        assert line[0] == "no-such-program-here"
        assert "m" in line
        with pytest.raises(proctor.ProctorError) as raised:
            config.check()
        assert raised.value.hint == preset.install
    codex = agent_config({"kind": "codex", "gateway": False, "arguments": ["-s", "x"]})
    assert isinstance(codex, CodingAgentConfig)
    line = codex.command_line()
    assert line[:2] == ["codex", "exec"]
    assert line[-3:] == ["-s", "x", "-"]
    assert "proctor" not in " ".join(line)


# A program that speaks the Agent Client Protocol: one tool call, which needs permission.
ACP = """
    import json, os, sys
    def send(**message):
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
    def update(**what):
        send(method="session/update", params={"sessionId": "s", "update": what})
    for line in sys.stdin:
        message = json.loads(line)
        method, key = message.get("method"), message.get("id")
        if method == "initialize":
            send(id=key, result={"protocolVersion": 1, "agentCapabilities": {}})
        elif method == "session/new":
            assert message["params"]["cwd"] == os.getcwd()
            send(id=key, result={"sessionId": "s"})
        elif method == "session/prompt":
            turn, text = key, message["params"]["prompt"][0]["text"]
            if text == "die":
                sys.exit("no idea")
            call = {"toolCallId": "t1", "title": "write", "rawInput": {"path": "a"}}
            update(sessionUpdate="tool_call", **call)
            options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
            params = {"sessionId": "s", "toolCall": call, "options": options}
            send(id=77, method="session/request_permission", params=params)
        elif key == 77:
            chosen = message["result"]["outcome"]["optionId"]
            update(sessionUpdate="tool_call_update", toolCallId="t1", status="completed",
                   rawOutput={"chosen": chosen})
            for piece in ("Made ", "it."):
                content = {"type": "text", "text": piece}
                update(sessionUpdate="agent_message_chunk", content=content)
            send(id=turn, result={"stopReason": "end_turn"})
"""


def test_an_agent_that_speaks_acp(tmp_path: Path) -> None:
    """R-N3: a turn over the Agent Client Protocol: answer, tools, permissions, a dead agent."""
    pytest.importorskip("acp")
    program = tmp_path / "agent.py"
    program.write_text(textwrap.dedent(ACP))
    agent = {"kind": "acp", "command": [sys.executable, str(program)], "gateway": False}
    cases = [
        {"id": "a", "input": "make it", "correctness": {"exact_match": "Made it."}},
        {"id": "b", "input": "die", "correctness": {"exact_match": "x"}},
    ]
    suite = tmp_path / "suite.yaml"
    suite.write_text(json.dumps({"agent": agent, "cases": cases}))
    run = proctor.run(suite, results=tmp_path / "results", trials=1)
    trials = {trial.case: trial for trial in run.trials}
    assert trials["a"].passed, trials["a"]
    (tool,) = (span for span in trace_of(run, trials["a"]).spans if span.kind == "tool")
    assert (tool.tool_name, tool.tool_input) == ("write", {"path": "a"})
    assert tool.tool_output == {"chosen": "yes"}
    assert trials["b"].status == "failed"
    assert "no idea" in str(trials["b"].error)


# Calls a model through the gateway, reports the tool call that it requested, and calls it again.
ACP_CALLS = ACP.replace(
    """call = {"toolCallId": "t1", "title": "write", "rawInput": {"path": "a"}}""",
    """import urllib.request
            def ask(*said):
                body = {"model": "m", "messages": [{"role": "user", "content": "q"}, *said]}
                url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
                head = {"content-type": "application/json"}
                request = urllib.request.Request(url, json.dumps(body).encode(), head)
                return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
            asked = ask()
            requested = asked["tool_calls"][0]
            ask(asked, {"role": "tool", "content": "hi", "tool_call_id": requested["id"]})
            call = {"toolCallId": text.format(requested["id"]), "title": "Terminal: echo",
                    "rawInput": {"own": 1}}""",
).replace('toolCallId="t1"', 'toolCallId=call["toolCallId"]')


def test_tools_of_acp_have_the_names_that_the_model_requested(tmp_path: Path) -> None:
    """R-N3, R-T3: titles are for people; a call known from the gateway is one span."""
    pytest.importorskip("acp")
    program = tmp_path / "agent.py"
    program.write_text(textwrap.dedent(ACP_CALLS))
    requested = {"tool_calls": [{"name": "run_shell", "arguments": {"command": "echo"}}]}
    # Ids as Claude Code and Codex report them, as Gemini CLI does, and unknown ones.
    cases = [{"id": f"c{n}", "input": text, "path": {"expected_tools": ["run_shell"]}}
             for n, text in enumerate(("{0}", "run_shell__{0}", "run_shell-77"))]  # fmt: skip
    with MockLLM(lambda request: {"text": "ok"} if len(request.messages) > 1 else requested) as llm:
        through = {"upstream": {"openai": llm.base_url}}
        agent = {"kind": "acp", "command": [sys.executable, str(program)], "gateway": through}
        suite = tmp_path / "suite.yaml"
        suite.write_text(json.dumps({"agent": agent, "cases": cases}))
        run = proctor.run(suite, results=tmp_path / "results", trials=1)
    for trial in run.trials:
        tools = [span for span in trace_of(run, trial).spans if span.kind == "tool"]
        assert [(tool.tool_name, tool.tool_output) for tool in tools] == [
            ("run_shell", {"chosen": "yes"})
        ], (trial.case, trial.error)
        own = {"own": 1} if trial.case == "c2" else {"command": "echo"}
        assert tools[0].tool_input == own


def test_a_program_that_trusts_pwd_works_in_its_workspace(tmp_path: Path) -> None:
    """R-N3: OpenCode works where PWD points to; that must not be the folder of the user."""
    code = "import os; print(os.environ['PWD'] == os.getcwd())"
    agent = {"kind": "command", "command": [sys.executable, "-c", code], "protocol": "text"}
    case = {"input": "x", "correctness": {"exact_match": "True"}}
    suite = tmp_path / "suite.yaml"
    suite.write_text(json.dumps({"agent": agent, "cases": [case]}))
    (trial,) = proctor.run(suite, results=tmp_path / "results", trials=1).trials
    assert trial.passed, trial
