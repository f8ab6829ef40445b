"""`speculators-compat verify`: which files of extracted states are wrong, and why."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from importlib.util import find_spec
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import track

from speculators_compat.cli.signals import terminating
from speculators_compat.verification import folder, norms, picture, record
from speculators_compat.verification.comparison import TOLERANCE, Findings, listed
from speculators_compat.verification.record import CAUSES, Record, Stamp

FILE = click.Path(dir_okay=False, path_type=Path)
# Bad files and hints that the terminal shows; --json has all.
SHOWN = 20


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--record", "results", metavar="FILE", type=FILE, help="The results file.  [default: DIR/.verified.jsonl]")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=lambda: min(8, len(os.sched_getaffinity(0))),
    show_default="one per core, 8 at most",
    help="Processes that read.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, min_open=True),
    default=TOLERANCE,
    show_default=True,
    help="Distance of two states' directions up to which they are the same.",
)
@click.option("--png", metavar="FILE", type=FILE, help="Draw the norms there, too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.pass_context
def verify(
    context: click.Context, directory: Path, results: Path | None, jobs: int, tolerance: float, png: Path | None, as_json: bool
) -> None:
    """Look through the .pt files below DIR for states that are wrong.

    Takes what speculators' script writes: input_ids, hidden_states and loss_mask. Each file is read once: what was found is
    kept in a results file, and a run that follows, or goes on after an interrupt, reads only files that are new or changed.

    Exits with 0 if no file is bad, 1 if some are, 2 if it could not be run.
    """
    if png is not None and find_spec("matplotlib") is None:
        raise click.UsageError("--png needs matplotlib, which is not installed: pip install 'speculators-compat[plots]'")
    results = results or directory / ".verified.jsonl"
    ended = f"What was read is in {results}, and the next run goes on from there."
    try:
        with terminating():
            report = _report(directory, results, jobs, tolerance)
            if png is not None and report.norms:
                picture.save(png, report.norms, report.good, report.unusual)
    except OSError as error:
        if isinstance(error.__context__, SystemExit):  # The terminal has hung up: nothing can be written to it any more.
            raise error.__context__ from None
        raise click.UsageError(str(error)) from error
    except BrokenProcessPool:
        click.echo(f"A reading process died, for want of memory or by a failing disk. What was read is in {results}.", err=True)
        context.exit(2)
    except KeyboardInterrupt:
        click.echo(f"Interrupted. {ended}", err=True)
        context.exit(130)
    except SystemExit:
        with suppress(OSError):
            click.echo(f"Terminated. {ended}", err=True)
        raise
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=1))
    else:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # Names of files may hold anything.
        report.print(Console())
    context.exit(1 if report.bad else 0)


def _report(directory: Path, results: Path, jobs: int, tolerance: float) -> Report:
    stamps, linked = folder.find(directory)
    if not stamps:
        left_out = f"; links to folders are not followed: {listed(linked)}" if linked else ""
        raise click.UsageError(f"{directory} holds no .pt file{left_out}")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        message = (
            f"torch cannot be imported here ({error}). Run this in the environment that has torch: that of the extraction."
        )
        raise click.UsageError(message) from error
    return Report(directory, _records(directory, stamps, results, jobs), linked, tolerance)


def _records(directory: Path, stamps: list[Stamp], results: Path, jobs: int) -> list[Record]:
    """A record of each file: those of earlier runs, and of files that are read now, with a progress bar on stderr."""
    known = record.load(results)
    new = [stamp for stamp in stamps if stamp not in known]
    console = Console(stderr=True)
    with record.Journal(results) as journal, closing(folder.read(directory, new, jobs)) as reading:
        for found in track(journal.keeping(reading), "reading", len(new), console=console, transient=True, disable=not new):
            known[found.stamp] = found
    return [known[stamp] for stamp in stamps]


class Report:
    """What a run has found, for the terminal and as JSON."""

    def __init__(self, directory: Path, records: list[Record], linked: list[str], tolerance: float) -> None:
        findings = Findings(records, tolerance)
        self.directory, self.files, self.linked = directory, len(records), linked
        self.skipped = [found.stamp.name for found in records if found.skipped]
        self.bad, self.good, self.unjudged = findings.by_file(), findings.good(), findings.unjudged
        self.norms, self.unusual = norms.distribution(self.good), norms.outliers(self.good)

    def as_json(self) -> dict[str, Any]:
        return {
            "directory": str(self.directory),
            "files": self.files,
            "good": len(self.good),
            "tokens": sum(summary.tokens for summary in self.good.values()),
            "skipped": self.skipped,
            "linked_folders": self.linked,
            "unjudged": [unjudged._asdict() for unjudged in self.unjudged],
            "bad": {name: [fault._asdict() for fault in faults] for name, faults in self.bad.items()},
            "unusual_norms": self.unusual,
            "norms": [layer._asdict() for layer in self.norms],
        }

    def print(self, console: Console) -> None:
        if self.norms:
            console.print(picture.table(self.norms, console.options.ascii_only))
        _print_capped(console, "[yellow]unusual norms[/] (a hint, not a fault)", self.unusual)
        _print_capped(console, "[red]bad[/]", {name: "; ".join(map(": ".join, faults)) for name, faults in self.bad.items()})
        for kind, count in Counter(fault.kind for faults in self.bad.values() for fault in faults).items():
            console.print(f"[red]{kind}[/] in files: {count}. Usual cause: {CAUSES[kind]}.", highlight=False)
        if self.skipped:
            console.print(f"Skipped as no samples: {len(self.skipped)} ({escape(listed(self.skipped))})", highlight=False)
        if self.linked:
            console.print(
                f"Links to folders, not followed: {len(self.linked)} ({escape(listed(self.linked))})", highlight=False
            )
        for kind, why, files in self.unjudged:
            console.print(f"[yellow]not judged[/] for {kind}: {files} files ({why})", highlight=False)
        colour = "red" if self.bad else "green"
        tokens = sum(summary.tokens for summary in self.good.values())
        console.print(f"[{colour}]{len(self.bad)} bad[/], {len(self.good)} good files, {tokens:,} good tokens", highlight=False)


def _print_capped(console: Console, title: str, by_file: Mapping[str, str]) -> None:
    for name, message in islice(by_file.items(), SHOWN):
        console.print(f"{title} {escape(name)}: {escape(message)}", highlight=False, soft_wrap=True)
    if len(by_file) > SHOWN:
        console.print(f"{title} and {len(by_file) - SHOWN} more, which --json lists", highlight=False)
