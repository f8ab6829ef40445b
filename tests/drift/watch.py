"""Compares vLLM's sources with the table of what this package and speculators build on. Needs no vLLM, no GPU and no model.

    python -m tests.drift.watch VLLM ...
    python -m tests.drift.watch --record VLLM ...

Each VLLM is a wheel, or a directory that holds `vllm/`: unpacked, installed, or a checkout. Prints a line for each contract
that is not as recorded for that release, or for the newest one before it, and exits with 1 if there is any. `--record` writes
what is found into the table instead.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.drift.contracts import SPECULATORS, owners, symbols
from tests.drift.signature import describe
from tests.drift.table import ABSENT, STORED, Table
from tests.drift.tree import Tree

STATUSES = ("same", "moved", "changed signature", "gone")
MOVED = "moved to "


@dataclass(frozen=True)
class Comparison:
    """One contract: what was found, and what the table has."""

    symbol: str
    found: str
    expected: str | None

    @property
    def status(self) -> str:
        if self.found == self.expected:
            return "same"
        if self.found.startswith(MOVED):
            return "moved"
        return "gone" if self.found == ABSENT else "changed signature"

    def __str__(self) -> str:
        return f"{self.status}: {self.symbol}, for {', '.join(owners(self.symbol))}: {self.found}; expected {self.expected}"


def look(tree: Tree, contracts: Iterable[str]) -> dict[str, str]:
    """What each contract looks like in a tree."""
    contracts = frozenset(contracts)
    states: dict[str, str] = {}
    for symbol in sorted(contracts):
        if found := tree.find(symbol):
            states[symbol] = describe(found.node)
        else:
            # A place that is a contract by itself is another thing of the same name.
            places = [place for place in tree.elsewhere(symbol) if place not in contracts]
            states[symbol] = MOVED + " or ".join(places) if places else ABSENT
    return states


def compare(tree: Tree, table: Table) -> list[Comparison]:
    """Every contract of the table, in the tree and in the table."""
    found = look(tree, table.changes)
    return [Comparison(symbol, state, table.expected(symbol, tree.release)) for symbol, state in found.items()]


def report(name: str, comparisons: Iterable[Comparison]) -> bool:
    """Print what has drifted, a summary and what to do; answer whether anything has."""
    comparisons = list(comparisons)
    drifted = [comparison for comparison in comparisons if comparison.status != "same"]
    for comparison in drifted:
        print(comparison)
    count = Counter(comparison.status for comparison in comparisons)
    print(f"{name}: {len(comparisons)} contracts: {', '.join(f'{count[status]} {status}' for status in STATUSES)}")
    if drifted:
        concerned = sorted({owner for comparison in drifted for owner in owners(comparison.symbol)} - {SPECULATORS})
        print(
            f"Run the matrix on it, and look at {', '.join(concerned) or 'what speculators does'} in src/speculators_compat; "
            "then write down what holds: python -m tests.drift.watch --record"
        )
    return bool(drifted)


def main(arguments: list[str] | None = None, stored: Path = STORED) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm", type=Path, nargs="+")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args(arguments)
    trees = ((path, Tree(path)) for path in options.vllm)
    if not options.record:
        table = Table.load(stored)
        drifted = [report(str(tree.release or path), compare(tree, table)) for path, tree in trees]
        return int(any(drifted))
    table = Table.load(stored) if stored.exists() else Table()
    for path, tree in trees:
        if tree.release is None:
            parser.error(f"{path} does not say which release it is: it holds no vllm*.dist-info")
        table.record(tree.release, look(tree, symbols()))
    table.save(stored)
    return 0


if __name__ == "__main__":
    sys.exit(main())
