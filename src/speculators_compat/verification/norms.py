"""How long the states of a folder are, by layer, and which files' are unusual: a hint, not a fault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from speculators_compat.verification.record import Summary

# A file is unusual where its median norm is at least twice or half of the folder's, and further off than files usually are:
# by eight of their median deviations.
FACTOR = 2.0
DEVIATIONS = 8.0


class LayerNorms(NamedTuple):
    """Norms of one layer's rows: the smallest and largest of all, and the medians of the files' quartiles."""

    minimum: float
    lower: float
    middle: float
    upper: float
    maximum: float


def distribution(summaries: Mapping[str, Summary]) -> list[LayerNorms]:
    """Norms by layer over files of equally many layers; empty if none has more than one row."""
    layers = zip(*(summary.norms for summary in summaries.values() if summary.norms), strict=True)
    return [_merged(*zip(*files, strict=True)) for files in layers]


def _merged(
    minima: tuple[float, ...],
    lower: tuple[float, ...],
    middle: tuple[float, ...],
    upper: tuple[float, ...],
    maxima: tuple[float, ...],
) -> LayerNorms:
    return LayerNorms(min(minima), median(lower), median(middle), median(upper), max(maxima))


def outliers(summaries: Mapping[str, Summary]) -> dict[str, str]:
    """Files with an unusual median norm in some layer, and what it is."""
    logarithms = {name: [math.log(layer[2]) for layer in summary.norms] for name, summary in summaries.items() if summary.norms}
    found: dict[str, str] = {}
    for layer, values in enumerate(zip(*logarithms.values(), strict=True)):
        usual = median(values)
        limit = max(math.log(FACTOR), DEVIATIONS * median(abs(value - usual) for value in values))
        for name, value in zip(logarithms, values, strict=True):
            if abs(value - usual) > limit:
                found.setdefault(
                    name, f"median norm {math.exp(value):.4g} in layer {layer}; {math.exp(usual):.4g} is usual here"
                )
    return found
