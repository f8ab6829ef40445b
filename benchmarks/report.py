"""Tables of what was measured, for the terminal and for the page of the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

LIMITS, MEASURED = ("vllm_prefill", "vllm_prefill_at_once"), "speculators_compat"
TITLES = {
    "vllm_prefill": "vLLM's prefill alone",
    "vllm_prefill_at_once": "in one process",
    MEASURED: "generate()",
    "speculators_alone": "speculators' own capture and reply",
    "hugging_face": "Hugging Face",
    "vllm_native": "vLLM's extract_hidden_states",
}
Measured = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: What it shows.
        header: Of the columns.
        rows: As many words each.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(result: Measured) -> Iterator[Table]:
    """What one run of the benchmark has measured.

    Args:
        result: A `Measurement` as it is in JSON.
    """
    by_workload: dict[str, dict[str, Measured]] = {}
    for cell in result["cells"]:
        by_workload.setdefault(cell["workload"], {})[cell["peer"]] = cell
    peers = list(dict.fromkeys(cell["peer"] for cell in result["cells"]))
    titles = [TITLES.get(peer, peer) for peer in peers]

    def table(title: str, header: Sequence[str], of_cell: Any) -> Table:
        rows = [
            [workload, *(of_cell(cells[peer], cells) if peer in cells else "" for peer in peers)]
            for workload, cells in by_workload.items()
        ]
        return Table(title, ["prompts x tokens", *header], rows)

    yield table("Tokens a second, median", titles, lambda cell, cells: f"{cell['tokens'] / median(cell['seconds']):,.0f}")
    if not set(peers).isdisjoint(LIMITS):
        yield table("As a share of the faster prefill's, run by run: median (range)", titles, _share)
    yield from _split(by_workload)
    yield table("Peak of the host's memory, MB", titles, lambda cell, cells: f"{cell['peak']['host_bytes'] / 1e6:,.0f}")
    if any(cell["peak"]["gpu_bytes"] is not None for cell in result["cells"]):
        yield table("Peak of one GPU's memory beside what stays, MB", titles, _gpu_megabytes)


def _share(cell: Measured, cells: dict[str, Measured]) -> str:
    limits = [cells[peer]["seconds"] for peer in LIMITS if peer in cells]
    if not limits:
        return ""
    shares = [limit / own for limit, own in zip(min(limits, key=median), cell["seconds"], strict=True)]
    return f"{median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"


def _gpu_megabytes(cell: Measured, cells: dict[str, Measured]) -> str:
    gpu_bytes = cell["peak"]["gpu_bytes"]
    return "" if gpu_bytes is None else f"{gpu_bytes / 1e6:,.0f}"


def _split(by_workload: dict[str, dict[str, Measured]]) -> Iterator[Table]:
    found = {workload: cells[MEASURED] for workload, cells in by_workload.items() if MEASURED in cells}
    parts = list(dict.fromkeys(part for cell in found.values() for part in cell["split"]))
    if not parts:
        return
    rows = [
        [
            workload,
            *(f"{1000 * cell['split'].get(part, 0):,.1f}" for part in parts),
            f"{cell['state_bytes'] / 1e6:,.0f}",
            f"{1000 * cell['copy_seconds']:,.1f}",
        ]
        for workload, cell in found.items()
    ]
    header = ["prompts x tokens", *parts, "states, MB", "one copy of them"]
    yield Table("Where the time of one call goes, ms (*: while the model runs, all threads together)", header, rows)
