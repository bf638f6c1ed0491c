"""Generate the page of commands from the `--help` of each.

Everything comes from the commands themselves. Examples are shown in lists, because what they speak
of (suites, runs, buckets) is not there on the page; tests/cli/test_help_examples.py runs them.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from proctor.cli._command import CommandGroup, Example
from proctor.cli.main import SECTIONS, cli

HEAD = """# Commands

<!-- written by tools/reference.py -->

What `proctor COMMAND --help` says, on one page. Exit codes are the same everywhere: see
[exit codes](exit-codes.md). Options may also come from [settings](configuration.md) and variables;
those of the command line win.

`proctor --debug COMMAND` shows tracebacks of errors; `proctor --version` the version.
"""


def commands_page(sources: Path) -> str:
    """The whole page."""
    parts = [HEAD]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n")
        for name in names:
            with click.Context(cli, info_name="proctor", **cli.context_settings) as context:
                parts += _command(cli, name, context)
    return "\n".join(parts).rstrip("\n") + "\n"


def _command(group: click.Group, name: str, parent: click.Context) -> Iterator[str]:
    """The text of one command of a group, and of the commands below it."""
    command = group.get_command(parent, name)
    if command is None:
        raise LookupError(name)
    # With its settings, which say that defaults are shown.
    context = click.Context(command, parent, info_name=name, **command.context_settings)
    yield f"### `{context.command_path}`\n"
    yield _prose(command)
    if isinstance(command, CommandGroup):
        yield from _examples(command.examples)
        for each in command.list_commands(context):
            yield from _command(command, each, context)
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"Usage: `{context.command_path} {usage}`\n"
    rows = [row for option in command.params for row in _option(option, context)]
    if rows:
        yield "\n".join(["| option | what |", "|---|---|", *rows]) + "\n"
    yield from _examples(getattr(command, "examples", ()))


def _prose(command: click.Command) -> str:
    """The help text: paragraphs as they are, those marked as verbatim in a block."""
    told: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            told.append(f"```text\n{paragraph.removeprefix(chr(8)).strip(chr(10))}\n```")
        else:
            told.append(re.sub(r"(?<!`)<(?=\w)", r"\\<", " ".join(paragraph.split())))
    return "\n\n".join(told) + "\n"


def _option(option: click.Parameter, context: click.Context) -> Iterator[str]:
    if not isinstance(option, click.Option) or option.hidden:
        return
    record = option.get_help_record(context)
    if record is None or any(name.startswith("--help") for name in option.opts):
        return
    names, what = (" ".join(part.split()).replace("|", "\\|") for part in record)
    yield f"| `{names}` | {what} |"


def _examples(examples: tuple[Example, ...]) -> Iterator[str]:
    if examples:
        lines = [f"- {example.what}: `{example.line}`" for example in examples]
        yield "\n".join(["Examples:\n", *lines]) + "\n"
