"""What is built on in vLLM, and by whom: by adapters, by other modules of this package, and by speculators' own code.

A contract is a dotted name, read as code is, with calls left out: `vllm.distributed.get_tp_group.rank_in_group` is an attribute
of what `get_tp_group()` returns. A block `with self.guard():` is named by its guard, and has what is called in it.
"""

from __future__ import annotations


def of(holder: str, *names: str) -> tuple[str, ...]:
    """Names within a module or class."""
    return tuple(f"{holder}.{name}" for name in names)


CONFIG = "vllm.config"
KV_CACHE_UTILS = "vllm.v1.core.kv_cache_utils"
SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
EXECUTOR = "vllm.v1.executor.multiproc_executor.MultiprocExecutor"
REQUEST = "vllm.v1.request.Request"
FINISHED_ABORTED = "vllm.v1.request.RequestStatus.FINISHED_ABORTED"
WORKER = "vllm.v1.worker.gpu_worker.Worker"
RUNNER_V1 = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
RUNNER_V2 = "vllm.v1.worker.gpu.model_runner.GPUModelRunner"
PLATFORM = "vllm.platforms.current_platform"

# speculators' generator and worker extension, on whose behalf the adapters stand where a contract does not hold.
SPECULATORS = "speculators"

CONTRACTS: dict[str, tuple[str, ...]] = {
    SPECULATORS: (
        "vllm.__version__",
        *of(f"{CONFIG}.VllmConfig", "model_config", "cache_config", "parallel_config", "scheduler_config"),
        *of(f"{CONFIG}.VllmConfig", "device_config", "load_config"),
        *of(f"{CONFIG}.ModelConfig", "model", "tokenizer", "trust_remote_code", "dtype", "max_model_len", "enforce_eager"),
        *of(f"{CONFIG}.CacheConfig", "block_size", "gpu_memory_utilization", "enable_prefix_caching", "num_gpu_blocks"),
        *of(f"{CONFIG}.CacheConfig", "prefix_caching_hash_algo"),
        *of(f"{CONFIG}.ParallelConfig", "tensor_parallel_size", "worker_extension_cls"),
        *of(f"{CONFIG}.SchedulerConfig", "max_num_seqs", "max_model_len", "max_num_batched_tokens", "is_encoder_decoder"),
        *of(CONFIG, "DeviceConfig", "LoadConfig"),
        *of("vllm.sampling_params.SamplingParams", "max_tokens", "temperature"),
        "vllm.utils.hashing.get_hash_fn_by_name",
        *of(KV_CACHE_UTILS, "unify_hybrid_kv_cache_specs", "_get_kv_cache_groups_uniform_spec"),
        *of(KV_CACHE_UTILS, "get_kv_cache_config_from_groups", "get_request_block_hasher", "init_none_hash"),
        f"{KV_CACHE_UTILS}.get_kv_cache_config_from_groups.num_blocks",
        "vllm.v1.structured_output.StructuredOutputManager.__init__",
        *of(SCHEDULER, "__init__", "add_request", "schedule", "finish_requests"),
        *of(f"{SCHEDULER}.schedule", "total_num_scheduled_tokens", "num_scheduled_tokens"),
        *of(EXECUTOR, "__init__", "collective_rpc", "execute_model", "sample_tokens", "initialize_from_config", "shutdown"),
        f"{REQUEST}.__init__",
        FINISHED_ABORTED,
        # In the workers.
        *of("vllm.distributed", "get_pp_group", "get_tp_group"),
        *of("vllm.distributed.get_pp_group", "is_first_rank", "is_last_rank"),
        "vllm.distributed.get_tp_group.rank_in_group",
        "vllm.sequence.IntermediateTensors",
        "vllm.model_executor.models.interfaces.supports_eagle3",
        *of(WORKER, "get_kv_cache_spec", "model_runner"),
        *of(RUNNER_V1, "model", "input_batch.req_id_to_index"),
        *of("vllm.model_executor.models.llama.LlamaModel", "get_input_embeddings", "embed_input_ids"),
        "vllm.model_executor.models.llama.LlamaDecoderLayer.forward",
        "vllm.model_executor.models.deepseek_v2.DeepseekV2DecoderLayer.forward",
    ),
    # Importing speculators.
    "moved_names": of(
        "vllm.v1.core.kv_cache_planning",
        *("unify_hybrid_kv_cache_specs", "_get_kv_cache_groups_uniform_spec", "get_kv_cache_config_from_groups"),
        *("get_kv_cache_groups", "is_kv_cache_spec_uniform"),
    ),
    # Building the generator.
    "input_validation": of(f"{CONFIG}.ModelConfig", "hf_config", "get_vocab_size"),
    "prompts": of(f"{CONFIG}.ModelConfig", "is_hybrid", "is_attention_free"),
    "decoder_layer_count": of("vllm.transformers_utils.config", "get_config", "get_hf_text_config"),
    "generate_runner": of(f"{CONFIG}.ModelConfig", "runner"),
    "scheduler_config_fields": of(f"{CONFIG}.SchedulerConfig", "is_encoder_decoder"),
    "sliding_window": (
        f"{CONFIG}.CacheConfig.sliding_window",
        *of(f"{CONFIG}.ModelConfig", "get_sliding_window", "hf_text_config"),
    ),
    "multimodal_text_only": (
        *of(f"{CONFIG}.ModelConfig", "is_multimodal_model", "multimodal_config"),
        "vllm.config.multimodal.MultiModalConfig.limit_per_prompt",
        *of("vllm.multimodal.MULTIMODAL_REGISTRY._create_processing_info", "get_supported_mm_limits"),
        "vllm.multimodal.registry.MultiModalRegistry._create_processing_info",
    ),
    "prefix_caching": of(f"{CONFIG}.CacheConfig", "enable_prefix_caching", "mamba_cache_mode"),
    "cache_block_size": (
        *of(f"{CONFIG}.CacheConfig", "block_size", "user_specified_block_size"),
        "vllm.platforms.interface.Platform._align_hybrid_block_size",
    ),
    "whole_prompts": (
        *of(f"{CONFIG}.SchedulerConfig", "enable_chunked_prefill", "max_num_batched_tokens"),
        *of(f"{CONFIG}.ModelConfig", "max_model_len", "architecture"),
    ),
    "async_scheduling": of(f"{CONFIG}.SchedulerConfig", "async_scheduling"),
    "fork_safety": ("vllm.envs.VLLM_WORKER_MULTIPROC_METHOD", "vllm.utils.system_utils._maybe_force_spawn"),
    "worker_activation": (
        f"{CONFIG}.ParallelConfig.worker_extension_cls",
        *of("vllm.plugins", "DEFAULT_PLUGINS_GROUP", "load_general_plugins"),
        "vllm.v1.worker.worker_base.WorkerWrapperBase.init_worker",
    ),
    "kv_cache_layout": (
        "vllm.v1.attention.backends.utils.resolve_kv_cache_layout",
        *of(EXECUTOR, "get_kv_cache_specs", "get_supported_kv_cache_layouts", "set_kv_cache_layout"),
        f"{CONFIG}.ParallelConfig.cp_kv_cache_interleave_size",
    ),
    "device_memory": (
        f"{CONFIG}.CacheConfig.kv_cache_memory_bytes",
        *of(PLATFORM, "device_type", "is_cpu", "is_cuda", "get_device_total_memory"),
    ),
    "kv_cache_arguments": (
        f"{KV_CACHE_UTILS}.get_kv_cache_config_from_groups",
        *of("vllm.v1.kv_cache_interface.KVCacheGroupSpec", "layer_names", "kv_cache_spec"),
    ),
    "kv_cache_groups": (
        *of(KV_CACHE_UTILS, "get_kv_cache_groups", "is_kv_cache_spec_uniform", "generate_scheduler_kv_cache_config"),
        "vllm.v1.kv_cache_interface.AttentionSpec",
    ),
    "scheduler_block_size": (
        f"{SCHEDULER}.__init__",
        f"{CONFIG}.CacheConfig.block_size",
        "vllm.v1.kv_cache_interface.KVCacheConfig.kv_cache_groups",
        "vllm.v1.kv_cache_interface.KVCacheGroupSpec.kv_cache_spec.block_size",
        f"{KV_CACHE_UTILS}.resolve_kv_cache_block_sizes",
    ),
    # Inside the workers.
    "decoder_signature": (
        *of(f"{CONFIG}.ModelConfig", "is_encoder_decoder", "architecture", "hf_text_config"),
        *of(f"{CONFIG}.CompilationConfig", "mode", "level"),
        *of(f"{CONFIG}.ParallelConfig", "pipeline_parallel_size", "prefill_context_parallel_size"),
        "vllm.distributed.get_tp_group",
        *of(RUNNER_V1, "execute_model", "_dummy_run", "get_model"),
        f"{WORKER}.model_config",
    ),
    "cpu_rotary_embedding": (
        "vllm._custom_ops.rotary_embedding",
        *of("vllm.model_executor.layers.rotary_embedding.base.RotaryEmbedding", "is_neox_style", "_forward_method"),
        "vllm.model_executor.layers.rotary_embedding.base.RotaryEmbedding.forward_native",
        f"{PLATFORM}.is_cpu",
    ),
    "cpu_rms_norm": ("vllm._custom_ops.rms_norm", *of("vllm.model_executor.layers.layernorm.RMSNorm", "forward_native")),
    # What a preflight loads in place of a checkpoint.
    "preflight.trial": (
        *of("vllm.model_executor.model_loader", "register_model_loader"),
        *of("vllm.model_executor.model_loader.base_loader.BaseModelLoader", "download_model", "load_weights"),
        f"{CONFIG}.ModelConfig.get_hidden_size",
        *of(f"{CONFIG}.VllmConfig", "load_config"),
    ),
    "worker.capture": (*of(RUNNER_V1, "execute_model"), f"{SCHEDULER}.schedule.total_num_scheduled_tokens"),
    "worker.decoder": ("vllm.model_executor.models.interfaces.SupportsMultiModal.get_language_model",),
    "worker.model_runner": (
        "vllm.forward_context.get_forward_context",
        *of(RUNNER_V1, "requests", "input_batch.req_ids", "input_batch.num_computed_tokens_cpu"),
        *of(RUNNER_V1, "execute_model_state", "kv_connector_output", "synchronize_input_prep", "prepare_inputs_event"),
        # What is prepared outside of the guard could be overwritten by the next step before the GPU has read it.
        *of(
            f"{RUNNER_V1}.execute_model.synchronize_input_prep",
            "_update_states",
            "_prepare_inputs",
            "_build_attention_metadata",
            "_preprocess",
        ),
        "vllm.v1.outputs.EMPTY_MODEL_RUNNER_OUTPUT",
        "vllm.v1.worker.gpu_input_batch.CachedRequestState.num_prompt_tokens",
        *of(RUNNER_V2, "execute_model", "_dummy_run", "get_model", "execute_model_state", "req_states"),
        *of("vllm.v1.worker.gpu.input_batch.InputBatch", "req_ids", "idx_mapping_np"),
        *of("vllm.v1.worker.gpu.states.RequestState", "num_computed_tokens_np", "prompt_len"),
        f"{CONFIG}.VllmConfig.use_v2_model_runner",
    ),
    "worker.residual_stream": (
        "vllm.model_executor.layers.attention_layer_base.AttentionLayerBase.get_kv_cache_spec",
        "vllm.model_executor.models.deepseek_v2.DeepseekV2DecoderLayer.routed_scaling_factor",
    ),
    # Extracting hidden states.
    "delivery": ("vllm.envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",),
    "extraction": (
        *of(EXECUTOR, "collective_rpc", "parallel_config"),
        f"{CONFIG}.ParallelConfig.world_size",
        *of("vllm.distributed.device_communicators.shm_broadcast.MessageQueue", "enqueue", "dequeue"),
        *of(REQUEST, "request_id", "num_prompt_tokens"),
    ),
    "request_eos_token": of(REQUEST, "__init__"),
    "block_hasher": (
        f"{REQUEST}.__init__",
        "vllm.utils.hashing.get_hash_fn_by_name",
        *of(KV_CACHE_UTILS, "NONE_HASH", "init_none_hash", "get_request_block_hasher"),
        *of(f"{CONFIG}.CacheConfig", "enable_prefix_caching", "prefix_caching_hash_algo", "block_size"),
    ),
    "two_phase_step": of(EXECUTOR, "execute_model", "sample_tokens"),
    "prefill_loop": (
        *of(SCHEDULER, "add_request", "schedule", "finish_requests", "requests", "cache_config"),
        *of(f"{SCHEDULER}.schedule", "total_num_scheduled_tokens", "num_scheduled_tokens", "finished_req_ids"),
        *of(REQUEST, "num_prompt_tokens", "num_computed_tokens", "num_in_flight_tokens"),
        FINISHED_ABORTED,
        f"{SCHEDULER}.waiting.peek_request",
        f"{CONFIG}.CacheConfig.num_gpu_blocks",
    ),
    "tensor_safe_reply": of(EXECUTOR, "collective_rpc"),
    "failed_call": (
        *of(SCHEDULER, "requests", "schedule", "finish_requests", "has_finished_requests"),
        *of(EXECUTOR, "execute_model", "collective_rpc", "shutdown"),
        FINISHED_ABORTED,
    ),
}


def symbols() -> list[str]:
    """Every contract once, by name."""
    return sorted({symbol for built_on in CONTRACTS.values() for symbol in built_on})


def owners(symbol: str) -> list[str]:
    """Who builds on a contract."""
    return [owner for owner, built_on in CONTRACTS.items() if symbol in built_on]
