"""Decides which adapters a pair of speculators and vLLM needs: a pure function of versions, probes and switches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from speculators_compat.adapter import Adapter, Need
from speculators_compat.detection import Installed
from speculators_compat.errors import SwitchError

TESTED_VLLM = ">=0.11.0,<=0.32.0"
TESTED_SPECULATORS = ("==0.3.0", "==0.4.0", "==0.4.0.1")
TESTED = "speculators 0.3.0, 0.4.0 and 0.4.0.1 on vLLM 0.11 to 0.32"


class State(Enum):
    """What the plan says about one adapter."""

    APPLIED = "applied"
    NOT_NEEDED = "not needed"
    SWITCHED_OFF = "switched off"
    REFUSED = "refused"
    UNDECIDED = "not decided yet"


@dataclass(frozen=True)
class Decision:
    """One adapter, what is done about it, and why."""

    adapter: Adapter
    state: State
    reason: str


def make_plan(
    adapters: Sequence[Adapter], speculators: Installed, vllm: Installed, switched_off: Iterable[str] = ()
) -> list[Decision]:
    """Decide for each adapter, in order.

    The probe of the real symbol decides. Versions bound and explain: what a probe does not recognise is refused within the
    adapter's recorded range, and where the version is unknown; outside of it, there is nothing to adapt.

    Args:
        adapters: The adapters in the order in which they are applied.
        speculators: The speculators that is installed.
        vllm: The vLLM that is installed.
        switched_off: Names of adapters that the user does not want.

    Returns:
        One decision per adapter.

    Raises:
        SwitchError: If `switched_off` has a name that no adapter has.
    """
    unwanted = frozenset(switched_off)
    check_switches(adapters, unwanted)
    return [
        Decision(adapter, State.SWITCHED_OFF, "named in SPECULATORS_COMPAT_DISABLE")
        if adapter.name in unwanted
        else _decide(adapter, speculators, vllm)
        for adapter in adapters
    ]


def check_switches(adapters: Sequence[Adapter], switched_off: Iterable[str]) -> None:
    """Raise `SwitchError` if `switched_off` has a name that no adapter has."""
    known = [adapter.name for adapter in adapters]
    if unknown := sorted(set(switched_off).difference(known)):
        raise SwitchError(
            f"SPECULATORS_COMPAT_DISABLE names {', '.join(unknown)}, but there is no such adapter. "
            f"The adapters are: {', '.join(known)}."
        )


def _decide(adapter: Adapter, speculators: Installed, vllm: Installed) -> Decision:
    recorded = speculators.within(adapter.speculators) is not False and vllm.within(adapter.vllm) is not False
    outside = f"outside the recorded range, speculators {adapter.speculators} on vllm {adapter.vllm}"
    try:
        finding = adapter.probe()
    except Exception as error:  # noqa: BLE001 - whatever a probe stumbles over is something that it does not recognise
        if not recorded:
            return Decision(adapter, State.NOT_NEEDED, f"{outside}; {error}")
        return Decision(adapter, State.REFUSED, refusal(adapter, speculators, vllm, error))
    if finding.need is Need.INTACT:
        return Decision(adapter, State.NOT_NEEDED, finding.reason)
    return Decision(adapter, State.APPLIED, finding.reason if recorded else f"{finding.reason}; {outside}")


def refusal(adapter: Adapter, speculators: Installed, vllm: Installed, error: Exception) -> str:
    """What to tell somebody whose speculators or vLLM has a shape that `adapter` does not know."""
    targets = ", ".join([*map(str, adapter.patches), *(preparation.module for preparation in adapter.preparations)])
    return (
        f"adapter {adapter.name} does not recognise what it is to adapt. Target: {targets}. "
        f"Found: {speculators} and {vllm}; {type(error).__name__}: {error}. Tested: {TESTED}. "
        f"Install a tested pair, or set SPECULATORS_COMPAT_DISABLE={adapter.name} to go on without it "
        f"(then: {adapter.symptom})"
    )


def untested_warning(speculators: Installed, vllm: Installed) -> str | None:
    """What to say about a pair that has not been tested; None for a tested pair."""
    if vllm.within(TESTED_VLLM) and any(speculators.within(release) for release in TESTED_SPECULATORS):
        return None
    return (
        f"{speculators} with {vllm} has not been tested (tested: {TESTED}). "
        "Going on: probes of the real symbols decide which adapters are applied."
    )
