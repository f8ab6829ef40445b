"""Workers that fail, or answer late: the next call is right, or refused where what they would answer is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculators_compat import CaptureError
from tests.engine.support import Extractor, prompt
from tests.in_worker import answer_late, fail_once

BATCH = [prompt(300 + seed, seed) for seed in range(8)]


def test_a_worker_alone_that_fails_in_a_layer_goes_on(llama: Extractor) -> None:
    llama.generator.executor.collective_rpc(fail_once, args=(0,))
    with pytest.raises(RuntimeError, match="no memory for layer 2"):
        llama.generator.generate([prompt(50), prompt(60)])
    llama.check([prompt(33), prompt(44)])


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_do_not_go_on_without_each_other(checkpoints: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """What one has sent before the other failed would be taken for a part of the next step."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    with Extractor(checkpoints, "llama", tensor_parallel_size=2) as extractor:
        extractor.check(BATCH)
        monkeypatch.setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "15")  # for the rank that waits
        extractor.generator.executor.collective_rpc(fail_once, args=(rank,))
        with pytest.raises((RuntimeError, TimeoutError), match="no memory for layer 2|timed out"):
            extractor.generator.generate(BATCH)
        with pytest.raises(CaptureError, match="build a new generator"):
            extractor.generator.generate(BATCH)


def test_a_reply_that_comes_late_is_not_taken_for_the_next(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Extractor(checkpoints, "llama") as extractor:
        extractor.check(BATCH)
        extractor.generator.executor.collective_rpc(answer_late)
        monkeypatch.setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "1")
        with pytest.raises(TimeoutError):
            extractor.generator.generate(BATCH)
        with pytest.raises(CaptureError, match="build a new generator"):
            extractor.generator.generate(BATCH)
