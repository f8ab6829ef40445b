"""The adapters, in the order in which they are applied: a later one stands in front of an earlier one."""

from __future__ import annotations

from speculators_compat.adapter import Adapter
from speculators_compat.adapters import (
    async_scheduling,
    block_hasher,
    cpu_rotary_embedding,
    decoder_signature,
    device_memory,
    failed_call,
    fork_safety,
    input_validation,
    kv_cache_arguments,
    multimodal_text_only,
    prefill_loop,
    prefix_caching,
    result_order,
    scheduler_block_size,
    scheduler_config_fields,
    tensor_safe_reply,
    tokenizer_remote_code,
    two_phase_step,
    unguarded_main,
    worker_activation,
)

ADAPTERS: tuple[Adapter, ...] = (
    # Building the generator.
    input_validation.ADAPTER,
    tokenizer_remote_code.ADAPTER,
    scheduler_config_fields.ADAPTER,
    multimodal_text_only.ADAPTER,
    prefix_caching.ADAPTER,
    async_scheduling.ADAPTER,
    fork_safety.ADAPTER,
    unguarded_main.ADAPTER,
    worker_activation.ADAPTER,
    device_memory.ADAPTER,
    kv_cache_arguments.ADAPTER,
    scheduler_block_size.ADAPTER,
    # Inside the workers.
    decoder_signature.ADAPTER,
    cpu_rotary_embedding.ADAPTER,
    # Extracting hidden states.
    block_hasher.ADAPTER,
    two_phase_step.ADAPTER,
    prefill_loop.ADAPTER,
    tensor_safe_reply.ADAPTER,
    result_order.ADAPTER,
    failed_call.ADAPTER,
)
