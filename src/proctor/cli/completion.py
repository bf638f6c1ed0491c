"""`proctor completion`: the few lines a shell needs to complete commands, options and files.

The shell asks `proctor` itself at every tab, so what it offers is what this version understands.
"""

from __future__ import annotations

import click

from proctor.cli._command import Command, Example

EXAMPLES = [
    Example('eval "$(proctor completion bash)"', "in this shell; put it into ~/.bashrc to keep"),
    Example('eval "$(proctor completion zsh)"', "in zsh; put it into ~/.zshrc to keep"),
    Example(
        "proctor completion fish > ~/.config/fish/completions/proctor.fish", "in fish, for good"
    ),
]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes the tab key complete commands, options and files.

    Needs bash 4.4 or newer, zsh or fish.
    """
    from click.shell_completion import get_completion_class

    from proctor.cli.main import COMPLETE_VARIABLE, cli

    found = get_completion_class(shell)
    assert found is not None
    # Only filled in, not asked for by `source()`: that would start a bash to ask for its version.
    writer = found(cli, {}, "proctor", COMPLETE_VARIABLE)
    click.echo(writer.source_template % writer.source_vars())
