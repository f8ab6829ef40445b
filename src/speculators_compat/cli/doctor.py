"""`speculators-compat doctor`: what is installed, which adapters it needs, what will not work, and what to do."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import speculators_compat
from speculators_compat.activation import REMOVED
from speculators_compat.adapter import Adapter
from speculators_compat.errors import SpeculatorsCompatError
from speculators_compat.import_hooks import GENERATOR_MODULE
from speculators_compat.outlook import Outlook, outlook
from speculators_compat.plan import Decision, State
from speculators_compat.symptoms import cures

COLOURS = {
    State.APPLIED: "green",
    State.NOT_NEEDED: "dim",
    State.SWITCHED_OFF: "yellow",
    State.REFUSED: "red",
    State.UNDECIDED: "cyan",
}


@click.command()
@click.option("--symptom", metavar="TEXT", help="Find the adapter that cures an error message or a traceback; - reads it.")
@click.option("--probe", is_flag=True, help="Import speculators and vLLM, and let the real symbols decide (half a minute).")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def doctor(symptom: str | None, probe: bool, as_json: bool) -> None:
    """Say what is installed, which adapters it needs, and what to do about the rest.

    Reads package metadata and the record of tested pairs, in less than a second; no model is loaded. Exits with 1 if
    speculators' generator will not work here, or if no adapter cures the symptom.
    """
    if symptom is not None:
        text = sys.stdin.read() if symptom == "-" else symptom
        _look_up(text, as_json)
    try:
        found = outlook()
        decisions, problems = probed(found) if probe else (found.decisions, list(found.problems))
        problems += [f"SPECULATORS_COMPAT_DISABLE switches {name} off, which is needed here." for name in found.missed]
    except SpeculatorsCompatError as error:
        raise click.ClickException(str(error)) from error
    machine = {"python": platform.python_version(), "system": platform.platform(), "gpus": gpus()}
    if as_json:
        click.echo(json.dumps(_report(found, decisions, problems, machine), indent=1))
    else:
        _print(found, decisions, problems, machine, probe)
    raise SystemExit(bool(problems))


def probed(found: Outlook) -> tuple[tuple[Decision, ...], list[str]]:
    """Import what users import, and see what was decided."""
    try:
        # vLLM logs to stdout, where the answer goes.
        with redirect_stdout(sys.stderr):
            import speculators.data_generation  # noqa: F401
    except SpeculatorsCompatError as error:
        return found.decisions, [str(error)]
    except ImportError as error:
        return found.decisions, [*found.problems, f"import speculators.data_generation: {error}"]
    return speculators_compat.status().decisions, []


def gpus() -> list[tuple[str, int]]:
    """Name and bytes of each GPU, as the driver's own tool tells them: torch would take seconds to import. 0 if it does not."""
    ask = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line.rpartition(", ") for line in answer.stdout.splitlines() if answer.returncode == 0]
    return [(name, int(mebibytes) * 2**20 if mebibytes.isdecimal() else 0) for name, _, mebibytes in lines if name]


def _look_up(text: str, as_json: bool) -> NoReturn:
    adapters = cures(text)
    if as_json:
        click.echo(json.dumps([_record(adapter) for adapter in adapters], indent=1))
    for adapter in () if as_json else adapters:
        console = Console()
        console.print(f"[bold]{adapter.name}[/]  (vLLM {adapter.vllm}, speculators {adapter.speculators})", highlight=False)
        for title, words in (("symptom", adapter.symptom), ("contract", adapter.contract), ("broken by", adapter.broken_by)):
            console.print(f"  {title}: {escape(words)}", highlight=False)
        console.print("  cure: `import speculators_compat` on the line before speculators; nothing else", highlight=False)
    if removed := GENERATOR_MODULE in text:
        click.echo(REMOVED, err=as_json)
    elif not adapters:
        click.echo("No adapter's recorded symptom is like this.", err=True)
    raise SystemExit(not (adapters or removed))


def _record(adapter: Adapter) -> dict[str, str]:
    names = ("name", "contract", "symptom", "vllm", "speculators", "broken_by", "removable_when")
    return {name: getattr(adapter, name) for name in names}


def _report(found: Outlook, decisions: tuple[Decision, ...], problems: list[str], machine: dict[str, Any]) -> dict[str, Any]:
    return {
        "works": not problems,
        "speculators_compat": speculators_compat.__version__,
        "installed": {one.module: {"version": one.reported, "distribution": one.distribution} for one in found.installed},
        **machine,
        "source": found.source,
        "adapters": [
            {"name": decision.adapter.name, "state": decision.state.value, "reason": decision.reason} for decision in decisions
        ],
        "problems": problems,
        "remarks": list(found.remarks),
    }


def _print(found: Outlook, decisions: tuple[Decision, ...], problems: list[str], machine: dict[str, Any], probe: bool) -> None:
    console = Console(highlight=False)
    console.print(f"speculators-compat {speculators_compat.__version__}", style="bold")
    for one in found.installed:
        console.print(f"  {one}")
    console.print(f"  Python {machine['python']}, {machine['system']}")
    counted = Counter(machine["gpus"])
    devices = [f"{count} x {name}, {size / 2**30:.0f} GiB" for (name, size), count in counted.items()]
    console.print(f"  {'; '.join(devices) or 'no NVIDIA GPU'}")
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    for column in ("adapter", "state", "why"):
        table.add_column(column, overflow="fold")
    for decision in decisions:
        state = f"[{COLOURS[decision.state]}]{decision.state.value}[/]"
        table.add_row(decision.adapter.name, state, escape(decision.reason))
    console.print(table)
    if found.source and not probe:
        console.print(f"As recorded when {found.source} was tested. `--probe` asks what is installed.", style="dim")
    for remark in found.remarks:
        console.print(f"[yellow]note[/]: {escape(remark)}")
    for problem in problems:
        console.print(f"[red]will not work[/]: {escape(problem)}")
    if not problems and (found.source or probe):
        console.print("[green]This pair works[/], with `import speculators_compat` on the line before speculators.")
    elif not problems:
        console.print("[yellow]Nobody has tested this pair[/]: `--probe` asks whether its contracts are known.")
