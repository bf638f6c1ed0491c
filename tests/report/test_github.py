"""GitHub annotations and the step summary, read by the rules of the runner."""

import re

from report_parts import case, check, hostile, mixed, report

from proctor.report import _github
from proctor.report.outputs import render

COMMAND = re.compile(r"\s*::(?P<name>[\w-]+)(?: (?P<properties>.*?))?::(?P<data>.*)")


def commands(text):
    """What the runner would obey: `::name …::` at the start of a line, `##[name]` anywhere."""
    found = []
    for line in text.replace("\r", "\n").split("\n"):
        if match := COMMAND.match(line):
            written = (part.partition("=") for part in (match["properties"] or "").split(","))
            properties = {key: decoded(value) for key, _, value in written}
            found.append((match["name"], properties, decoded(match["data"])))
        else:
            assert "##[" not in line
            assert "##vso[" not in line
            assert not line.strip(), f"not a command: {line}"
    return found


def decoded(text):
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ",")):
        text = text.replace(code, character)
    return text.replace("%25", "%")


def test_errors_block_and_warnings_do_not():
    """R-Q5: ::error for what blocks, ::warning for what does not, at file and line of the case."""
    found = commands(render("github", mixed()))
    assert [(name, properties["title"]) for name, properties, _ in found] == [
        ("error", "wrong: expected_in_answer"),
        ("error", "weak: failed"),
        ("error", "crash: could not be judged"),
        ("warning", "good: max_tool_calls"),
        ("warning", "weak: tone"),
        ("warning", "late: stopped"),
    ]
    assert all(p["file"] == "suite.yaml" and p["line"] == "12" for _, p, _ in found)
    assert found[0][2] == "the answer lacks 'Paris'\nactual: \"Rome\""


def test_special_characters_are_escaped():
    """R-Q5: %, line breaks, colons and commas come through as they were."""
    of = report(
        case("a", "hard_fail", check(name="x:y,z%", reason="50% of a: b, c"), agent="x"),
    )
    ((_, properties, message),) = commands(render("github", of))
    assert properties["title"] == "a: x:y,z%"
    assert message == "50% of a: b, c"


def test_at_most_ten_inline_errors_first():
    """R-Q5: ten annotations at most, the last one counts the rest; all are in the summary."""
    cases = [case(f"w{i}", "passed", check("warn", "tone", reason="rude")) for i in range(8)]
    cases += [case(f"e{i}", "hard_fail", check()) for i in range(6)]
    found = commands(render("github", report(*cases)))
    assert len(found) == 10
    assert [name for name, _, _ in found[:6]] == ["error"] * 6
    assert found[-1][2] == "5 more messages, 0 of them errors: see the step summary"
    summary = _github.summary(render("markdown", report(*cases))).decode()
    assert all(f"w{i}" in summary for i in range(8))
    assert summary.count("FAIL **expected") == 6


def test_exactly_ten_are_all_inline():
    """R-Q5: nothing is held back when all fit."""
    cases = [case(f"e{i}", "hard_fail", check()) for i in range(10)]
    found = commands(render("github", report(*cases)))
    assert [properties.get("title") for _, properties, _ in found] == [
        f"e{i}: expected_in_answer" for i in range(10)
    ]


def test_files_are_named_from_the_repository(tmp_path, monkeypatch):
    """R-Q5: a step that works in a subfolder still points at the right file."""
    (tmp_path / "evals").mkdir()
    monkeypatch.chdir(tmp_path / "evals")
    text = _github.render(mixed(), {"GITHUB_WORKSPACE": str(tmp_path)})
    assert {properties["file"] for _, properties, _ in commands(text)} == {"evals/suite.yaml"}


def test_hostile_text_gives_no_command_of_its_own():
    """R-Q5: every command is one of ours, whatever agents said."""
    for name, properties, _ in commands(render("github", hostile())):
        assert name in ("error", "warning")
        assert properties["title"].split(":")[0] in ("failing", "crashing", "weak", "suite.yaml")


def test_console_lines_are_no_commands():
    """R-Q5: the table beside the annotations is in the same log, and obeys the same rules."""
    import click

    for line in click.unstyle(render("console", hostile())).split("\n"):
        assert not line.lstrip().startswith("::")
        assert "##[" not in line
        assert "##vso[" not in line


def test_summary_keeps_within_its_limit():
    """R-Q5: GitHub refuses a summary over 1 MiB, so ours is cut and says so."""
    cases = [case(f"c{i}", "hard_fail", check(reason="r" * 400)) for i in range(3000)]
    written = _github.summary(render("markdown", report(*cases)), taken=1000)
    assert len(written) <= _github.SUMMARY_LIMIT - 1000
    assert written.decode().endswith("a step summary holds at most 1 MiB\n")
    assert _github.summary(render("markdown", report(*cases)), taken=_github.SUMMARY_LIMIT) == b""
