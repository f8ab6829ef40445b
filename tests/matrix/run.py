"""Runs the engine tests marked `matrix` in the environment at hand, and writes one row about it.

    python -m tests.matrix.run FOLDER [pytest arguments]

A row is `right` if every test that ran has passed, `refused` if importing speculators ends in an error of this package, and
`FAILED` otherwise. The exit code says the same to a script: 1 for `FAILED`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest


class Outcomes:
    """A pytest plugin that keeps how each test came out."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[str] = []
        self.skipped: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            self.skipped[report.nodeid] = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        elif report.when == "call":
            self.passed.append(report.nodeid)


def run(arguments: list[str]) -> dict[str, Any]:
    """Run the tests, and say how they came out."""
    # Spawned workers import this module, as the main one: at the top, these lines would activate the package in them.
    import speculators_compat
    from speculators_compat.detection import detect

    row: dict[str, Any] = {
        **{name: detect(name).reported for name in ("vllm", "speculators", "torch", "transformers")},
        "distribution": detect("vllm").distribution,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }
    try:
        import speculators.data_generation  # noqa: F401
    except speculators_compat.SpeculatorsCompatError as error:
        words = re.sub(r" \(/[^)]*\)", "", str(error))  # an ImportError says where it looked
        return row | {"result": "refused", "words": f"{type(error).__name__}: {words}"}
    outcomes = Outcomes()
    code = pytest.main(["tests/engine", "-m", "matrix", *arguments], plugins=[outcomes])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return row | {
        "result": "right" if code == pytest.ExitCode.OK and outcomes.passed else "FAILED",
        "passed": len(outcomes.passed),
        "failed": outcomes.failed,
        "skipped": outcomes.skipped,
        "adapters": {decision.adapter.name: decision.state.value for decision in speculators_compat.status().decisions},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    options, arguments = parser.parse_known_args()
    row = run(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / f"{row['vllm']}-{row['speculators']}.json").write_text(json.dumps(row, indent=1) + "\n")
    print(f"speculators {row['speculators']} on vLLM {row['vllm']}: {row['result']}")
    raise SystemExit(row["result"] == "FAILED")


if __name__ == "__main__":
    main()
