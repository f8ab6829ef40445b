"""The benchmark runs on a CPU, its peers agree about the states, and it notices where they do not. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from benchmarks.measurement import TOLERANCE
from benchmarks.page import page
from benchmarks.report import MEASURED, tables

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    path = tmp_path / "results.json"
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks",
            "--shape",
            "tiny",
            "--json",
            str(path),
            "--log",
            str(tmp_path / "log"),
            *arguments,
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert path.exists(), process.stderr[-3000:]
    (result,) = json.loads(path.read_text())
    return process, result


def test_all_peers_run_and_agree(tmp_path: Path) -> None:
    process, result = run(tmp_path, "--check", "--block-size", "16", "--repeat", "2", "--run", "8x64", "--run", "3x200x2")
    assert process.returncode == 0, process.stderr[-3000:] + (tmp_path / "log").read_text()[-3000:]
    assert len(result["cells"]) == 5 * 2
    assert result["deviations"]["speculators_alone"] < TOLERANCE
    assert 0.001 < result["deviations"]["hugging_face"] < TOLERANCE
    (measured, _) = [cell for cell in result["cells"] if cell["peer"] == MEASURED]
    assert measured["state_bytes"] == 8 * 64 * 4 * 128 * 2
    assert {"schedule", "forward", "transport", "assembly", "writing"} < measured["split"].keys()
    assert sum(measured["split"][part] for part in ("schedule", "forward", "transport", "assembly")) == pytest.approx(
        measured["split"]["whole"]
    )
    assert next(tables(result)).title in page([result])


def test_a_peer_that_does_not_start_is_said_to_and_the_others_run(tmp_path: Path) -> None:
    process, result = run(tmp_path, "--repeat", "1", "--peer", "nobody", "--peer", "hugging_face")
    assert process.returncode == 1
    assert "nobody did not start" in process.stderr
    assert [cell["peer"] for cell in result["cells"]] == ["hugging_face"]
