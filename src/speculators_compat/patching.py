"""Puts one patch in front of one name, and takes it away again."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    """A patch that stands: where, and the replacements that it has made, of which one is in the chain of wrappers there."""

    patch: Patch
    holder: Any
    attribute: str
    replacements: list[Any] = field(default_factory=list)
    enabled: bool = True
    seen: Any = None

    def stand(self) -> None:
        """Put a replacement in front of what is there, unless one of ours is in front of it already."""
        found = vars(self.holder)[self.attribute]
        if found is not self.seen and not any(wrapper is ours for wrapper in _chain(found) for ours in self.replacements):
            self.replacements.append(_replacement(self, found))
            setattr(self.holder, self.attribute, self.replacements[-1])
        self.seen = vars(self.holder)[self.attribute]  # that it is there still is all there is to see, nearly always

    def undo(self) -> None:
        """Put back what is behind the replacement. A wrapper that somebody kept calls straight through from now on."""
        self.enabled = False
        found = vars(self.holder).get(self.attribute)
        if any(found is ours for ours in self.replacements):
            setattr(self.holder, self.attribute, found.__wrapped__)


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
    applied = AppliedPatch(patch, holder, attribute)
    applied.stand()
    return applied


def _replacement(applied: AppliedPatch, original: Any) -> Any:
    if applied.patch.stand_in is not None:
        return applied.patch.stand_in(original)
    wrapper: Any = applied.patch.wrapper
    return wrapt.FunctionWrapper(original, wrapper, lambda: applied.enabled)


def _chain(found: Any) -> Iterator[Any]:
    """`found` and what it wraps, from the outside in."""
    while isinstance(found, wrapt.ObjectProxy | wrapt.FunctionWrapper):
        yield found
        found = found.__wrapped__


def proxied(thing: Any, proxy: type[Proxy], *args: Any) -> Any:
    """`proxy(thing, *args)`, unless such a proxy stands before `thing` already: seams may be passed twice (see `reseat`)."""
    return thing if any(type(inner) is proxy for inner in _chain(thing)) else proxy(thing, *args)
