"""Each adapter switched off by name, on real vLLM: the symptom that its record promises has to appear, and no other.

Three contracts are broken only where CUDA is (`async_scheduling`, `fork_safety`, and `scheduler_block_size` with
speculators 0.4); tests/gpu/run_on_gpu.py switches those off.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from speculators_compat.detection import detect
from tests.engine.support import run_script

SCRIPT = """
    import speculators_compat
    import sys
    from pathlib import Path
    from tests.engine.support import Extractor, prompt

    if __name__ == "__main__":
        shared = prompt(40, seed=7)
        with Extractor(Path(sys.argv[1]), sys.argv[2]) as extractor:
            {body}
        print("RIGHT")
"""
LINES = {"0.3": detect("speculators").within("<0.4"), "0.4": detect("speculators").within(">=0.4")}


@dataclass(frozen=True)
class Case:
    """What to run without which adapter, and what then has to be seen.

    Attributes:
        adapter: The adapter that is switched off.
        seen: A part of the output, or of the exception.
        body: What the script does with `extractor`.
        lines: The speculators lines whose contract is broken.
        also_off: Adapters that would otherwise make this one unnecessary.
        model: The checkpoint.
        plugins: Value of VLLM_PLUGINS, if any.
    """

    adapter: str
    seen: str
    body: str = "extractor.check([prompt(20)])"
    lines: tuple[str, ...] = ("0.3", "0.4")
    also_off: tuple[str, ...] = ()
    model: str = "llama"
    plugins: str | None = None


TWICE = "extractor.check([prompt(20)]); extractor.check([prompt(20)])"
MANY = "extractor.check([prompt(500, seed) for seed in range(40)])"

CASES = [
    Case("tokenizer_remote_code", "contains custom code which must be executed", model="kimi_k25"),
    Case("scheduler_config_fields", "1 validation error for SchedulerConfig\nis_encoder_decoder", lines=("0.3",)),
    Case(
        "prefix_caching",
        "has 43 tokens, but hidden states of",
        "extractor.check([shared + prompt(9)]); extractor.check([shared + prompt(3)])",
        lines=("0.3",),
    ),
    Case("block_hasher", "AssertionError", lines=("0.3",), also_off=("prefix_caching",)),
    Case("worker_activation", "has no attribute 'get_input_embeddings'", lines=("0.3",), plugins="none"),
    Case("worker_activation", "Failed to capture hidden states", lines=("0.4",), plugins="none"),
    Case("device_memory", "Found no NVIDIA driver"),
    Case("kv_cache_arguments", "got an unexpected keyword argument 'kv_cache_specs'", lines=("0.3",)),
    Case("scheduler_block_size", "missing 1 required positional argument: 'block_size'", lines=("0.3",)),
    Case("decoder_signature", "has no attribute 'get_input_embeddings'", lines=("0.3",)),
    Case("decoder_signature", "does not support hidden state extraction", lines=("0.3",), model="deepseek_v3"),
    Case("decoder_signature", "Failed to capture hidden states", lines=("0.4",)),
    Case("cpu_rotary_embedding", "errors by layer", model="deepseek_v3"),
    Case("two_phase_step", "State error: sample_tokens() must be called after execute_model() returns None.", TWICE),
    Case("prefill_loop", "has 500 tokens, but hidden states of", MANY),
    Case("tensor_safe_reply", "Boolean value of Tensor with more than one value is ambiguous", lines=("0.3",)),
    Case("result_order", "assert [", "extractor.check([prompt(5 + i, i) for i in range(12)])", lines=("0.4",)),
    Case("input_validation", "IndexError", "extractor.generator.generate([[1, 2], [3, 600]])"),
    Case(
        "failed_call",
        "left behind",
        "from tests.engine.support import requests_in_workers as left; inner = extractor.generator.executor.__wrapped__; "
        "rpc = inner.collective_rpc; inner.collective_rpc = lambda name, *a, **k: "
        "rpc(name, *a, **k) if name != '_reset_capture' else 1 / 0\n"
        "            try: extractor.generator.generate([prompt(20)])\n"
        "            except ZeroDivisionError: pass\n"
        "            print('left behind' if extractor.generator.scheduler._self_submitted else 'nothing left')",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.adapter}-{case.seen[:20]}" for case in CASES])
def test_the_recorded_symptom_appears(checkpoints: Path, case: Case) -> None:
    if not any(LINES[line] for line in case.lines):
        pytest.skip(f"this contract is intact with {detect('speculators')}")
    extra = {} if case.plugins is None else {"VLLM_PLUGINS": case.plugins}
    source = SCRIPT.format(body=case.body)
    off = ",".join((case.adapter, *case.also_off))
    process = run_script(source, str(checkpoints), case.model, SPECULATORS_COMPAT_DISABLE=off, **extra)
    output = process.stdout + process.stderr
    assert case.seen in output, output[-4000:]


def test_without_the_multimodal_adapter_the_vision_tower_is_loaded(checkpoints: Path) -> None:
    """The tiny checkpoint has no weights for it, so loading fails, or it is there."""
    body = (
        "print('TOWER', any(extractor.generator.executor.collective_rpc(lambda worker: any('vision_tower' in name "
        "for name, _ in worker.model_runner.get_model().named_parameters()))))"
    )
    off = "multimodal_text_only"
    process = run_script(SCRIPT.format(body=body), str(checkpoints), "kimi_k25", SPECULATORS_COMPAT_DISABLE=off)
    output = process.stdout + process.stderr
    assert "TOWER True" in output or "vision_tower" in output or "image_processing" in output, output[-4000:]


@pytest.mark.parametrize("plugins", [None, "none"], ids=["both roads", "extension path only"])
def test_with_everything_on_it_is_right(checkpoints: Path, plugins: str | None) -> None:
    extra = {} if plugins is None else {"VLLM_PLUGINS": plugins}
    process = run_script(SCRIPT.format(body=TWICE), str(checkpoints), "llama", **extra)
    assert "RIGHT" in process.stdout, process.stderr[-4000:]


def test_the_plugin_alone_suffices(checkpoints: Path) -> None:
    source = SCRIPT.format(body=TWICE)
    process = run_script(source, str(checkpoints), "llama", SPECULATORS_COMPAT_DISABLE="worker_activation")
    assert "RIGHT" in process.stdout, process.stderr[-4000:]


def test_an_unknown_name_is_an_error_that_lists_the_known() -> None:
    process = run_script("import speculators_compat", SPECULATORS_COMPAT_DISABLE="block_hasher,blok_hasher")
    assert process.returncode != 0
    assert "SwitchError: SPECULATORS_COMPAT_DISABLE names blok_hasher" in process.stderr
    assert "prefill_loop" in process.stderr
