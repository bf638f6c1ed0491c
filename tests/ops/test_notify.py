"""Notifications: what is sent, when, to whom, and that nothing about them harms a run."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import proctor
from hypothesis import given
from hypothesis import strategies as st
from ops_parts import SECRET, sink
from run_parts import only_run, write_suite

from proctor.errors import ProctorError
from proctor.ops.notify import (
    DEFAULT_TEMPLATE,
    FIELDS,
    Notifier,
    NotifyRequest,
    checked_template,
    masked,
    notice,
    plain_line,
    render,
    without_address,
)


def run(suite: Path, *args: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    return proctor("run", suite, "--results", suite.parent / "results", "--quiet", *args, **more)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "wrong.py").write_text("def agent(input): return 'no'\n")
    return write_suite(tmp_path, cases=2, trials=2)


def everything_kept(folder: Path) -> str:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "\n".join(path.read_bytes().decode("utf-8", "replace") for path in files)


def test_the_end_of_a_run_is_told_and_its_address_kept_secret(suite: Path) -> None:
    """R-Q7: one plain message with what passed; no secret of the address is printed or kept."""
    with sink() as server:
        done = run(suite, "--notify", server.address)
    assert (done.returncode, done.stderr) == (0, "")
    [message] = server.messages
    folder = only_run(suite.parent / "results")
    assert message["type"] == "success"
    assert message["title"] == "proctor: suite passed"
    assert "2 of 2 cells passed; 4 of 4 judged trials" in message["message"]
    assert str(folder) in message["message"]
    results = suite.parent / "results"
    assert SECRET not in done.stdout + everything_kept(results)
    assert "--notify 'json://…'" in (results / "audit.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "events"),
    [
        (["--notify-on", "failure"], None),
        (["--notify-on", "budget"], None),
        (["--notify-on", "failure", "--agent", "wrong:agent"], "end, failure"),
        (["--notify-on", "budget", "--max-trials", "1"], "end, failure, budget"),
        (["--notify-on", "failure", "--notify-on", "end"], "end"),
    ],
)
def test_only_what_was_asked_for_is_told(
    suite: Path, options: list[str], events: str | None
) -> None:
    """R-Q7: each event has its own meaning; nothing is sent when none of them happened."""
    with sink() as server:
        run(suite, "--notify", server.address, "--notify-template", "{events}", *options)
    assert [each["message"] for each in server.messages] == ([events] if events else [])


def test_a_regression_is_told_only_when_the_gate_finds_one(suite: Path) -> None:
    """R-Q7: the run is held against the one tagged baseline, by the rules of `proctor gate`."""
    results = suite.parent / "results"
    wants = ("--trials", "12", "--notify-on", "regression")
    with sink() as server:
        first = run(suite, *wants, "--notify", server.address)
        assert "not compared with 'baseline'" in first.stderr
        assert first.returncode == 0
        proctor("runs", "tag", only_run(results), "baseline", "--results", results)
        run(suite, *wants, "--notify", server.address)
        assert server.messages == []
        # The agent of the same name gets worse.
        bots = suite.parent / "bots.py"
        bots.write_text(bots.read_text() + "\nasync def steady(input, seed): return 'no'\n")
        run(suite, *wants, "--notify", server.address)
    [message] = server.messages
    assert "REGRESSION against baseline" in message["message"]
    assert message["type"] == "failure"


def test_a_run_that_cannot_begin_is_a_failure(suite: Path) -> None:
    """R-Q7: an error before the run is notified too: at night, no one watches the terminal."""
    suite.write_text("version: 1\nagent: bots:steady\ncases: [{id: a, inptu: b}]\n")
    with sink() as server:
        done = run(suite, "--notify", server.address, "--notify-on", "failure")
    assert done.returncode == 2
    [message] = server.messages
    assert message["title"] == "proctor: suite did not start"
    assert "the key 'input' is missing" in message["message"]


def test_a_service_that_fails_is_told_and_changes_nothing(suite: Path) -> None:
    """R-Q7: the run's exit code and report are as without it; the reason holds no secret."""
    with sink(status=500) as server:
        done = run(suite, "--notify", server.address)
    assert done.returncode == 0
    assert "2 of 2 cells passed" in done.stdout
    assert done.stderr.startswith("warning: notification: json://… was not notified: ")
    assert "500" in done.stderr
    assert SECRET not in done.stderr


def test_a_service_that_never_answers_is_waited_for_only_so_long() -> None:
    """R-Q7: `close` returns at its bound while the request still hangs."""
    problems: list[str] = []
    with sink(silent=True) as server:
        notifier = Notifier(
            NotifyRequest((server.address,), frozenset({"end"}), "x"), problems.append
        )
        assert notifier.send(notice(["end"], name="n", outcome="passed"))
        notifier.close(max_wait=0.2)
        assert not server.released.is_set()
    assert problems == ["json://… did not answer within 0.2 s"]


def test_several_addresses_and_one_down(suite: Path) -> None:
    """R-Q7: a service that is down does not affect the others."""
    with sink() as server:
        down = f"json://127.0.0.1:1/{SECRET}"
        done = run(suite, "--notify", down, "--notify", server.address)
    assert len(server.messages) == 1
    assert done.returncode == 0
    assert done.stderr.count("was not notified") == 1
    assert SECRET not in done.stderr


def test_urls_in_settings_are_used_and_never_shown(suite: Path) -> None:
    """R-Q7: `notify` in proctor.yaml; `config show` masks addresses; options win."""
    with sink() as server:
        (suite.parent / "proctor.yaml").write_text(
            f"notify:\n  to: [{server.address!r}]\n  on: [failure]\n  template: '{{outcome}}!'\n"
        )
        run(suite)
        assert server.messages == []
        run(suite, "--agent", "wrong:agent")
    assert [each["message"] for each in server.messages] == ["failed!"]
    expected = proctor("config", "show", cwd=suite.parent)
    assert "notify.to" in expected.stdout
    assert SECRET not in expected.stdout + expected.stderr
    assert SECRET not in everything_kept(suite.parent / "results")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--notify", f"jsn://{SECRET}"], "no service is called 'jsn'\nhint: did you mean"),
        (["--notify", SECRET], "this URL has no scheme"),
        (["--notify", f"slack://{SECRET}"], "an incomplete or malformed slack:// URL"),
        (["--notify-template", "{nmae}"], "no field 'nmae'\nhint: did you mean 'name'"),
        (["--notify-template", "{path.parent}"], "no field 'path.parent'"),
        (["--notify-template", "{path!r}"], "the field 'path' has a format"),
        (["--notify-template", "{"], "not a template"),
        (["--notify-template", "@nowhere.txt"], "cannot read the template"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_spent(
    suite: Path, options: list[str], expected: str
) -> None:
    """R-Q7: wrong addresses and templates are errors of use, without the address."""
    done = run(suite, *options)
    assert done.returncode == 2
    assert expected in done.stderr
    assert SECRET not in done.stderr + done.stdout
    assert not (suite.parent / "results").exists()


def test_without_the_package_one_line_says_what_to_install(suite: Path) -> None:
    """R-Q7: the extra is named; nothing runs."""
    hide = "import sys; sys.modules['apprise'] = None\n"
    hide += "import importlib.util as u; real = u.find_spec\n"
    hide += "u.find_spec = lambda n, *a: None if n == 'apprise' else real(n, *a)\n"
    code = f"{hide}from proctor.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(suite), "--notify", "json://x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert 'pip install "proctor[notify]"' in done.stderr


def test_hostile_text_is_only_text() -> None:
    """R-Q7: no escape, no mention, no line of its own, no field of the template, no secret."""
    bad = "\x1b[31m@everyone <!channel>\n{path.__class__} password=hunter2hunter2"
    with sink() as server:
        request = NotifyRequest((server.address,), frozenset({"end"}), "{failures}|{name}")
        notifier = Notifier(request, pytest.fail)
        notifier.send(notice(["end"], name="n", outcome="failed", failures=bad))
        notifier.close()
    [message] = server.messages
    assert "@everyone" not in message["message"]
    assert "<!channel" not in message["message"]
    assert message["message"].replace("\u200b", "") == (
        "@everyone <!channel> {path.__class__} password=[redacted:password]|n"
    )


def test_an_interrupted_run_is_told_of(suite: Path) -> None:
    """R-Q7: Ctrl-C ends the run as usual, and a notification is sent."""
    argv = [sys.executable, "-m", "proctor", "run", str(suite), "--json", "--agent", "bots:wait"]
    with sink() as server:
        options = ["--notify", server.address, "--notify-on", "failure"]
        with subprocess.Popen(
            [*argv, *options, "--results", str(suite.parent / "results")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stderr is not None
            assert any('"started"' in line for line in child.stderr)
            child.send_signal(signal.SIGINT)
            child.stderr.read()
        assert child.returncode == 130
    assert [each["title"] for each in server.messages] == ["proctor: suite interrupted"]


@given(st.text())
def test_values_are_one_harmless_line(text: str) -> None:
    """R-Q7: whatever the text, no control character, no line break, no mention."""
    line = plain_line(text)
    assert "\n" not in line
    assert "\x1b" not in line
    assert "@everyone" not in plain_line("@everyone" + text)


@given(st.text())
def test_templates_are_refused_or_filled(text: str) -> None:
    """R-Q7: a template that was taken can be filled with any values."""
    try:
        template = checked_template(text, "here")
    except ProctorError:
        return
    assert isinstance(render(template, notice(["end"], name="n", outcome="passed")), str)


def test_every_field_is_told_in_the_guide(root: Path) -> None:
    """R-Q7: the guide lists the fields that there are."""
    page = (root / "docs" / "how-to" / "get-notified.md").read_text()
    assert [name for name in FIELDS if f"`{{{name}}}`" not in page] == []
    assert DEFAULT_TEMPLATE.split("\n")[0] in page


def test_no_part_of_an_address_is_in_a_reason() -> None:
    """R-Q7: neither as written nor decoded."""
    address = "mailto://me:p%40ssw0rd@example.com/?to=boss@example.com"
    reason = without_address("login of me with p@ssw0rd, p%40ssw0rd at example.com", address)
    assert "ssw0rd" not in reason
    assert "example" not in reason
    assert masked(address) == "mailto://…"
