"""Commands whose help fits a screen and ends with examples, and groups that import when used.

`--help` of a command with many options shows the common ones; `--help-all` shows all of them, in
groups. The help of the top-level group comes from a table, so listing commands imports none of
them. The table repeats the first line of each command's own help; a test keeps the two equal.
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
    """The module of a command and its help; the attribute has the command's name by default."""

    module: str
    help: str
    attribute: str | None = None


class Example(NamedTuple):
    """A command line a user can copy, and what it does."""

    line: str
    what: str


MOST_OPTIONS = 11
"""Options that `--help` shows without groups; a command with more of them shows its first group,
and the others with `--help-all`, so that the help of every command fits a screen."""

MOST_EXAMPLES = 4
"""Examples beside the first group."""

_ALL = "proctor.help_all"
"""The key under which click's context says that everything is shown."""


class Command(click.Command):
    """A command that reads its examples from the end of its docstring.

        Examples:
          # what it does
          proctor run suite.yaml

    A line that is indented further continues the one before. `groups` has the names of its options
    by title, the common ones first.
    """

    def __init__(
        self,
        *args: Any,
        help: str | None = None,  # noqa: A002 (the keyword of click)
        groups: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        text, _, examples = inspect.cleandoc(help or "").partition("\n\nExamples:\n")
        super().__init__(*args, help=text, **kwargs)
        # Defaults are always shown; options without a fixed one describe it in their help.
        self.context_settings.setdefault("show_default", True)
        joined = re.sub(r"\n {4,}", " ", examples)
        pairs = re.findall(r"^  # (.+)\n  (.+)$", joined, re.MULTILINE)
        self.examples = tuple(Example(line, what) for what, line in pairs)
        self.groups = {title: names.split() for title, names in (groups or {}).items()}
        options = [each for each in self.params if isinstance(each, click.Option)]
        self.brief = len(options) > MOST_OPTIONS and bool(groups)
        """Whether `--help` leaves options to `--help-all`."""
        if self.brief:
            self.params.append(
                click.Option(
                    ["--help-all"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=_show_all,
                    help="Show all options and examples.",
                )
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in their groups; those that no group names come last."""
        every = {str(p.name): p for p in self.get_params(ctx) if isinstance(p, click.Option)}
        grouped = {name for names in self.groups.values() for name in names}
        shown = list(self.groups.items())
        if self.brief and not ctx.meta.get(_ALL):
            shown = shown[:1]
        rest = [name for name in every if name not in grouped]
        if shown:
            # Help belongs to what is read first.
            of_help = [name for name in rest if every[name].opts[-1].startswith("--help")]
            shown[0] = (shown[0][0], [*shown[0][1], *of_help])
            rest = [name for name in rest if name not in of_help]
        for title, names in [*shown, ("Options", rest)]:
            records = [every[name].get_help_record(ctx) for name in names if name in every]
            if rows := [record for record in records if record is not None]:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples. Their command lines are never wrapped: they are there to copy."""
        all_of_them = not self.brief or ctx.meta.get(_ALL)
        if examples := self.examples if all_of_them else self.examples[:MOST_EXAMPLES]:
            width = max(len(example.line) for example in examples)
            with formatter.section("Examples"):
                indent = " " * formatter.current_indent
                for what, line in ((example.what, example.line) for example in examples):
                    beside = f"{indent}{line:<{width}}  # {what}"
                    if width + len(what) + 6 > formatter.width:
                        beside = f"{indent}# {what}\n{indent}{line}"
                    formatter.write(f"{beside}\n")
        super().format_epilog(ctx, formatter)


def _show_all(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


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

    `sections` has the commands as `--help` groups them (title → name → entry).
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
        attribute = entry.attribute or cmd_name.replace("-", "_")
        return getattr(importlib.import_module(entry.module, __package__), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, importing none of them."""
        widest = max(map(len, self.table), default=0)
        # Without blank lines between the sections: the whole list fits a screen.
        formatter.write("\n")
        for title, part in self.sections.items():
            formatter.write(f"{title}:\n")
            for name, entry in part.items():
                formatter.write(f"  {name.ljust(widest)}  {entry.help}\n")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete command names from the table, so that a tab imports none of them."""
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=entry.help)
            for name, entry in self.table.items()
            if name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)


def colour_choice(environ: Mapping[str, str]) -> bool | None:
    """Return what `NO_COLOR` and `FORCE_COLOR` ask for; None leaves it to each stream."""
    # https://no-color.org: any value but the empty one turns colour off, whatever else is set.
    if environ.get("NO_COLOR"):
        return False
    return True if environ.get("FORCE_COLOR", "0") not in ("", "0") else None
