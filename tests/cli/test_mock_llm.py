"""`proctor mock-llm`: a real child process, asked over HTTP and stopped by a signal."""

import json
import signal
import subprocess
import sys

import httpx
import pytest

from proctor.cli.main import run

PROGRAM = "import sys; from proctor.cli.gateway import mock_llm; mock_llm(sys.argv[1:])"


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def environment_of(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(5)]
    return dict(line.removeprefix("export ").split("=", 1) for line in lines[1:])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_serves_until_it_is_stopped(tmp_path, how):
    """R-A6: prints what to export, answers, records what it was asked without keys, stops."""
    script, record = tmp_path / "script.yaml", tmp_path / "asked.jsonl"
    script.write_text("replies:\n  - text: hello\n")
    process = start(script, "--record", record)
    try:
        env = environment_of(process)
        assert set(env) == {
            "OPENAI_BASE_URL",
            "OPENAI_API_KEY",
            "ANTHROPIC_BASE_URL",
            "ANTHROPIC_API_KEY",
        }
        ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        url, key = f"{env['OPENAI_BASE_URL']}/chat/completions", {"authorization": "Bearer sk-1"}
        first = httpx.post(url, json=ask, headers=key)
        second = httpx.post(url, json=ask, headers=key)
    finally:
        process.send_signal(how)
        _, stderr = process.communicate(timeout=20)
    assert first.json()["choices"][0]["message"]["content"] == "hello"
    assert second.status_code == 400
    assert process.returncode == 0
    assert "2 requests, 1 without a reply" in stderr
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["reply"] for line in lines] == [0, None]
    assert lines[0]["body"] == ask
    assert "sk-1" not in record.read_text()


def test_a_port_of_ones_own(tmp_path):
    """R-A6: --port is used; a port that is taken is one line and exit 2 through the command."""
    from proctor.errors import ProctorError
    from proctor.llm import MockLLM

    with MockLLM([]) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with pytest.raises(ProctorError, match=f"port {port} cannot be opened"):
            MockLLM([], port=port).start()
    with MockLLM([], port=port) as again:
        assert again.url.endswith(f":{port}")


def test_a_slip_in_the_script_is_named(tmp_path):
    """R-A6: nothing is served from a script that is wrong."""
    script = tmp_path / "script.yaml"
    script.write_text("- txet: hello\n")
    process = start(script)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode != 0
    assert stdout == ""
    assert "replies[0]: unknown key 'txet'" in stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\x00\xff", "not UTF-8 text at byte 1"),
    ],
)
def test_a_script_that_cannot_be_read_is_told_in_words(tmp_path, capsys, content, said):
    """R-A6: one line without Python's own words, and exit 2."""
    script = tmp_path / "script.yaml"
    if content is not None:
        script.write_bytes(content)
    assert run(["mock-llm", str(script)]) == 2
    assert f"error: {script}: {said}\n" in capsys.readouterr().err
