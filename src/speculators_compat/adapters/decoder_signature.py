"""Decoder signatures: upstream replaces the model's forward by its own loop, which calls every layer in one fixed way.

DeepSeek-V2's layers take `llama_4_scaling`, other models' take other extras, return one tensor, or live elsewhere. Taps on
the layers leave the loop to the model, so its layers get what they take. Rows are then attributed in the worker, and the
reply is checked and given the form that the installed speculators expects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor, worker_method
from speculators_compat.errors import CaptureError, ConfigurationError, ContractError, ModelError
from speculators_compat.extraction import current
from speculators_compat.patching import Proxy, proxied
from speculators_compat.worker.capture import Capture, CapturedStates, PromptStates
from speculators_compat.worker.decoder import find_decoder_layers
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
        runner = worker.model_runner
        config = worker.model_config
        layers = find_decoder_layers(runner.get_model(), config)
        hidden_size = config.hf_text_config.hidden_size
        forms, scale = learn_stream_forms(layers, hidden_size, lambda: runner._dummy_run(DUMMY_TOKENS))
        # All tensor-parallel ranks hold the same stream.
        targets = sorted(set(layer_ids)) if get_tp_group().rank_in_group == 0 else []
        worker._capture = Capture(
            runner,
            {index: layers[index] for index in targets},
            {index: forms[index] for index in targets},
            lambda rows: worker._store_captured_states(rows),
            scale,
        )

    set_up(*args, **kwargs)


def begin_capture(wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Stand in for `_reset_capture()`."""
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


class CapturingExecutor(Proxy):
    """An executor whose workers' states are complete, or an error, and have the form that upstream reads."""

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        if method == "_setup_hidden_states_capture":
            try:
                return self.__wrapped__.collective_rpc(method, *args, **kwargs)
            except RuntimeError as error:
                raise ModelError(str(error)) from error
        reply = self.__wrapped__.collective_rpc(method, *args, **kwargs)
        return _for_upstream(reply) if isinstance(reply, CapturedStates) else reply


def _for_upstream(captured: CapturedStates) -> Any:
    """By request for speculators that asks by request, else one tensor per layer with the prompts one after another."""
    import torch

    prompts = _complete(captured)
    if _expects_states_by_request():
        return {request_id: prompt.layers for request_id, prompt in prompts.items()}
    return [torch.cat(rows) for rows in zip(*(prompt.layers for prompt in prompts.values()), strict=True)]


def _complete(captured: CapturedStates) -> dict[str, PromptStates]:
    """The prompts in input order, each with a state for every token.

    Raises:
        CaptureError: If the worker could not capture, or something is missing.
    """
    if captured.failure is not None:
        raise CaptureError(f"hidden states could not be captured: {captured.failure}")
    extraction = current()
    if extraction is None:
        raise CaptureError(
            "hidden states were asked for outside of generate(), so it is not known which prompts they belong to"
        )
    lengths = extraction.prompt_lengths
    for index, (request_id, length) in enumerate(lengths.items()):
        prompt = captured.prompts.get(request_id)
        found = 0 if prompt is None else sum(prompt.computed)
        if found != length:
            raise CaptureError(
                f"prompt {index} (request {request_id}) has {length} tokens, but hidden states of {found} were captured; "
                "none are returned. Its other tokens were not computed in this call: check that prefix caching is off."
            )
    return {request_id: captured.prompts[request_id] for request_id in lengths}


def _expects_states_by_request() -> bool:
    from speculators.data_generation import custom_worker

    return hasattr(custom_worker.HiddenStatesWorkerExtension, "_set_request_metadata")


def with_capture(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _check_configuration(kwargs["vllm_config"])
    return proxied(wrapped(*args, **kwargs), CapturingExecutor)


def _check_configuration(vllm_config: Any) -> None:
    """Refuse what taps cannot see through, before a model is loaded.

    Raises:
        ConfigurationError: With compilation or pipeline parallelism.
    """
    if mode := vllm_config.compilation_config.mode:
        raise ConfigurationError(
            f"compilation mode is {mode!r}: compiled layers cannot be tapped. "
            "Build the ModelConfig with enforce_eager=True, as speculators does."
        )
    if (size := vllm_config.parallel_config.pipeline_parallel_size) > 1:
        raise ConfigurationError(
            f"pipeline_parallel_size is {size}: each rank has only some of the layers. Use tensor parallelism."
        )


def probe() -> Finding:
    from speculators.data_generation.custom_worker import HiddenStatesWorkerExtension
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    for method in ("execute_model", "_dummy_run", "get_model"):
        if not hasattr(GPUModelRunner, method):
            raise ContractError(f"vllm.v1.worker.gpu_model_runner.GPUModelRunner has no method {method}")
    for method in ("_setup_hidden_states_capture", "_reset_capture", "_store_captured_states", "_get_captured_states"):
        if not hasattr(HiddenStatesWorkerExtension, method):
            raise ContractError(f"speculators' HiddenStatesWorkerExtension has no method {method}")
    return Finding.broken("speculators calls decoder layers itself, in one fixed way")


ADAPTER = Adapter(
    name="decoder_signature",
    contract="Every decoder layer is at model.model.layers, takes (positions, hidden_states, residual), returns two tensors "
    "to be added, and the batch is in the scheduler's order.",
    symptom="'LlamaModel' object has no attribute 'get_input_embeddings'; Model DeepseekV3ForCausalLM does not support "
    "hidden state extraction; TypeError: forward() got an unexpected keyword argument; or silently wrong states",
    vllm=">=0.11.1",
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
