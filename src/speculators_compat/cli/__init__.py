"""The command `speculators-compat`: one module per subcommand, imported when it is called."""

from __future__ import annotations

from importlib import import_module

import click

import speculators_compat

COMMANDS = ("doctor", "preflight", "run", "verify")


class Commands(click.Group):
    """Finds each subcommand in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"{__name__}.{cmd_name}"), cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(speculators_compat.__version__, prog_name="speculators-compat")
def main() -> None:
    """Hidden states out of the vLLM that is installed, with speculators' own generator."""
