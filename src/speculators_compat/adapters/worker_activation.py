"""A spawned worker imports upstream's worker extension afresh, so what was patched in the caller is not patched there.

The entry point `vllm.general_plugins` activates this package in workers, but `VLLM_PLUGINS` can switch it off. This is a
second road, independent of it: the path of the worker extension brings the package along when it is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor


class ExtensionPath(str):
    """The qualified name of a worker extension. To unpickle it is to import, and so to activate, speculators_compat."""

    __slots__ = ()


def with_activating_path(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    parallel_config = kwargs["vllm_config"].parallel_config
    if isinstance(path := parallel_config.worker_extension_cls, str):
        parallel_config.worker_extension_cls = ExtensionPath(path)
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.config import ParallelConfig

    if not hasattr(ParallelConfig, "worker_extension_cls"):
        return Finding.intact("vLLM has no worker extensions")
    return Finding.broken("workers may be spawned, and load the extension by name")


ADAPTER = Adapter(
    name="worker_activation",
    contract="The worker extension runs in the workers as it does in the caller.",
    symptom="With VLLM_PLUGINS set: 'LlamaModel' object has no attribute 'get_input_embeddings'",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/plugins: VLLM_PLUGINS filters the entry point that activates this package in workers",
    removable_when="the worker extension needs no adapter",
    probe=probe,
    patches=(executor(with_activating_path),),
)
