"""Commands whose help ends with examples, and groups that import a command when it is used.

The help of the top-level group comes from a table, so listing commands imports none of them. The
table repeats the first line of each command's own help; a test keeps the two equal.
"""

import importlib
import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from proctor.errors import ProctorError, did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    """The module (`.name` for one of this package) and attribute of a command, and its help."""

    module: str
    attribute: str
    help: str


class Example(NamedTuple):
    """A command line a user can copy, and what it does."""

    line: str
    what: str


class Command(click.Command):
    """A command that reads its examples from the end of its docstring.

        Examples:
          # what it does
          proctor run suite.yaml

    A line that is indented further continues the one before.
    """

    def __init__(self, *args: Any, help: str | None = None, **kwargs: Any) -> None:  # noqa: A002 (the keyword of click)
        text, _, examples = inspect.cleandoc(help or "").partition("\n\nExamples:\n")
        super().__init__(*args, help=text, **kwargs)
        # Defaults are always shown; options without a fixed one describe it in their help.
        self.context_settings.setdefault("show_default", True)
        joined = re.sub(r"\n {4,}", " ", examples)
        pairs = re.findall(r"^  # (.+)\n  (.+)$", joined, re.MULTILINE)
        self.examples = tuple(Example(line, what) for what, line in pairs)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples. Their command lines are never wrapped: they are there to copy."""
        if self.examples:
            with formatter.section("Examples"):
                for index, example in enumerate(self.examples):
                    if index:
                        formatter.write("\n")
                    indent = " " * formatter.current_indent
                    formatter.write(f"{indent}# {example.what}\n{indent}{example.line}\n")
        super().format_epilog(ctx, formatter)


class CommandGroup(Command, click.Group):
    """A group that lists its commands in the order of their definition.

    `moved` maps the names of former commands to what replaces them; they are not listed, and using
    one fails with that message.
    """

    command_class = Command

    def __init__(self, *args: Any, moved: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.moved = dict(moved or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names; click would sort them."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begins with, or suggest the nearest name."""
        name, known = args[0], self.list_commands(ctx)
        # Something that looks like an option is left to click, which then names the option.
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            if name in self.moved:
                raise ProctorError(f"`{ctx.command_path} {name}` {self.moved[name]}")
            near = did_you_mean(name, known)
            raise click.UsageError(f"no such command {name!r}" + (f"; {near}" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the whole first line of their help; click would shorten it."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, (each.help or "").split("\n")[0]) for name, each in self.commands.items()]
            )


class LazyGroup(CommandGroup):
    """A group that reads its commands from tables of `Entry` and imports one when it is used.

    Groups nest: an entry may name another group. `sections` has the commands as `--help` groups
    them (title → name → entry).
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Mapping[str, Entry]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self.table = {name: entry for part in sections.values() for name, entry in part.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of that name."""
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module, __package__), entry.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.module}.{entry.attribute} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, importing none of them."""
        # Padded, so that the columns of all sections are aligned.
        widest = max(map(len, self.table), default=0)
        for title, part in self.sections.items():
            rows = [(name.ljust(widest), entry.help) for name, entry in part.items()]
            with formatter.section(title):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete command names from the table, so that a tab imports none of them."""
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=entry.help)
            for name, entry in self.table.items()
            if name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)
