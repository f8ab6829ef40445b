"""The stored table: what every contract looks like, by the release from which it does. Only changes are written down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

STORED = Path(__file__).with_name("signatures.json")

# What the table says of a name that a release does not have.
ABSENT = "absent"


@dataclass
class Table:
    """What was found, release by release.

    Attributes:
        releases: The releases that were read, in order.
        changes: By contract, what it looks like from which release on.
    """

    releases: list[Version] = field(default_factory=list)
    changes: dict[str, dict[Version, str]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path = STORED) -> Table:
        stored = json.loads(path.read_text())
        changes = {symbol: {Version(r): found for r, found in of.items()} for symbol, of in stored["contracts"].items()}
        return cls([Version(release) for release in stored["releases"]], changes)

    def save(self, path: Path = STORED) -> None:
        releases = json.dumps([str(release) for release in self.releases])
        contracts = ",\n".join(f"    {json.dumps(symbol)}: {_lines(self.changes[symbol])}" for symbol in sorted(self.changes))
        path.write_text(f'{{\n  "releases": {releases},\n  "contracts": {{\n{contracts}\n  }}\n}}\n')

    def expected(self, symbol: str, release: Version | None) -> str | None:
        """What a contract has to look like in a release: as in the newest one up to it, or, before all, in the oldest."""
        known = self.changes.get(symbol, {})
        until = [found for since, found in known.items() if release is None or since <= release]
        return until[-1] if until else next(iter(known.values()), None)

    def record(self, release: Version, found: Mapping[str, str]) -> None:
        """Write down what was found in a release. Contracts that are not in `found` are forgotten."""
        self.releases = sorted({*self.releases, release})
        changes: dict[str, dict[Version, str]] = {}
        for symbol, now in found.items():
            runs = changes[symbol] = {}
            known = self.changes.get(symbol, {})
            for at in self.releases:
                state = now if at == release else self.expected(symbol, at) if known and at >= min(known) else None
                if state is not None and state != next(reversed(runs.values()), None):
                    runs[at] = state
        self.changes = changes


def _lines(runs: Mapping[Version, str]) -> str:
    """On one line what never changed, else a line for each change."""
    entries = [f"{json.dumps(str(release))}: {json.dumps(found)}" for release, found in runs.items()]
    return f"{{{entries[0]}}}" if len(entries) == 1 else "{\n      " + ",\n      ".join(entries) + "\n    }"
