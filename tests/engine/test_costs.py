"""What extraction does not do, because nobody needs it, and what does not grow."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from speculators_compat.detection import detect
from tests.engine.support import Extractor, prompt, recorded_calls, run_script
from tests.growth import growth

CALLS = 2000
# Memory that they may leave in one process: 0.1 MB at most was measured, and 1.0 with 400 bytes kept of each.
GROWTH = 2**19


@pytest.fixture(scope="module")
def extractor(checkpoints: Path) -> Iterator[Extractor]:
    with Extractor(checkpoints, "llama") as extractor:
        yield extractor


@pytest.mark.skipif(detect("vllm").within("<0.11.1") is True, reason="a step of vLLM 0.11.0 has one phase")
def test_no_token_is_sampled(extractor: Extractor) -> None:
    with recorded_calls(extractor.generator) as called:
        extractor.check([prompt(300, seed) for seed in range(40)])  # several steps
    assert called.count("execute_model") > 1
    assert "sample_tokens" not in called


def test_no_block_is_hashed(extractor: Extractor, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, requests = inspect.unwrap(extractor.generator.scheduler), []
    add = scheduler.add_request
    monkeypatch.setattr(scheduler, "add_request", lambda request: (requests.append(request), add(request)))
    extractor.check([prompt(100), prompt(50, 1)])
    assert [list(request.block_hashes) for request in requests] == [[], []]


def test_activation_does_not_import_the_model_runner() -> None:
    """That takes 0.1 s, and the caller has no use for it."""
    process = run_script("""
        import sys
        import speculators_compat
        import speculators.data_generation.vllm_hidden_states_generator
        assert speculators_compat.status().patched
        print("IMPORTED", "vllm.v1.worker.gpu_model_runner" in sys.modules)
    """)
    assert "IMPORTED False" in process.stdout, process.stderr[-3000:]


def test_two_thousand_calls_leave_nothing(extractor: Extractor) -> None:
    for grown in growth(extractor.generator, CALLS):
        assert grown.pop("host bytes") < GROWTH
        assert not any(grown.values()), grown
