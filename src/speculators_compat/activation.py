"""Puts the adapters in front of upstream's modules when these are imported, all or nothing, and takes them away again."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from speculators_compat import import_hooks
from speculators_compat.adapter import warn_once
from speculators_compat.adapters import fork_safety
from speculators_compat.errors import ContractError

if TYPE_CHECKING:
    from speculators_compat.detection import Installed
    from speculators_compat.patching import AppliedPatch
    from speculators_compat.plan import Decision

logger = logging.getLogger("speculators_compat")

DISABLE_VARIABLE = "SPECULATORS_COMPAT_DISABLE"


@dataclass(frozen=True)
class Status:
    """What this process has done so far.

    Attributes:
        active: Whether upstream's modules are patched, or will be when they are imported.
        installed: Versions of speculators, vLLM, torch and transformers, from package metadata.
        missing: Those of speculators and vllm that are not installed.
        decisions: What was decided for each adapter; empty until upstream's generator module is imported.
        patched: Names that stand patched now.
    """

    active: bool
    installed: tuple[Installed, ...]
    missing: tuple[str, ...]
    decisions: tuple[Decision, ...]
    patched: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"speculators-compat is {'active' if self.active else 'not active'}"]
        lines += [f"  {found}" for found in self.installed]
        if self.missing:
            lines.append(f"  missing: {', '.join(self.missing)}; nothing will be patched")
        elif not self.decisions:
            lines.append("  speculators' generator has not been imported yet")
        lines += [f"  {d.adapter.name}: {d.state.value} ({d.reason})" for d in self.decisions]
        return "\n".join(lines)


@dataclass
class _Activation:
    """The one mutable state of the package; it survives a reload of this module."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    decisions: tuple[Decision, ...] = ()
    applied: list[AppliedPatch] = field(default_factory=list)
    planning: bool = False


_state: _Activation = globals().get("_state") or _Activation()


def activate() -> None:
    """Patch speculators' generator and worker modules, now or when they are imported. Importing the package calls this.

    Calling it again, or from several threads, changes nothing.

    Raises:
        SwitchError: If `SPECULATORS_COMPAT_DISABLE` names an adapter that does not exist.
        ContractError: If the modules are imported already and an adapter does not recognise what it is to adapt.
            Nothing stays patched then.
    """
    with _state.lock:
        switched_off = _switched_off()
        if import_hooks.is_watching():
            return
        if fork_safety.NAME not in switched_off:
            fork_safety.keep_cuda_query_fork_safe()
        import_hooks.watch()
        generator = sys.modules.get(import_hooks.GENERATOR_MODULE)
        if generator is not None:
            try:
                adapt(generator)
            except BaseException:
                deactivate()
                raise
            _say_what_came_too_late(generator)


def deactivate() -> None:
    """Restore every original and stop watching for imports. Workers that are running keep what they started with."""
    with _state.lock:
        import_hooks.stop_watching()
        _undo()
        _state.decisions = ()


def status() -> Status:
    """Say which versions are here, and which adapters are applied and why."""
    from speculators_compat.detection import detect

    installed = tuple(detect(name) for name in ("speculators", "vllm", "torch", "transformers"))
    with _state.lock:
        return Status(
            active=import_hooks.is_watching(),
            installed=installed,
            missing=tuple(found.module for found in installed[:2] if found.reported is None),
            decisions=_state.decisions,
            patched=tuple(str(applied.patch) for applied in _state.applied),
        )


def _switched_off() -> tuple[str, ...]:
    names = tuple(filter(None, (name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(","))))
    if names:
        from speculators_compat.plan import check_switches
        from speculators_compat.registry import ADAPTERS

        check_switches(ADAPTERS, names)
    return names


def adapt(module: ModuleType) -> None:
    """Make the plan and carry it out on upstream's modules, one of which, `module`, has just been executed.

    Raises:
        ContractError: If an adapter does not recognise what it is to adapt; nothing is patched then.
    """
    from speculators_compat.detection import detect
    from speculators_compat.plan import State, make_plan, untested_warning
    from speculators_compat.registry import ADAPTERS

    with _state.lock:
        if _state.planning:  # a probe imports the other module
            return
        _state.planning = True
        try:
            speculators, vllm = detect("speculators"), detect("vllm")
            if warning := untested_warning(speculators, vllm):
                warn_once(logger, warning)
            decisions = make_plan(ADAPTERS, speculators, vllm, _switched_off())
            if refused := [decision for decision in decisions if decision.state is State.REFUSED]:
                error = ContractError("\n".join(decision.reason for decision in refused))
                # An importer that swallows exceptions would switch the feature off unseen.
                logger.error("speculators is left unpatched: %s", error)
                raise error
            _undo()
            _apply([decision for decision in decisions if decision.state is State.APPLIED], speculators, vllm)
            _state.decisions = tuple(decisions)
            names = ", ".join(d.adapter.name for d in decisions if d.state is State.APPLIED)
            logger.info("%s on %s: applied %s", speculators, vllm, names)
        finally:
            _state.planning = False


def _apply(decisions: list[Decision], speculators: Installed, vllm: Installed) -> None:
    from speculators_compat.extraction import CORE_PATCHES
    from speculators_compat.patching import apply
    from speculators_compat.plan import refusal

    try:
        for decision in decisions:
            try:
                _state.applied.extend(filter(None, map(apply, decision.adapter.patches)))
            except ContractError as error:
                raise ContractError(refusal(decision.adapter, speculators, vllm, error)) from error
        _state.applied.extend(filter(None, map(apply, CORE_PATCHES)))
    except BaseException as error:
        _undo()
        logger.error("speculators is left unpatched: %s", error)
        raise


def _undo() -> None:
    while _state.applied:
        _state.applied.pop().undo()


def reseat() -> None:
    """Get back in front of module globals that a user replaced after activation, by calling the user's replacement."""
    with _state.lock:
        for applied in _state.applied:
            if applied.patch.is_global:
                applied.stand()


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _say_what_came_too_late(module: ModuleType) -> None:
    generator: Any = module.VllmHiddenStatesGenerator
    # By type, since asking a dead weak reference for its class raises.
    live = sum(issubclass(type(thing), generator) for thing in gc.get_objects())
    overriding = [
        f"{subclass.__module__}.{subclass.__qualname__}.{name}"
        for subclass in _subclasses(generator)
        for name in ("__init__", "generate")
        if name in vars(subclass)
    ]
    held = [f"{live} generator(s) built before, which have to be built again"] if live else []
    held += [f"{name}, which is not patched itself" for name in overriding]
    warn_once(
        logger,
        f"speculators_compat was imported after {module.__name__}, which has been patched in place. "
        f"Still holding what was there before: {'; '.join(held) or 'nothing'}.",
    )
