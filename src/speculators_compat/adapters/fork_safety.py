"""`import speculators` asks whether CUDA is available in a way that makes every later fork unable to use CUDA."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor

NAME = "fork_safety"
CUDA_ERROR_NOT_INITIALIZED = 3


def keep_cuda_query_fork_safe() -> None:
    """Let `torch.cuda.is_available()` ask NVML, which leaves the CUDA driver uninitialised. Called on activation."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def with_spawn_if_cuda_is_live(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Spawn the workers if the driver is initialised after all, as when speculators was imported before this package."""
    if cuda_driver_is_initialized():
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    return wrapped(*args, **kwargs)


def cuda_driver_is_initialized() -> bool:
    """Whether `cuInit` has been called in this process, by torch or by anybody else."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != CUDA_ERROR_NOT_INITIALIZED)


def probe() -> Finding:
    import torch

    if not torch.backends.cuda.is_built():
        return Finding.intact("this torch has no CUDA")
    return Finding.broken("speculators imports code that torch.compile decorates, which queries CUDA")


ADAPTER = Adapter(
    name=NAME,
    contract="Workers can be forked from a process that has imported speculators.",
    symptom="RuntimeError: Cannot re-initialize CUDA in forked subprocess; "
    "WorkerProc initialization failed due to an exception in a background process",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="torch.compile asks torch.cuda.is_available() on import; vLLM checks torch's own state only "
    "(vllm/utils/system_utils.py: _maybe_force_spawn)",
    removable_when="importing speculators no longer queries CUDA",
    probe=probe,
    patches=(executor(with_spawn_if_cuda_is_live),),
)
