"""Draws the norms of states, as a box per layer on one logarithmic axis: in characters, or as a PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from speculators_compat.verification.norms import LayerNorms
from speculators_compat.verification.record import Summary

# So that the table fits into 80 columns.
WIDTH = 32


# For terminals that cannot show the others.
IN_ASCII = str.maketrans("├┤─━┃", "||-=#")


def table(layers: Sequence[LayerNorms], ascii_only: bool = False) -> Table:
    """One row per layer: numbers, and a box whose thick part holds the middle half of a usual file's rows."""
    drawn = Table(title="Norms of states, without each file's first", title_justify="left")
    for column in ("layer", "smallest", "median", "largest"):
        drawn.add_column(column, justify="right", no_wrap=True)
    drawn.add_column("smallest to largest, logarithmic", no_wrap=True)
    low, high = min(layer.minimum for layer in layers), max(layer.maximum for layer in layers)
    for index, layer in enumerate(layers):
        numbers = (f"{value:.4g}" for value in (layer.minimum, layer.middle, layer.maximum))
        boxed = box(layer, low, high)
        drawn.add_row(str(index), *numbers, boxed.translate(IN_ASCII) if ascii_only else boxed)
    return drawn


def box(layer: LayerNorms, low: float, high: float, width: int = WIDTH) -> str:
    """`├───┅━━┃━━┅───┤` for one layer, on an axis from `low` to `high`, both above 0."""
    scale = (width - 1) / (math.log(high / low) or 1.0)
    start, lower, middle, upper, end = (round(math.log(value / low) * scale) for value in layer)
    cells = [" "] * width
    cells[start : end + 1] = "─" * (end - start + 1)
    cells[start], cells[end] = "├", "┤"
    cells[lower : upper + 1] = "━" * (upper - lower + 1)
    cells[middle] = "┃"
    return "".join(cells).rstrip()


def save(path: Path, layers: Sequence[LayerNorms], summaries: Mapping[str, Summary], unusual: Mapping[str, str]) -> None:
    """Write the boxes to a PNG, and the medians of unusual files as crosses; needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 * len(layers) + 3, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.bxp(
        [dict(whislo=low, q1=lower, med=middle, q3=upper, whishi=high) for low, lower, middle, upper, high in layers],
        positions=range(len(layers)),
        showfliers=False,
    )
    for name in unusual:
        axes.plot(range(len(layers)), [norms[2] for norms in summaries[name].norms], "x", label=name)
    axes.set(yscale="log", xlabel="layer, in the order of the files", ylabel="norm of a state, without each file's first")
    if 0 < len(unusual) <= 10:
        axes.legend(title="median of")
    figure.savefig(path, format="png", dpi=150)
