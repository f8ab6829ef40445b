"""Writes the rows of sweeps into the documentation.

    python -m tests.registry.table RESULTS ... [--rows docs/architectures.json] [--page docs/architectures.md]

Each of RESULTS is a folder that a sweep has written, or a file of rows that this has written. Where there are several rows of
one architecture, the first stands that says more than `not run`: name the newest first.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = ("WRONG", "FAILED", "right", "refused", "not run")


def collect(sources: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows, one per architecture, by kind and name."""
    found: dict[str, dict[str, Any]] = {}
    for source in sources:
        if source.is_dir():
            rows = [json.loads(path.read_text()) for path in sorted(source.glob("*.json"))]
        else:
            rows = json.loads(source.read_text())
        for row in rows:
            other = found.get(row["architecture"])
            if other is None or (other["result"] == "not run" != row["result"]):
                found[row["architecture"]] = row
    return sorted(found.values(), key=lambda row: (row["kind"] != "text", row["architecture"].lower()))


def counts(rows: Iterable[dict[str, Any]], kind: str) -> Counter[str]:
    """How many architectures of a kind came out how."""
    return Counter(row["result"] for row in rows if row["kind"] == kind)


def page(rows: list[dict[str, Any]]) -> str:
    """The page, in Markdown."""
    lines = [
        "# Architectures",
        "",
        "Written by `python -m tests.registry.table` from the rows of `tests.registry.sweep` (`nox -s sweep`), not by hand.",
        "",
        "Every architecture that vLLM 0.16.0 names for text generation or multimodal input, as a tiny checkpoint with random "
        "weights, run through upstream's generator: prompts in chunks (whole where layers are recurrent), prefixes shared, all "
        "layers captured. "
        "Wrappers are given text only.",
        "",
        "The deviation is the largest error of any token's state in any layer, relative to that state's norm, from Hugging "
        "Face in float32; where transformers lacks the architecture, from what vLLM itself hands its final norm when the "
        "layers above are taken away. Allowed are 3e-5 in float32; in bfloat16 0.06, or 1.5 times what rounding alone does in "
        "Hugging Face, up to 0.15: where that is not enough, the row is not counted. An architecture that plain vLLM, text-only"
        " too, cannot run here either says so in vLLM's words.",
        "",
        "| | registered | " + " | ".join(RESULTS) + " |",
        "| --- |" + " ---: |" * (len(RESULTS) + 1),
    ]
    for kind in ("text", "multimodal"):
        count = counts(rows, kind)
        lines.append(f"| {kind} | {count.total()} | " + " | ".join(str(count[result]) for result in RESULTS) + " |")
    lines += ["", "Run with:", "", *(f"- {software}" for software in sorted({row["software"] for row in rows}))]
    for kind in ("text", "multimodal"):
        lines += [
            "",
            f"## {kind.capitalize()}",
            "",
            "| architecture | result | deviation | by rounding | reference | run | why |",
        ]
        lines.append("| --- | --- | ---: | ---: | --- | --- | --- |")
        for row in rows:
            if row["kind"] == kind:
                figures = ["" if row[name] is None else f"{row[name]:.1e}" for name in ("deviation", "rounding")]
                words = row["words"].replace("|", "\\|").replace("<", "&lt;")
                cells = [row["architecture"], row["result"], *figures, row["reference"], row["run"], words]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    rows = collect(options.results)
    if options.rows:
        options.rows.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    if options.page:
        options.page.write_text(page(rows))
    for kind in ("text", "multimodal"):
        print(kind, dict(counts(rows, kind)))


if __name__ == "__main__":
    main()
