"""Decoder signatures: upstream replaces the model's forward by its own loop, which calls every layer in one fixed way.

DeepSeek-V2's layers take `llama_4_scaling`, other models' take other extras, return one tensor, or live elsewhere. Taps on
the layers leave the loop to the model, so its layers get what they take. Rows are then attributed in the worker, and the
reply is checked and given the form that the installed speculators expects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, accepts, code_of, executor, require, worker_method
from speculators_compat.delivery import CapturingExecutor
from speculators_compat.errors import CaptureError, ConfigurationError, ContractError, ModelError
from speculators_compat.patching import proxied
from speculators_compat.worker.capture import Capture, CapturedStates
from speculators_compat.worker.decoder import find_decoder_layers
from speculators_compat.worker.model_runner import ModelRunner
from speculators_compat.worker.residual_stream import learn_stream_forms

DUMMY_TOKENS = 16

# In the workers.


def set_up_taps(wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Stand in for `_setup_hidden_states_capture(layer_ids)`."""
    from vllm.distributed import get_tp_group

    def set_up(layer_ids: Any) -> None:
        if (earlier := getattr(worker, "_capture", None)) is not None:
            earlier.close()
        worker._layer_ids, worker._captured_states = frozenset(layer_ids), None  # which overrides may read
        worker._capture, worker._refusal, worker._sample = None, "", None
        runner = worker.model_runner
        config = worker.model_config
        try:
            layers = find_decoder_layers(runner.get_model(), config)
            hidden_size = config.hf_text_config.hidden_size
            forms, scale = learn_stream_forms(layers, hidden_size, lambda: ModelRunner.of(runner).run_dummy_batch(DUMMY_TOKENS))
        except ModelError as error:
            # Raised here, it would reach the caller as any failure of a worker does. So it is asked for.
            worker._refusal = str(error)
            return
        # All tensor-parallel ranks hold the same stream.
        targets = sorted(set(layer_ids)) if get_tp_group().rank_in_group == 0 else []
        worker._capture = Capture(
            runner,
            {index: layers[index] for index in targets},
            {index: forms[index] for index in targets},
            (lambda rows: worker._store_captured_states(rows)) if _overrides_store(worker) else None,
            scale,
        )
        worker._extents = worker._capture.extents
        worker._sample, worker._write_sample = worker._capture.sample(), worker._capture.memory.write_sample
        worker._share_no_memory = worker._capture.share_no_memory
        worker._end_steps = worker._capture.end_steps  # for two_phase_step

    set_up(*args, **kwargs)


def _overrides_store(worker: Any) -> bool:
    """Whether users see states on their way, before they are placed."""
    return getattr(worker._store_captured_states, "_self_wrapper", None) is not place_states


def begin_capture(wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Stand in for `_reset_capture()`."""
    if reason := getattr(worker, "_refusal", ""):
        raise CaptureError(reason)
    if getattr(worker, "_capture", None) is None:
        raise CaptureError(
            "no capture has been set up: _setup_hidden_states_capture was not called, or an override does not call super()"
        )
    worker._captured_states = None
    worker._capture.begin()


def place_states(wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Stand in for `_store_captured_states(aux_hidden_states)`, which users override and call."""
    worker._capture.place(*args, **kwargs)


def end_capture(
    wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CapturedStates | None:
    """Stand in for `_get_captured_states()`."""
    captured: CapturedStates | None = worker._capture.end()
    return captured


# In the caller.


def with_capture(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _check_configuration(kwargs["vllm_config"])
    return proxied(wrapped(*args, **kwargs), CapturingExecutor)


def _check_configuration(vllm_config: Any) -> None:
    """Refuse what taps cannot see through, before a model is loaded.

    Raises:
        ConfigurationError: With compilation or pipeline parallelism.
        ModelError: For an encoder-decoder.
    """
    if vllm_config.model_config.is_encoder_decoder:
        raise ModelError(
            f"{vllm_config.model_config.architecture} is an encoder-decoder: its decoder attends to an encoder's output, so a "
            "prompt of tokens alone has no hidden states. Use a decoder-only model."
        )
    compilation = vllm_config.compilation_config
    if mode := getattr(compilation, "mode", getattr(compilation, "level", None)):  # level: its name in vLLM 0.11.0
        raise ConfigurationError(
            f"compilation mode is {mode!r}: compiled layers cannot be tapped. "
            "Build the ModelConfig with enforce_eager=True, as speculators does."
        )
    parallel = vllm_config.parallel_config
    if (size := parallel.pipeline_parallel_size) > 1:
        raise ConfigurationError(
            f"pipeline_parallel_size is {size}: each rank has only some of the layers. Use tensor parallelism."
        )
    if (size := getattr(parallel, "prefill_context_parallel_size", 1)) > 1:
        raise ConfigurationError(
            f"prefill_context_parallel_size is {size}: each rank has only some of the tokens. Use tensor parallelism."
        )


def probe() -> Finding:
    from speculators.data_generation.custom_worker import HiddenStatesWorkerExtension
    from vllm.config import CompilationConfig

    for method in ("execute_model", "_dummy_run", "get_model"):
        code_of("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", method)
    methods = ("_setup_hidden_states_capture", "_reset_capture", "_store_captured_states", "_get_captured_states")
    require(HiddenStatesWorkerExtension, "speculators' HiddenStatesWorkerExtension", *methods)
    if not any(accepts(CompilationConfig, field, "vllm.config.CompilationConfig") for field in ("mode", "level")):
        raise ContractError("vllm.config.CompilationConfig has neither mode nor level, so compiled layers could not be told")
    return Finding.broken("speculators calls decoder layers itself, in one fixed way")


ADAPTER = Adapter(
    name="decoder_signature",
    contract="Every decoder layer is at model.model.layers, takes (positions, hidden_states, residual), returns two tensors "
    "to be added, and the batch is in the scheduler's order.",
    symptom="'LlamaModel' object has no attribute 'get_input_embeddings'; Model DeepseekV3ForCausalLM does not support "
    "hidden state extraction; 'GPUModelRunner' object has no attribute 'input_batch'; "
    "TypeError: forward() got an unexpected keyword argument; or silently wrong states",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/model_executor/models: get_input_embeddings renamed (0.11.1), llama_4_scaling in deepseek_v2.py (0.12.0)",
    removable_when="speculators taps layers, or uses vLLM's own extraction of hidden states",
    probe=probe,
    patches=(
        executor(with_capture),
        worker_method("_setup_hidden_states_capture", set_up_taps),
        worker_method("_reset_capture", begin_capture),
        worker_method("_store_captured_states", place_states),
        worker_method("_get_captured_states", end_capture),
    ),
)
