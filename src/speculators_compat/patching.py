"""Puts one patch in front of one name, and takes it away again."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import wrapt

from speculators_compat.adapter import Patch
from speculators_compat.errors import ContractError

if TYPE_CHECKING:
    Proxy = wrapt.ObjectProxy[Any]
else:  # not subscriptable before wrapt 2
    Proxy = wrapt.ObjectProxy


@dataclass
class AppliedPatch:
    """A patch that stands: where, what was there before, and what is there now."""

    patch: Patch
    holder: Any
    attribute: str
    original: Any
    replacement: Any
    enabled: bool = True

    def undo(self) -> None:
        """Put the original back. A reference that somebody kept to the replacement calls the original from now on."""
        self.enabled = False
        if vars(self.holder).get(self.attribute) is self.replacement:
            setattr(self.holder, self.attribute, self.original)

    def reseat(self) -> None:
        """If somebody has replaced the name since, stand in front of their replacement."""
        found = vars(self.holder).get(self.attribute)
        if self.patch.is_global and found is not self.replacement and not _stands_in(found, self.replacement):
            self.original = found
            self.replacement = _replacement(self, found)
            setattr(self.holder, self.attribute, self.replacement)


def apply(patch: Patch) -> AppliedPatch | None:
    """Resolve the target, keep the original, and put the replacement in its place.

    Returns:
        The patch as it stands, or None if its target is optional and not there.

    Raises:
        ContractError: If the target does not exist.
    """
    holder: Any = importlib.import_module(patch.module)
    *path, attribute = patch.target.split(".")
    for name in path:
        holder = getattr(holder, name, None)
    if holder is None or attribute not in vars(holder):
        if patch.optional:
            return None
        raise ContractError(f"{patch} does not exist, so it cannot be adapted")
    original = vars(holder)[attribute]
    applied = AppliedPatch(patch, holder, attribute, original, None)
    applied.replacement = _replacement(applied, original)
    setattr(holder, attribute, applied.replacement)
    return applied


def _replacement(applied: AppliedPatch, original: Any) -> Any:
    if applied.patch.stand_in is not None:
        return applied.patch.stand_in(original)
    wrapper: Any = applied.patch.wrapper
    return wrapt.FunctionWrapper(original, wrapper, lambda: applied.enabled)


def _stands_in(found: Any, ours: Any) -> bool:
    """Whether `ours` is in the chain of wrappers that `found` heads."""
    while isinstance(found, wrapt.ObjectProxy | wrapt.FunctionWrapper):
        if found is ours:
            return True
        found = found.__wrapped__
    return False


def proxied(thing: Any, proxy: type[Proxy], *args: Any) -> Any:
    """`proxy(thing, *args)`, unless such a proxy stands before `thing` already: seams may be passed twice (see `reseat`)."""
    inner = thing
    while isinstance(inner, wrapt.ObjectProxy):
        if type(inner) is proxy:
            return thing
        inner = inner.__wrapped__
    return proxy(thing, *args)
