"""vLLM's CPU kernel for RMS norms takes a slice of a wider tensor for a whole one, and reads the wrong values.

DeepSeek and Kimi norm such a slice, of the compressed keys and values. The layer's own PyTorch implementation is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, code_of, worker_method


def with_right_norms(wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Before capture is set up, send norms that misread a slice through their PyTorch implementation."""
    from vllm.model_executor.layers.layernorm import RMSNorm

    for module in worker.model_runner.get_model().modules():
        if isinstance(module, RMSNorm) and misreads_slices(module):
            module._forward_method = module.forward_native
    return wrapped(*args, **kwargs)


def misreads_slices(norm: Any) -> bool:
    """Whether `norm` gives for a slice something else than for a copy of the slice."""
    import torch

    weight = norm.weight
    wide = torch.randn(2, 2 * len(weight), generator=torch.Generator().manual_seed(0)).to(weight)
    part = wide[:, : len(weight)]
    return not torch.equal(norm(part), norm(part.contiguous()))


def kernel_is_right() -> bool:
    """Run the kernel on a slice and on a copy of it."""
    import torch
    import vllm._custom_ops as ops

    part, weight = torch.arange(128.0).view(2, 64)[:, :32], torch.ones(32)
    of_slice, of_copy = torch.empty(2, 32), torch.empty(2, 32)
    ops.rms_norm(of_slice, part, weight, 1e-6)
    ops.rms_norm(of_copy, part.contiguous(), weight, 1e-6)
    return bool(torch.equal(of_slice, of_copy))


def probe() -> Finding:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return Finding.intact(f"vLLM runs on {current_platform.device_type}")
    code_of("vllm.model_executor.layers.layernorm", "RMSNorm")
    if kernel_is_right():
        return Finding.intact("the kernel reads slices as what they are")
    return Finding.broken("the kernel misreads slices; the workers find out which layers hand it some")


ADAPTER = Adapter(
    name="cpu_rms_norm",
    contract="On a CPU, an RMS norm of a slice is that of its values.",
    symptom="Silently wrong on a CPU: states of DeepSeek and Kimi are nothing like the right ones, but for the first token",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vLLM's CPU extension, op rms_norm; seen in 0.12.0, and called with slices by RMSNorm there",
    removable_when="the probe finds the kernel right on every supported vLLM",
    probe=probe,
    patches=(worker_method("_setup_hidden_states_capture", with_right_norms),),
)
