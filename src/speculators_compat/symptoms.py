"""Finds the adapter that cures an error message, or a part or a whole traceback that somebody has pasted."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from speculators_compat.adapter import Adapter
from speculators_compat.registry import ADAPTERS

# Fewer words in a row are found by chance, and so are many in `got an unexpected keyword argument`.
FEWEST_WORDS = 3
LEAST_SHARE = 0.75
AS_CLOSE = 0.1


def cures(text: str) -> list[Adapter]:
    """The adapters whose recorded symptom is in `text`, or has `text` in it; the closest first."""
    shares = {adapter: _share(adapter, text) for adapter in ADAPTERS}
    least = max(LEAST_SHARE, max(shares.values()) - AS_CLOSE)
    found = [adapter for adapter, share in shares.items() if share >= least]
    return sorted(found, key=lambda adapter: -shares[adapter])


def _share(adapter: Adapter, text: str) -> float:
    """The largest share of `text` that is in one of the adapter's messages, or of one of them that is in `text`."""
    return max(_overlap(_words(message), _words(text)) for message in adapter.symptom.split(";"))


def _overlap(one: list[str], other: list[str]) -> float:
    shorter, longer = sorted((one, other), key=len)
    blocks = SequenceMatcher(None, longer, shorter, autojunk=False).get_matching_blocks()
    shared = sum(block.size for block in blocks if block.size >= FEWEST_WORDS)
    if not shared and len(shorter) < FEWEST_WORDS:
        # So few say something if one of them is a name out of the code.
        return float(any("_" in word for word in shorter) and set(shorter) <= set(longer))
    return shared / len(shorter)


def _words(text: str) -> list[str]:
    """The words of a message; numbers, such as those in a request's id, count as the same."""
    return re.findall(r"[a-z0-9_.]*[a-z0-9_]", re.sub(r"\d+", "0", text.lower()))
