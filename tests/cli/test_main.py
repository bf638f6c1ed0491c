"""How the command line behaves when something goes wrong, seen from outside the process."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from proctor.cli._command import Command, LazyGroup
from proctor.cli.main import MOVED, SECTIONS, cli
from proctor.errors import ProctorError, did_you_mean
from proctor.sanitize import printable

# A command line with one more command, as a later module would add it.
WITH_EXTRA = """
import sys
from proctor.cli._command import Entry
from proctor.cli.main import cli, main
cli.table["extra"] = Entry("extra", "For tests.")
main()
"""

EXTRA = """
import signal, sys, time
import click
from proctor.errors import ProctorError

@click.command()
@click.argument("what")
@click.pass_context
def extra(ctx, what):
    if what == "problem":
        raise ProctorError("bad \\x1b[31mred\\nline", where="a.json:3:1", hint="write it again")
    if what == "code":
        raise ProctorError("the gate failed", exit_code=1)
    if what == "bug":
        raise KeyError("oops")
    if what == "exit":
        ctx.exit(7)
    if what == "flood":
        while True:
            click.echo("x" * 1000)
    if what == "wait":
        print("ready", flush=True)
        signal.pause()
    if what == "surrogate":
        print("caf\\udce9 \\u2713")
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "extra.py").write_text(EXTRA)
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}){WITH_EXTRA}"]


def run(command: list[str], *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *args],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, **env},
    )


def test_a_problem_is_one_line_and_a_hint(command: list[str]) -> None:
    """R-R11: what the user can put right ends with code 2, says where, and shows no traceback."""
    done = run(command, "extra", "problem")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        r"error: a.json:3:1: bad \x1b[31mred\nline",
        "hint: write it again",
    ]


def test_a_bug_is_not_a_failed_gate(command: list[str]) -> None:
    """R-R11: 1 means that a gate failed, so a bug must end with 2; only --debug shows where."""
    done = run(command, "extra", "bug")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: unexpected KeyError: 'oops'\n")
    done = run(command, "--debug", "extra", "bug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "extra.py" in done.stderr


@pytest.mark.parametrize(("what", "code"), [("code", 1), ("exit", 7)])
def test_exit_codes_pass_through(command: list[str], what: str, code: int) -> None:
    assert run(command, "extra", what).returncode == code


def test_interrupt_ends_with_130(command: list[str]) -> None:
    """R-R11: SIGINT gives 130 and no traceback."""
    with subprocess.Popen(
        [*command, "extra", "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate()
    assert child.returncode == 130
    assert errors == "interrupted\n"


def test_a_reader_that_leaves_is_no_error(command: list[str]) -> None:
    with subprocess.Popen(
        [*command, "extra", "flood"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(10)
        child.stdout.close()
        errors = child.stderr.read()
    assert child.returncode == 141
    assert errors == b""


def test_what_the_terminal_cannot_show_is_escaped(command: list[str]) -> None:
    done = run(command, "extra", "surrogate", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.strip() == r"caf\udce9 \u2713"


def test_unknown_command_and_option_suggest_the_nearest(command: list[str]) -> None:
    done = run(command, "extraa")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "error: no such command 'extraa'; did you mean 'extra'?"
    done = run(command, "--debgu")
    assert done.returncode == 2
    assert "--debug" in done.stderr


def test_without_arguments_help_is_shown(command: list[str]) -> None:
    done = run(command)
    assert done.returncode == 2
    assert "Start:" in done.stderr


TREE = """
demo init import-suite doctor config{show schema completion}
validate test ci baseline{save list diff}
run rerun list{cases experiments} data{show diff} agent{add list test remove} schedule{add list
remove run serve} warm scenario{build check store fetch}
results sql report view compare leaderboard gate ab profile fork why power runs{status tag note
label verify validity audit share sync export import}
trace{list show query convert score} serve store{stats add prune export token audit}
diagnose case{from}
trail{run score compare}
gateway judge{audit} mcp{skill lint} mock-llm
"""


def test_the_command_tree() -> None:
    """R-S6: the commands that the documentation names, in the order of `--help`, and no others."""
    context = click.Context(cli)
    found: list[str] = []
    for name in (name for names in SECTIONS.values() for name in names):
        child = cli.get_command(context, name)
        inner = child.list_commands(context) if isinstance(child, click.Group) else []
        found.append(name + (f"{{{' '.join(inner)}}}" if inner else ""))
    assert found == re.findall(r"[\w-]+(?:\{[^}]*\})?", " ".join(TREE.split()))
    assert len(found) == len(cli.list_commands(context))


SCREEN = 40
"""Lines of 80 columns that every usual terminal window shows."""


def every_command(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield f"{path} {name}", found
        if isinstance(found, click.Group):
            yield from every_command(found, f"{path} {name}")


def test_help_fits_a_screen() -> None:
    """R-N13: the help of every command has at most 40 lines, and its options are grouped where
    there are many; the list of all commands has one line for each and no more than a page."""
    for path, found in every_command(cli, "proctor"):
        context = click.Context(found, info_name=path, terminal_width=80, max_content_width=80)
        lines = found.get_help(context).splitlines()
        assert len(lines) <= SCREEN, f"{path}: {len(lines)} lines"
        if not isinstance(found, Command):
            continue
        options = [str(each.name) for each in found.params if isinstance(each, click.Option)]
        assert len(options) <= 12 or found.brief, f"{path}: {len(options)} options, no groups"
        if found.brief:
            grouped = [name for names in found.groups.values() for name in names]
            assert sorted({*options} - {"help_all"}) == sorted(grouped), path
            assert any("--help-all" in line for line in lines)
    whole = cli.get_help(click.Context(cli, info_name="proctor", terminal_width=80)).splitlines()
    assert len(whole) <= 60


FORMER_WORDS = (
    *("honestly counted", "on an example it brings", "Try every case", "what runs came to"),
    *("Show what a run says", "Say how a run", "by themselves", "look after live traces"),
    *("Answer a SELECT", "Say something about", "the tab key", "the places each may hold"),
    *("Only cases such as", "Try this one instead", "Do what is left", "And again what"),
    *("worth a message", "held against", "to the platter", "in this sitting", "begun anew"),
    *("How to tell", "must bring", "demands a token", "gate comes to", "must stand in"),
    *("answered for only", "stands in the way", "stand beside", "told apart", "none known"),
    *("bears on it", "95 of 100", "they are of", "Be told", "Mend it", "Beside others"),
    *("Take the tool", "goes on after a crash", "places errors", "whoever", "somebody", "anew"),
    *("meanwhile", "at hand"),
)
"""What messages, help and pages said before, and what everyday English does not say."""


def test_plain_words(root: Path) -> None:
    """R-N13: the strings that users stumbled over are gone from commands, pages and documents."""
    shown = [path for path in (root / "src/proctor").rglob("*") if path.suffix in SHOWN]
    shown += [root / "README.md", root / "action.yml", root / "pyproject.toml"]
    # A measured figure of a page may well be in 95 of 100 cases.
    shown += [p for p in (root / "docs").rglob("*.md") if "explanation" not in p.parts]
    old = re.compile("|".join(rf"\b{re.escape(words)}\b" for words in FORMER_WORDS))
    found = [
        f"{path.relative_to(root)}: {match[0]}"
        for path in shown
        # Comments are for readers of the code.
        for match in old.finditer(re.sub(r"(?m)^ *# .*$", "", path.read_text(encoding="utf-8")))
    ]
    assert found == []


SHOWN = {".py", ".html", ".js", ".md", ".yaml", ".yml"}


def test_run_shows_its_common_options_first(command: list[str]) -> None:
    """R-N13: `run --help` has 12 options, `--help-all` every one, in groups, with all examples."""
    short, whole = (run(command, "run", flag).stdout for flag in ("--help", "--help-all"))
    assert len(re.findall(r"^  -", short, re.MULTILINE)) == 12 + 2
    assert "--notify-template" not in short
    names = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", whole, re.MULTILINE))
    declared = cli.get_command(click.Context(cli), "run")
    assert declared is not None
    assert names == {each.opts[-1] for each in declared.params if each.opts[-1][0] == "-"} | {
        "--help"
    }
    for title in ("Limits:", "Model calls:", "Notifications:", "Many machines:"):
        assert f"\n{title}\n" in whole
    assert whole.count("\n  proctor run ") > short.count("\n  proctor run ")


@pytest.mark.parametrize("word", MOVED)
def test_former_commands_name_their_successor(command: list[str], word: str) -> None:
    """R-S6: an old name ends with 2 and one line with the new one; `--help` does not list it."""
    done = run(command, word, "suite.yaml", "--whatever")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: `proctor {word}` is now `proctor ")
    named = re.findall(r"is now `proctor ([^`]*)`", line)[0].split()
    group: click.Command | None = cli
    for name in named:
        assert isinstance(group, click.Group)
        group = group.get_command(click.Context(group), name)
    assert group is not None
    assert word not in cli.table


@pytest.mark.parametrize(
    ("words", "successor"),
    [
        (("list", "agents"), "proctor agent list"),
        (("store", "keep", "x", "y"), "proctor scenario store"),
        (("store", "migrate"), "migrated when it is opened"),
        (("schedule", "export"), "proctor schedule run NAME --log"),
    ],
)
def test_former_subcommands(command: list[str], words: tuple[str, ...], successor: str) -> None:
    """R-S6: the same for commands of groups."""
    done = run(command, *words)
    assert done.returncode == 2
    assert successor in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_distinguishes_validate_test_and_check(command: list[str]) -> None:
    """R-S6: each of the three says what the other two do."""
    for words in ((), ("validate",), ("test",), ("scenario", "check")):
        text = " ".join(run(command, *words, "--help").stdout.split())
        assert "once" in text, words
        for name in ("validate", "test", "scenario check"):
            assert name in text, words


def walk(group: LazyGroup, path: str) -> Iterator[tuple[str, str, click.Command]]:
    context = click.Context(group)
    for name, entry in group.table.items():
        child = group.get_command(context, name)
        assert child is not None
        yield f"{path} {name}", entry.help, child
        if isinstance(child, LazyGroup):
            yield from walk(child, f"{path} {name}")


def test_tables_repeat_the_help_of_the_commands() -> None:
    """The line in a group's help is the first line of the command's own help."""
    for path, line, child in walk(cli, "proctor"):
        assert child.get_short_help_str(limit=200).rstrip(".") == line.rstrip("."), path


def test_completion_knows_the_commands() -> None:
    done = run(
        [sys.executable, "-m", "proctor"],
        _PROCTOR_COMPLETE="bash_complete",
        COMP_WORDS="proctor tr",
        COMP_CWORD="1",
    )
    assert done.stdout == "plain,trace\nplain,trail\n"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("tool_nam", "did you mean 'tool_name'?"),
        ("TOOL_NAME", "did you mean 'tool_name'?"),
        ("zzz", None),
    ],
)
def test_did_you_mean(word: str, hint: str | None) -> None:
    assert did_you_mean(word, ["tool_name", "kind"]) == hint


def test_errors_carry_what_where_and_what_to_do() -> None:
    error = ProctorError("no spans", where="a.json", hint="is it a trace?")
    assert (str(error), error.message, error.hint) == (
        "a.json: no spans",
        "no spans",
        "is it a trace?",
    )
    assert (error.exit_code, ProctorError("x", exit_code=1).exit_code) == (2, 1)
    assert str(ProctorError("no place")) == "no place"


def test_printable_leaves_text_and_shows_controls() -> None:
    assert printable("naïve ✓ 👩‍💻") == "naïve ✓ 👩‍💻"
    assert printable("\x1b]0;x\x07 a\nb") == r"\x1b]0;x\x07 a\nb"
    assert printable("a\nb\r", keep="\n") == "a\nb\\r"
    assert printable("\u202eevil\u2066") == r"\u202eevil\u2066"
