"""Upstream asks CUDA how much memory is free; on a host without CUDA the platform that vLLM reports has to answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, Patch
from speculators_compat.errors import ContractError
from speculators_compat.extraction import current
from speculators_compat.import_hooks import GENERATOR_MODULE
from speculators_compat.patching import Proxy


def free_and_total_memory() -> tuple[int, int]:
    """Free and total bytes that the platform allows for weights and KV cache.

    Raises:
        ContractError: If the platform has no way to tell.
    """
    import torch
    from vllm.platforms import current_platform

    device: Any = getattr(torch, current_platform.device_type, None)
    if hasattr(device, "mem_get_info"):
        free, total = device.mem_get_info()
        return int(free), int(total)
    if current_platform.is_cpu():
        space = int(_set_aside() or current_platform.get_device_total_memory())
        return space, space
    raise ContractError(
        f"vLLM's platform {current_platform.device_type!r} found, whose torch module has no mem_get_info(); "
        "expected CUDA, ROCm, XPU, NPU or CPU. Report the platform, or set num_gpu_blocks_override."
    )


def _set_aside() -> int | None:
    """The bytes of VLLM_CPU_KVCACHE_SPACE, which vLLM keeps in its configuration from 0.20 on, and in its platform before."""
    extraction = current()
    cache_config = extraction.generator.vllm_config.cache_config if extraction is not None else None
    return getattr(cache_config, "kv_cache_memory_bytes", None)


def release_cached_memory() -> None:
    """Give memory that torch's allocator keeps back to the device, where there is such an allocator."""
    import torch
    from vllm.platforms import current_platform

    device: Any = getattr(torch, current_platform.device_type, None)
    if hasattr(device, "empty_cache"):
        device.empty_cache()


class PlatformMemory(Proxy):
    """`torch.cuda` with the memory calls answered by vLLM's platform."""

    def mem_get_info(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return free_and_total_memory()

    def empty_cache(self) -> None:
        release_cached_memory()


class PlatformTorch(Proxy):
    """`torch`, as upstream's module sees it on a host without CUDA."""

    @property
    def cuda(self) -> Any:
        return PlatformMemory(self.__wrapped__.cuda)


def _free_and_total(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> tuple[int, int]:
    return free_and_total_memory()


def _release(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    release_cached_memory()


def probe() -> Finding:
    from vllm.platforms import current_platform

    if current_platform.is_cuda():
        return Finding.intact("CUDA answers for itself")
    return Finding.broken(f"vLLM runs on {current_platform.device_type}, not on CUDA")


ADAPTER = Adapter(
    name="device_memory",
    contract="The free memory of the device can be asked for, and cached memory given back.",
    symptom="RuntimeError: Found no NVIDIA driver on your system; AssertionError: Torch not compiled with CUDA enabled; "
    "or with speculators 0.4 a KV cache of 0 blocks",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="speculators: torch.cuda.mem_get_info() and empty_cache(); not a vLLM change",
    removable_when="speculators asks vLLM's current_platform",
    probe=probe,
    # 0.3 calls `torch.cuda`; 0.4 imports two helpers that find no accelerator on a CPU.
    patches=(
        Patch(GENERATOR_MODULE, "torch", stand_in=PlatformTorch),
        Patch(GENERATOR_MODULE, "mem_get_info", _free_and_total, optional=True),
        Patch(GENERATOR_MODULE, "empty_cache", _release, optional=True),
    ),
)
