"""`speculators-compat run`: a script that nobody may edit, with the package active in it and in every Python that it starts.

The command replaces itself by the interpreter, as it would be called for the script alone. So the script's arguments,
`__main__`, exit code, tracebacks and signals are Python's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from speculators_compat import startup


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="(SCRIPT | -m MODULE) [ARGS]...")
@click.pass_context
def run(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run a script or a module, as python does, adapted.

    speculators-compat is active in it and in every Python process that it starts, but for those that ignore PYTHONPATH
    (`python -I`, `python -E`).
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        click.echo(context.get_help())
        return
    if not arguments[0].startswith("-") and not os.path.exists(arguments[0]):
        raise click.UsageError(f"Found no script {arguments[0]}. Name a script, or -m and a module.")
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise click.UsageError("Python was started with -I, -E or -S, and would run the script unadapted. Leave that out.")
    folder = str(Path(startup.__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    os.execv(sys.executable, [sys.executable, *interpreter_options(), *arguments])


def interpreter_options() -> list[str]:
    """The options that Python itself was started with, such as `-u` or `-X dev`, in front of this command."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv)]  # without the name of a script, a module or code
    if options and options[-1].startswith("-") and options[-1][-1] in "mc":  # `-m MODULE`, `-c CODE`, or, say, `-um MODULE`
        together = options.pop()[:-1]
        options += [together] if together != "-" else []
    return options
