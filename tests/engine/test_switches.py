"""Each adapter switched off by name, on real vLLM: the symptom that its record promises has to appear, and no other.

Three contracts are broken only where CUDA is (`async_scheduling`, `fork_safety`, and `scheduler_block_size` with
speculators 0.4); tests/gpu/run_on_gpu.py switches those off. Which contracts are broken depends on the vLLM: the suite is
written for 0.16 and the newest. Between them, `cpu_rms_norm` (0.12) shows in the matrix, and no CPU runs `moved_names` (0.33).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import speculators_compat
from speculators_compat.detection import detect
from tests.cases import SHARED
from tests.engine.support import Extractor, prompt, requests_in_workers, run_script

LINES = {"0.3": detect("speculators").within("<0.4"), "0.4": detect("speculators").within(">=0.4")}


def extract(*batches: list[list[int]]) -> Callable[[Extractor], None]:
    def body(extractor: Extractor) -> None:
        for batch in batches:
            extractor.check(batch)

    return body


extract_one_prompt = extract([prompt(20)])


def extract_unchecked_ids(extractor: Extractor) -> None:
    extractor.generator.generate([[1, 2], [3, 600]])


def fail_and_look(extractor: Extractor) -> None:
    """Let the second call to the workers fail, and see what the failed call has left."""
    inner = extractor.generator.executor.__wrapped__
    rpc = inner.collective_rpc
    inner.collective_rpc = lambda name, *args, **kwargs: 1 / 0 if name == "_reset_capture" else rpc(name, *args, **kwargs)
    with pytest.raises(ZeroDivisionError):
        extractor.generator.generate([prompt(20)])
    assert not extractor.generator.scheduler.submitted, "requests of a failed call are left"


def look_for_the_tower(extractor: Extractor) -> None:
    (names,) = extractor.generator.executor.collective_rpc(
        lambda worker: [name for name, _ in worker.model_runner.get_model().named_parameters()]
    )
    assert not [name for name in names if "vision_tower" in name], "the vision tower is loaded"


def look_for_requests_in_workers(extractor: Extractor) -> None:
    for _ in range(2):
        extractor.generator.generate([prompt(20, seed) for seed in range(8)])
    assert requests_in_workers(extractor.generator) == [0], "requests are left in the workers"


@dataclass(frozen=True)
class Case:
    """What to run without which adapter, and what then has to be seen.

    Attributes:
        adapter: The adapter that is switched off.
        seen: A part of the exception.
        body: What to do with the generator.
        lines: The speculators lines whose contract is broken.
        also_off: Adapters that would otherwise make this one unnecessary.
        model: The checkpoint.
        plugins: Value of VLLM_PLUGINS, if any.
    """

    adapter: str
    seen: str
    body: Callable[[Extractor], None] = extract_one_prompt
    lines: tuple[str, ...] = ("0.3", "0.4")
    also_off: tuple[str, ...] = ()
    model: str = "llama"
    plugins: str | None = None


NO_START = "WorkerProc initialization failed"

CASES = [
    Case("tokenizer_remote_code", "contains custom code which must be executed", model="kimi_k25"),
    Case("scheduler_config_fields", "1 validation error for SchedulerConfig", lines=("0.3",)),
    Case("multimodal_text_only", f"vision|{NO_START}", look_for_the_tower, model="kimi_k25"),
    Case(
        "prefix_caching",
        "has 43 tokens, but hidden states of 11 were captured",
        extract([SHARED + prompt(9)], [SHARED + prompt(3)]),
        lines=("0.3",),
    ),
    Case("block_hasher", "AssertionError", lines=("0.3",), also_off=("prefix_caching",)),
    # With transformers 5, workers cannot even import speculators.
    Case("worker_activation", f"has no attribute 'get_input_embeddings'|{NO_START}", lines=("0.3",), plugins="none"),
    Case("worker_activation", f"Failed to capture hidden states|{NO_START}", lines=("0.4",), plugins="none"),
    Case("device_memory", "Found no NVIDIA driver"),
    Case("kv_cache_arguments", "got an unexpected keyword argument 'kv_cache_specs'", lines=("0.3",)),
    Case("scheduler_block_size", "missing 1 required positional argument: 'block_size'", lines=("0.3",)),
    Case("decoder_signature", "has no attribute 'get_input_embeddings'", lines=("0.3",)),
    Case("decoder_signature", "does not support hidden state extraction", lines=("0.3",), model="deepseek_v3"),
    Case("decoder_signature", "Failed to capture hidden states", lines=("0.4",)),
    Case("cpu_rotary_embedding", "errors by layer", model="deepseek_v3"),
    Case(
        "two_phase_step",
        "State error: sample_tokens() must be called after execute_model() returns None.",
        extract([prompt(20)], [prompt(20)]),
    ),
    Case(
        "prefill_loop",
        "tokens, but hidden states of",
        extract([prompt(500, seed) for seed in range(40)]),
    ),
    Case("prefill_loop", "requests are left in the workers", look_for_requests_in_workers),
    Case("tensor_safe_reply", "Boolean value of Tensor with more than one value is ambiguous", lines=("0.3",)),
    Case("result_order", "assert [", extract([prompt(5 + seed, seed) for seed in range(12)]), lines=("0.4",)),
    Case("input_validation", "IndexError|index out of range|out of vocabulary|Assert", extract_unchecked_ids),
    Case("request_eos_token", "unexpected keyword argument 'eos_token_id'"),
    Case("kv_cache_layout", "KV cache layout has not been resolved yet"),
    Case("cache_block_size", "No common block size for 16"),
    Case("failed_call", "requests of a failed call are left", fail_and_look),
]


def decided() -> dict[str, str]:
    return {decision.adapter.name: decision.state.value for decision in speculators_compat.status().decisions}


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Activates the package anew with some adapters off, and at the end with all of them on."""

    def off(*names: str) -> None:
        monkeypatch.setenv("SPECULATORS_COMPAT_DISABLE", ",".join(names))
        speculators_compat.deactivate()
        speculators_compat.activate()

    yield off
    monkeypatch.undo()
    speculators_compat.deactivate()
    speculators_compat.activate()


@pytest.mark.parametrize("case", CASES, ids=[f"{case.adapter}-{case.seen[:24]}" for case in CASES])
def test_the_recorded_symptom_appears(
    checkpoints: Path, switch: Callable[..., None], monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    if not any(LINES[line] for line in case.lines):
        pytest.skip(f"this contract is intact with {detect('speculators')}")
    if decided()[case.adapter] == "not needed":
        pytest.skip(f"this contract is intact with {detect('vllm')}")
    if case.adapter == "tokenizer_remote_code" and not detect("transformers").within("<5"):
        pytest.skip("transformers 5 reads the tiny Kimi's tokenizer.json without its remote code")
    if case.plugins is not None:
        monkeypatch.setenv("VLLM_PLUGINS", case.plugins)
    switch(case.adapter, *case.also_off)
    assert decided()[case.adapter] == "switched off"
    with pytest.raises((Exception, SystemExit)) as caught, Extractor(checkpoints, case.model) as extractor:
        case.body(extractor)
    found = f"{caught.type.__name__}: {caught.value}"
    assert any(words in found for words in case.seen.split("|")), found


@pytest.mark.parametrize("plugins", [None, "none"], ids=["plugin only", "extension path only"])
def test_either_road_into_the_workers_suffices(
    checkpoints: Path, switch: Callable[..., None], monkeypatch: pytest.MonkeyPatch, plugins: str | None
) -> None:
    if plugins is None:
        switch("worker_activation")
    else:
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
    with Extractor(checkpoints, "llama") as extractor:
        extractor.check([prompt(20)])


def test_the_config_never_schedules_asynchronously(llama: Extractor, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM turns async scheduling off by itself on a CPU, so here only the toggle is tested; on a GPU, the race."""
    from types import SimpleNamespace

    from speculators_compat.adapters.async_scheduling import without_async_scheduling

    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=True))
    without_async_scheduling(lambda vllm_config: None, None, (), {"vllm_config": config})
    assert config.scheduler_config.async_scheduling is False
    assert llama.generator.vllm_config.scheduler_config.async_scheduling is False


@pytest.mark.skipif(detect("transformers").within("<5") is True, reason="this contract is intact before transformers 5")
def test_without_the_adapter_speculators_cannot_be_imported() -> None:
    process = run_script("import speculators_compat, speculators", SPECULATORS_COMPAT_DISABLE="transformers_configs")
    assert "name 'torch' is not defined" in process.stderr, process.stderr[-2000:]


def test_an_unknown_name_is_an_error_that_lists_the_known() -> None:
    process = run_script("import speculators_compat", SPECULATORS_COMPAT_DISABLE="block_hasher,blok_hasher")
    assert process.returncode != 0
    assert "SwitchError: SPECULATORS_COMPAT_DISABLE names blok_hasher" in process.stderr
    assert "prefill_loop" in process.stderr


def test_recurrent_models_get_their_prompts_whole() -> None:
    """Recurrent layers have no CPU kernels, so here only the rule is tested; docs/architectures.md has them from a GPU."""
    from types import SimpleNamespace

    from speculators_compat.adapters.whole_prompts import without_chunks

    def build(budget: int, **kind: bool) -> Any:
        model = SimpleNamespace(is_hybrid=False, is_attention_free=False, max_model_len=100, architecture="Mamba")
        vars(model).update(kind)
        scheduler = SimpleNamespace(max_num_batched_tokens=budget, enable_chunked_prefill=True, long_prefill_token_threshold=10)
        config = SimpleNamespace(model_config=model, scheduler_config=scheduler)
        without_chunks(lambda vllm_config: None, None, (), {"vllm_config": config})
        return scheduler.enable_chunked_prefill, scheduler.long_prefill_token_threshold

    assert build(50) == (True, 10)
    assert build(100, is_hybrid=True) == (False, 0)
    assert build(100, is_attention_free=True) == (False, 0)
    with pytest.raises(
        speculators_compat.SpeculatorsCompatError, match="max_num_batched_tokens is 50, less than max_model_len"
    ):
        build(50, is_hybrid=True)
