"""Stands beside the import of upstream's modules: before one is executed, after it, and where one is not to be found.

wrapt has post-import hooks too, but they fire once per process: `importlib.reload()`, and an import after a removal from
`sys.modules`, would silently give back an unpatched module. This module is what importing the package costs, so it imports
nothing heavy (`importlib.abc` alone would take 10 ms).
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

SPECULATORS = "speculators"
GENERATOR_MODULE = "speculators.data_generation.vllm_hidden_states_generator"
WORKER_MODULE = "speculators.data_generation.custom_worker"
# What `from speculators.data_generation import VllmHiddenStatesGenerator` looks for, once the package has no such class.
REMOVED_CLASS = "speculators.data_generation.VllmHiddenStatesGenerator"
# speculators_compat_plugin looks for it in vLLM's processes.
ACTIVE_VARIABLE = "SPECULATORS_COMPAT_ACTIVE"


class UpstreamFinder:
    """Lets the other finders find upstream's modules, and `speculators_compat.activation` execute them."""

    names = frozenset({SPECULATORS, GENERATOR_MODULE, WORKER_MODULE, REMOVED_CLASS})

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self.names:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = UpstreamLoader(spec.loader)  # type: ignore[assignment]
                return spec
        if fullname != SPECULATORS:
            from speculators_compat.activation import say_that_it_is_removed

            say_that_it_is_removed(fullname)
        return None


class UpstreamLoader:
    """Has a module executed by its own loader, and gives that loader back to it; before that, answers as that loader does."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        from speculators_compat.activation import execute

        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        execute(module, self.loader)


finder = UpstreamFinder()


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
