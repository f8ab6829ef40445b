"""Model Runner V2, as itself: vLLM's own code on a CPU, with its Triton kernels run by Triton's interpreter.

What this cannot show, because it is vLLM's CPU that runs it: streams, CUDA graphs and padding.
"""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.engine.support import run_script
from tests.model_runner_v2.processes import v2_environment

RUNNER = "vllm.v1.worker.cpu.model_runner"  # there from 0.23 on

SCRIPT = """
    import speculators_compat
    import sys
    from pathlib import Path
    from tests.cases import CASES
    from tests.engine.support import Extractor, prompt

    def forget_the_sorting(worker):
        steps, batch = worker._capture.steps, worker._capture.steps._batch
        steps._batch = lambda: iter(sorted(batch(), key=lambda row: int(row[0].rsplit("_", 1)[1])))

    if __name__ == "__main__":
        checkpoints, name, *cases = Path(sys.argv[1]), *sys.argv[2:]
        with Extractor(checkpoints, name, float32=True) as extractor:
            found = extractor.generator.executor.collective_rpc(lambda worker: type(worker.model_runner).__mro__[1].__module__)
            assert found == ["vllm.v1.worker.gpu.model_runner"], found
            if "sabotage" in cases:
                cases.remove("sabotage")
                extractor.generator.executor.collective_rpc(forget_the_sorting)
            for case in cases:
                for batch in CASES[case]:
                    extractor.check(batch)
        print("RIGHT")
"""

SHORT = ("a prefix shared in a batch", "a prefix shared with an earlier call", "the same prompt twice", "more than ten prompts")
LONG = ("chunks of fewer than ten prompts", "lengths of all kinds", "more prompts than run at once")


needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@needs_triton
@pytest.mark.parametrize(
    ("name", "cases"), [pytest.param("llama", SHORT + LONG, marks=pytest.mark.matrix), ("deepseek_v3", SHORT)]
)
def test_states_are_right(checkpoints: Path, tmp_path: Path, name: str, cases: tuple[str, ...]) -> None:
    process = run_v2(tmp_path, str(checkpoints), name, *cases)
    assert "RIGHT" in process.stdout, process.stderr[-4000:]


@needs_triton
def test_rows_in_the_order_of_the_scheduler_would_be_wrong(checkpoints: Path, tmp_path: Path) -> None:
    process = run_v2(tmp_path, str(checkpoints), "llama", "lengths of all kinds", "sabotage")
    assert "errors by layer" in process.stderr, process.stderr[-4000:]


def run_v2(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script with Model Runner V2; skip where this vLLM has none for CPUs."""
    if _missing(RUNNER):
        pytest.skip("this vLLM has no Model Runner V2 for CPUs")
    return run_script(SCRIPT, *arguments, **v2_environment(directory))


def _missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:
        return True
