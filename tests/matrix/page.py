"""Writes the rows of the matrix into the documentation.

    python -m tests.matrix.page FOLDER docs/compatibility.json

Rows of pairs that the folder lacks are kept from the file. What `speculators-compat doctor` says of a pair comes from them too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from packaging.version import Version

from speculators_compat.registry import ADAPTERS

LINES = ("0.3.0", "0.4.0.1")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/compatibility.md"
KNOWN_PAIRS = ROOT / "src/speculators_compat/known_pairs.json"
Row = dict[str, Any]


def collect(folder: Path, file: Path) -> list[Row]:
    """One row for each pair, by version; a row of the folder replaces that of the file."""
    rows: list[Row] = json.loads(file.read_text()) if file.exists() else []
    rows += [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    pairs = {(Version(row["vllm"]), Version(row["speculators"])): row for row in rows}
    return [pairs[pair] for pair in sorted(pairs)]


def page(rows: list[Row]) -> str:
    """The page, in Markdown."""
    releases = list(dict.fromkeys(row["vllm"] for row in rows))
    by_pair = {(row["vllm"], row["speculators"]): row for row in rows}
    lines = [
        "# Compatibility",
        "",
        "Written by `nox -s page` from the rows of `nox -s matrix`, not by hand.",
        "",
        "Each pair was installed afresh from PyPI, and run on a CPU in real worker processes. `right`: every state of "
        "every prompt agreed with Hugging Face in float32: prefixes shared in a batch and across calls, chunked prefill, more "
        "prompts than run at once, preemption, DeepSeek-V3, Kimi-K2.5 on two tensor-parallel ranks where vLLM has it (else "
        "Llama), and from vLLM 0.23 on Model Runner V2 in Triton's interpreter as well. speculators 0.4.0 differs from 0.4.0.1 "
        "outside of extraction only. Where a CPU has AMX, vLLM 0.27.1 itself refuses tiny experts in float32 (`CPU fused-MoE "
        "AMX grouped-gemm kernel cannot be used`).",
        "",
        "| vLLM | " + " | ".join(f"speculators {line}" for line in LINES) + " | torch | transformers | run on |",
        "| --- |" + " --- |" * (len(LINES) + 3),
    ]
    for release in releases:
        found = [by_pair.get((release, line)) for line in LINES]
        first = next(row for row in found if row)
        cells = [release, *map(_cell, found), *(first[name] for name in ("torch", "transformers", "date"))]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Refused", ""]
    lines += [f"- speculators {row['speculators']} on vLLM {row['vllm']}: {row['words']}" for row in rows if "words" in row]
    lines += ["", "## Left out", "", *_left_out(rows)]
    legend = "On a CPU, by vLLM release: `+` applied, `.` not needed there. What an adapter is for is in its record."
    lines += ["", "## Which adapters are applied", "", legend, ""]
    for line in LINES:
        lines += [f"### speculators {line}", "", *_adapters([row for row in rows if row["speculators"] == line]), ""]
    return "\n".join(lines)


def known_pairs(rows: list[Row]) -> str:
    """What the package itself keeps of the rows, in JSON."""
    kept = ("vllm", "speculators", "result", "words", "date")
    pairs = [
        {name: row[name] for name in kept if name in row}
        | {"applied": [name for name, state in row.get("adapters", {}).items() if state == "applied"]}
        for row in rows
    ]
    return "[\n" + ",\n".join(map(json.dumps, pairs)) + "\n]\n"


def _left_out(rows: list[Row]) -> list[str]:
    releases: dict[str, list[str]] = {}
    for row in rows:
        for reason in row.get("skipped", {}).values():
            found = releases.setdefault(reason.removeprefix("Skipped: "), [])
            if row["vllm"] not in found:
                found.append(row["vllm"])
    return [f"- {reason}: {', '.join(found)}" for reason, found in sorted(releases.items())]


def _cell(row: Row | None) -> str:
    if row is None:
        return "not run"
    return f"right ({row['passed']} tests)" if row["result"] == "right" else str(row["result"])


def _adapters(rows: list[Row]) -> list[str]:
    ran = [row for row in rows if "adapters" in row]
    short = [".".join(row["vllm"].split(".")[:3]) for row in ran]
    lines = ["| adapter | " + " | ".join(short) + " |", "| --- |" + " :-: |" * len(ran)]
    for adapter in ADAPTERS:
        marks = ["+" if row["adapters"].get(adapter.name) == "applied" else "." for row in ran]
        lines.append(f"| `{adapter.name}` | " + " | ".join(marks) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    rows = collect(options.folder, options.file)
    options.file.write_text(json.dumps(rows, indent=1) + "\n")
    PAGE.write_text(page(rows))
    KNOWN_PAIRS.write_text(known_pairs(rows))


if __name__ == "__main__":
    main()
