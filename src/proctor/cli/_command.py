"""Groups that import a command when it is used, and help that ends with examples.

A group's help comes from a table, so listing commands imports none of them. The table repeats the
first line of each command's own help; a test keeps the two equal.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from proctor.errors import ProctorError, did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    """The module and attribute of a command, and its line in `--help`."""

    module: str
    attribute: str
    help: str


class Example(NamedTuple):
    """A command line a user can copy, and what it does."""

    line: str
    what: str


class Command(click.Command):
    """A command whose help ends with examples: `@click.command(cls=Command, examples=[...])`."""

    def __init__(self, *args: Any, examples: Sequence[Example] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

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


class LazyGroup(Command, click.Group):
    """A group that reads its commands from a table of `Entry` and imports one when it is used.

    Groups nest: an entry may name another `LazyGroup`. `sections` groups the commands in `--help`
    (title → names). `moved` maps the names of former commands to what replaces them; they are not
    listed, and using one fails with that message.
    """

    def __init__(
        self,
        *args: Any,
        table: Mapping[str, Entry],
        sections: Mapping[str, Sequence[str]] | None = None,
        moved: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.table = dict(table)
        self.sections = dict(sections or {"Commands": list(self.table)})
        self.moved = dict(moved or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of that name."""
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.module}.{entry.attribute} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begins with, or suggest the nearest name."""
        name = args[0]
        # Something that looks like an option is left to click, which then names the option.
        if name not in self.table and not name.startswith("-") and not ctx.resilient_parsing:
            if name in self.moved:
                raise ProctorError(f"`{ctx.command_path} {name}` {self.moved[name]}")
            near = did_you_mean(name, self.table)
            raise click.UsageError(f"no such command {name!r}" + (f"; {near}" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, importing none of them."""
        widest = max(map(len, self.table), default=0)
        for title, names in self.sections.items():
            rows = [(name.ljust(widest), self.table[name].help) for name in names]
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
