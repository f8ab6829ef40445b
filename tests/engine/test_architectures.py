"""Models that users extract from, in the precision that they are published in; kinds of layers are in test_registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import SHARED
from tests.engine.support import Extractor, prompt, why_not

# Every vLLM shows tensor parallelism once, on the model that it is for.
FOR_OLD_VLLM, FOR_NEW_VLLM = ([pytest.mark.matrix], []) if why_not("kimi_k25") else ([], [pytest.mark.matrix])
BATCH = [SHARED + prompt(3), SHARED + prompt(7), prompt(1), *(prompt(300 + seed, seed) for seed in range(40))]


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v3", "kimi_k25"])
def test_states_are_right(checkpoints: Path, name: str) -> None:
    with Extractor(checkpoints, name) as extractor:
        extractor.check(BATCH)
        extractor.check(BATCH[:3])


@pytest.mark.matrix
def test_all_layers_of_deepseek_in_float32(checkpoints: Path) -> None:
    """Six digits: the rotary embedding, the router and the shared experts are all as Hugging Face has them."""
    with Extractor(checkpoints, "deepseek_v3", float32=True, layer_ids=list(range(5))) as extractor:
        extractor.check(BATCH)


def test_deepseek_in_float16(checkpoints: Path) -> None:
    """There vLLM scales hidden and residual down by routed_scaling_factor, against overflow."""
    import torch
    from speculators.data_generation import VllmHiddenStatesGenerator

    class Float16Generator(VllmHiddenStatesGenerator):  # type: ignore[misc]
        def _create_vllm_config(self, *args: object, **kwargs: object) -> object:
            config = super()._create_vllm_config(*args, **kwargs)
            config.model_config.dtype = torch.float16
            return config

    with Extractor(checkpoints, "deepseek_v3", generator=Float16Generator) as extractor:
        extractor.check(BATCH)


def test_kimi_loads_no_vision_tower(checkpoints: Path) -> None:
    with Extractor(checkpoints, "kimi_k25") as extractor:
        (names,) = extractor.generator.executor.collective_rpc(
            lambda worker: [name for name, _ in worker.model_runner.get_model().named_parameters()]
        )
        assert names
        assert not [name for name in names if not name.startswith("language_model.")]


@pytest.mark.parametrize("name", [pytest.param("llama", marks=FOR_OLD_VLLM), pytest.param("kimi_k25", marks=FOR_NEW_VLLM)])
def test_tensor_parallel_size_2(checkpoints: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    with Extractor(checkpoints, name, tensor_parallel_size=2) as extractor:
        extractor.check(BATCH)
        tapped = extractor.generator.executor.collective_rpc(lambda worker: len(worker._capture._taps))
        assert tapped == [len(extractor.layers), 0]


def test_layers_in_any_order_and_twice(checkpoints: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Extractor(checkpoints, "llama", layer_ids=[3, 1, 3, 0]) as extractor:
        assert extractor.layers == [0, 1, 3]
        extractor.check([prompt(20)])
    assert "states come in ascending order, once per layer: [0, 1, 3]" in caplog.text
