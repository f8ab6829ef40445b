"""Calls a function each time one of upstream's modules has been executed.

wrapt has post-import hooks too, but they fire once per process: `importlib.reload()`, and an import after a removal from
`sys.modules`, would silently give back an unpatched module. This module is what importing the package costs, so it imports
nothing heavy (`importlib.abc` alone would take 10 ms).
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

GENERATOR_MODULE = "speculators.data_generation.vllm_hidden_states_generator"
WORKER_MODULE = "speculators.data_generation.custom_worker"
# speculators_compat_plugin looks for it in vLLM's processes.
ACTIVE_VARIABLE = "SPECULATORS_COMPAT_ACTIVE"


class PostImportFinder:
    """Lets the other finders find a module of `names`, and calls `hook` when its loader has executed it."""

    def __init__(self, hook: Callable[[ModuleType], None], names: frozenset[str]) -> None:
        self.hook = hook
        self.names = names

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self.names:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = PostImportLoader(spec.loader, self.hook)  # type: ignore[assignment]
                return spec
        return None


class PostImportLoader:
    """Executes a module with its own loader, gives that loader back to it, and calls `hook`."""

    def __init__(self, loader: Loader, hook: Callable[[ModuleType], None]) -> None:
        self.loader = loader
        self.hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.hook(module)


def _adapt(module: ModuleType) -> None:
    from speculators_compat.activation import adapt

    adapt(module)


finder = PostImportFinder(_adapt, frozenset({GENERATOR_MODULE, WORKER_MODULE}))


def is_watching() -> bool:
    """Whether upstream's modules will be adapted when they are imported."""
    return any(found is finder for found in sys.meta_path)


def watch() -> None:
    """Adapt upstream's modules when they are imported from now on, here and in processes started from here."""
    os.environ[ACTIVE_VARIABLE] = "1"
    if not is_watching():
        sys.meta_path.insert(0, finder)  # type: ignore[arg-type]


def stop_watching() -> None:
    """Leave upstream's modules as they are from now on."""
    os.environ.pop(ACTIVE_VARIABLE, None)
    if is_watching():
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
