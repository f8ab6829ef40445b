"""Puts the adapters in front of upstream's modules when these are imported, all or nothing, and takes them away again."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from speculators_compat import import_hooks
from speculators_compat.adapters import fork_safety
from speculators_compat.errors import ContractError, RemovedError

if TYPE_CHECKING:
    from importlib.abc import Loader

    from speculators_compat.detection import Installed
    from speculators_compat.patching import AppliedPatch
    from speculators_compat.plan import Decision

logger = logging.getLogger("speculators_compat")

REMOVED = (
    "speculators 0.5.0 removed VllmHiddenStatesGenerator. Either install speculators==0.4.0.1, with which speculators_compat "
    "runs it, or extract hidden states as speculators does since: from a vLLM server (vLLM 0.18 or newer) that is started for "
    "it, through speculators.data_generation.vllm_client."
)
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
    said: set[str] = field(default_factory=set)


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
        unwanted = switched_off()
        if import_hooks.is_watching():
            return
        if fork_safety.NAME not in unwanted:
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
    """Restore every original and stop watching for imports.

    Workers that are running keep what they started with, and speculators keeps what it needed to be imported (`Preparation`).
    """
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


def _log_once(level: int, message: str) -> None:
    if message not in _state.said:
        _state.said.add(message)
        logger.log(level, message)


def switched_off() -> tuple[str, ...]:
    """The adapters that the user does not want.

    Raises:
        SwitchError: If `SPECULATORS_COMPAT_DISABLE` names an adapter that does not exist.
    """
    names = tuple(filter(None, (name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(","))))
    if names:
        from speculators_compat.plan import check_switches
        from speculators_compat.registry import ADAPTERS

        check_switches(ADAPTERS, names)
    return names


def execute(module: ModuleType, loader: Loader) -> None:
    """Execute one of upstream's modules with what it needs in place, and adapt it.

    Raises:
        ContractError: If speculators imports something that the installed vLLM does not have, or an adapter does not
            recognise what it is to adapt.
    """
    prepare(module.__name__)
    if module.__name__ == import_hooks.SPECULATORS:
        loader.exec_module(module)
        return
    try:
        loader.exec_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "vllm" or find_spec("vllm") is None:
            raise
        explained = ContractError(_explained(error))
        logger.error("%s", explained)
        raise explained from error
    adapt(module)


def prepare(module: str) -> None:
    """Put right what one of upstream's modules needs to be executed at all, in the releases of speculators that need it."""
    from speculators_compat.detection import detect
    from speculators_compat.registry import ADAPTERS

    unwanted, speculators = switched_off(), detect("speculators")
    for adapter in ADAPTERS:
        if adapter.name in unwanted or speculators.within(adapter.speculators) is False:
            continue
        for preparation in adapter.preparations:
            if preparation.module == module:
                preparation.action()


def _explained(error: ImportError) -> str:
    from speculators_compat.detection import detect
    from speculators_compat.plan import TESTED

    speculators, vllm = detect("speculators"), detect("vllm")
    return f"{speculators} imports what {vllm} does not have: {error}. Tested: {TESTED}. Install a tested pair."


def say_that_it_is_removed(module: str) -> None:
    """Tell the importer of a module of upstream's that nobody finds why that is.

    Raises:
        RemovedError: If the installed speculators has no generator any more.
    """
    from speculators_compat.detection import detect

    speculators = detect("speculators")
    if speculators.within("<0.5.0"):
        return
    raise RemovedError(f"{module} is not in {speculators}: {REMOVED}", name=import_hooks.GENERATOR_MODULE)


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
                _log_once(logging.WARNING, warning)
            decisions = make_plan(ADAPTERS, speculators, vllm, switched_off())
            if refused := [decision for decision in decisions if decision.state is State.REFUSED]:
                error = ContractError("\n".join(decision.reason for decision in refused))
                # An importer that swallows exceptions would switch the feature off unseen.
                logger.error("speculators is left unpatched: %s", error)
                raise error
            _undo()
            _apply([decision for decision in decisions if decision.state is State.APPLIED], speculators, vllm)
            _state.decisions = tuple(decisions)
            names = ", ".join(d.adapter.name for d in decisions if d.state is State.APPLIED)
            _log_once(logging.INFO, f"{speculators} on {vllm}: applied {names}")
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
    _log_once(
        logging.WARNING,
        f"speculators_compat was imported after {module.__name__}, which has been patched in place. "
        f"Still holding what was there before: {'; '.join(held) or 'nothing'}.",
    )
