"""vLLM's CPU kernel for rotary embeddings misreads interleaved heads in a tensor `[tokens, heads, head_size]`.

DeepSeek and Kimi call it that way. The layer's own PyTorch implementation is right, so it is used instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, worker_method


def with_right_rotary_embedding(wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Before capture is set up, send interleaved rotary embeddings through their PyTorch implementation."""
    for module in worker.model_runner.get_model().modules():
        if getattr(module, "is_neox_style", True) is False and hasattr(module, "_forward_method"):
            module._forward_method = module.forward_native
    return wrapped(*args, **kwargs)


def kernel_is_right() -> bool:
    """Run the kernel on four query heads and one key head, laid out as DeepSeek does, and compare with the definition."""
    import torch
    import vllm._custom_ops as ops

    generator = torch.Generator().manual_seed(0)
    tokens, heads, size = 3, 4, 8
    positions = torch.arange(tokens)
    query = torch.randn(tokens, heads, size, generator=generator)
    key = torch.randn(tokens, 1, size, generator=generator)
    angles = torch.outer(positions.float() + 1, torch.rand(size // 2, generator=generator))
    expected = [_rotated(query, angles), _rotated(key, angles)]
    ops.rotary_embedding(positions, query, key, size, torch.cat([angles.cos(), angles.sin()], dim=-1), False)
    return all(torch.allclose(x, y, atol=1e-4) for x, y in zip((query, key), expected, strict=True))


def _rotated(heads: Any, angles: Any) -> Any:
    """Rotate each pair of neighbouring values of `heads` `[tokens, heads, size]` by its angle `[tokens, size / 2]`."""
    import torch

    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    even, odd = heads[..., ::2], heads[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def probe() -> Finding:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return Finding.intact(f"vLLM runs on {current_platform.device_type}")
    if kernel_is_right():
        return Finding.intact("the kernel agrees with the definition")
    return Finding.broken("the kernel disagrees with the definition for interleaved heads")


ADAPTER = Adapter(
    name="cpu_rotary_embedding",
    contract="On a CPU, a rotary embedding rotates the query and key heads that it is given.",
    symptom="Silently wrong on a CPU: states of DeepSeek and Kimi are 3 to 15 % off, and differ alone and in a batch",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vLLM's CPU extension, op rotary_embedding with is_neox=False",
    removable_when="the probe finds the kernel right on every supported vLLM",
    probe=probe,
    patches=(worker_method("_setup_hidden_states_capture", with_right_rotary_embedding),),
)
