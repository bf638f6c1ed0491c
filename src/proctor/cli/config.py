"""`proctor config`: the settings, the JSON Schema of files, and shell completion."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from proctor.cli._command import CommandGroup
from proctor.cli._options import FILE, json_option, option
from proctor.cli._output import echo_json
from proctor.files import write_atomic
from proctor.sanitize import printable
from proctor.user_dirs import with_folder


@click.group(cls=CommandGroup)
def config() -> None:
    """Show settings, print schemas and shell completion.

    Examples:
      # the settings, and where each comes from
      proctor config show
      # for your editor
      proctor config schema -o .proctor/suite.schema.json
    """


@config.command()
@json_option
def show(as_json: bool) -> None:
    """Show all settings and their sources, keys masked.

    Examples:
      # the settings, and where each comes from
      proctor config show
      # as JSON
      proctor config show --json
    """

    from proctor.spec import load_configuration
    from proctor.spec.config import provider_keys
    from proctor.trace.redact import Redactor

    configuration = load_configuration()
    redactor = Redactor()
    rows: list[tuple[str, Any, str]] = []
    for entry in configuration.values():
        last = entry.key.rpartition(".")[2]
        # Redacted under its own name: a secret is recognised by its key as well as by its value.
        shown: Any = redactor.value({last: "(hidden)" if entry.secret else entry.value})
        rows.append((entry.key, shown[last], str(entry.origin)))
    keys = provider_keys(os.environ)
    if as_json:
        settings = {key: {"value": value, "from": origin} for key, value, origin in rows}
        echo_json({"files": configuration.files, "settings": settings, "keys": keys})
        return
    lines = [("setting", "value", "from")]
    lines += [(key, _text(value), origin) for key, value, origin in rows]
    lines += [(key, "(set)", "environment") for key, state in keys.items() if state == "set"]
    safe = [tuple(printable(part) for part in line) for line in lines]
    first, second = (max(len(line[column]) for line in safe) for column in (0, 1))
    # A very long value moves its own source to the right, not all of them.
    second = min(second, 40)
    for key, value, origin in safe:
        # Never cut: a source is there to be copied.
        click.echo(f"{key:<{first}}  {value:<{second}}  {origin}")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


KINDS = ("suite", "experiment", "config")


@config.command()
@click.argument("kind", metavar="[KIND]", default="suite", type=click.Choice(KINDS))
@option("-o", "--output", "Write to this file.", type=FILE)
def schema(kind: Any, output: Path | None) -> None:
    """Print the JSON Schema of suites, experiments, settings.

    KIND is suite (the default), experiment or config.

    Examples:
      # for your editor
      proctor config schema -o .proctor/suite.schema.json
      # the schema of experiment files
      proctor config schema experiment
      # the schema of proctor.yaml
      proctor config schema config
    """
    from proctor.spec import schema_of

    text = json.dumps(schema_of(kind), indent=2) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    # Atomically: an editor may be reading the schema.
    write_atomic(with_folder(output), text.encode())


@config.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell completion script.

    Needs bash 4.4 or newer, zsh or fish.

    Examples:
      # in bash; add it to ~/.bashrc
      eval "$(proctor config completion bash)"
      # in zsh; add it to ~/.zshrc
      eval "$(proctor config completion zsh)"
      # in fish
      proctor config completion fish > ~/.config/fish/completions/proctor.fish
    """
    from click.shell_completion import get_completion_class

    from proctor.cli.main import COMPLETE_VARIABLE, cli

    found = get_completion_class(shell)
    assert found is not None
    # Not click's `source()`: it would start a bash to find out its version.
    script = found(cli, {}, "proctor", COMPLETE_VARIABLE)
    click.echo(script.source_template % script.source_vars())
