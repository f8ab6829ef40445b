"""Calls a function each time one of a few modules has been executed.

wrapt has post-import hooks too, but they fire once per process: `importlib.reload()`, and an import after a removal from
`sys.modules`, would silently give back an unpatched module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Hook = Callable[[ModuleType], None]


class PostImportFinder(MetaPathFinder):
    """Lets the other finders find a module, and calls a hook when its loader has executed it."""

    def __init__(self, hook: Hook, names: frozenset[str]) -> None:
        self.hook = hook
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = PostImportLoader(spec.loader, self.hook)
                return spec
        return None


class PostImportLoader(Loader):
    """Executes a module with its own loader, gives that loader back to it, and calls the hook."""

    def __init__(self, loader: Loader, hook: Hook) -> None:
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


def install(hook: Hook, names: frozenset[str]) -> PostImportFinder:
    """Call `hook` with each module of `names` that is executed from now on."""
    finder = PostImportFinder(hook, names)
    sys.meta_path.insert(0, finder)
    return finder
