"""What is to be expected of the installed speculators and vLLM, said without importing either of them.

An import of vLLM takes ten seconds, so probes are not asked here: what they decided when the same pair was tested is on record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from speculators_compat.activation import say_that_it_is_removed, switched_off
from speculators_compat.adapter import Adapter
from speculators_compat.detection import Installed, detect
from speculators_compat.errors import RemovedError
from speculators_compat.import_hooks import GENERATOR_MODULE
from speculators_compat.plan import TESTED, Decision, State, untested_warning
from speculators_compat.registry import ADAPTERS

INSTALL = {"speculators": "pip install speculators==0.4.0.1", "vllm": "pip install vllm"}


@dataclass(frozen=True)
class Outlook:
    """What is to be expected.

    Attributes:
        installed: speculators, vllm, torch and transformers, from package metadata.
        decisions: What happens to each adapter when speculators' generator is imported.
        source: The test run that this is known from; empty if nothing like this pair was tested.
        missed: Adapters that are switched off, and were needed then.
        problems: Why that will not work, each with what to do; empty if it will.
        remarks: What is unusual but may work.
    """

    installed: tuple[Installed, ...]
    decisions: tuple[Decision, ...]
    source: str
    missed: tuple[str, ...]
    problems: tuple[str, ...]
    remarks: tuple[str, ...]


def outlook() -> Outlook:
    """Look at package metadata and at the record of tested pairs.

    Raises:
        SwitchError: If `SPECULATORS_COMPAT_DISABLE` names an adapter that does not exist.
    """
    speculators, vllm = found = detect("speculators"), detect("vllm")
    installed = (*found, detect("torch"), detect("transformers"))
    off, pair = switched_off(), known_pair(speculators, vllm)
    return Outlook(
        installed,
        tuple(_expectation(adapter, off, speculators, vllm, pair) for adapter in ADAPTERS),
        f"speculators {pair['speculators']} with vLLM {pair['vllm']} on a CPU, {pair['date']}" if pair else "",
        tuple(name for name in off if pair is not None and name in pair["applied"]),
        tuple(_problems(speculators, vllm, pair)),
        tuple(_remarks(installed)),
    )


def known_pair(speculators: Installed, vllm: Installed) -> dict[str, Any] | None:
    """How the pair came out when it was tested, or, for want of it, one of the same vLLM minor; None if none was."""
    if speculators.release is None or vllm.release is None:
        return None
    pairs = json.loads(resources.files("speculators_compat").joinpath("known_pairs.json").read_text())
    # 0.4.0 differs from 0.4.0.1 outside of extraction only.
    line, minor = speculators.release.release[:2], vllm.release.release[:2]
    alike = [
        pair
        for pair in pairs
        if Version(pair["speculators"]).release[:2] == line and Version(pair["vllm"]).release[:2] == minor
    ]
    return max(alike, key=lambda pair: _is_of(pair, vllm), default=None)


def _is_of(pair: dict[str, Any], vllm: Installed) -> bool:
    """Whether a pair was tested with this very release; `.post2` is a build of the same."""
    return Version(Version(pair["vllm"]).base_version) == vllm.release


def _expectation(
    adapter: Adapter, off: tuple[str, ...], speculators: Installed, vllm: Installed, pair: dict[str, Any] | None
) -> Decision:
    if adapter.name in off:
        return Decision(adapter, State.SWITCHED_OFF, "named in SPECULATORS_COMPAT_DISABLE")
    if None in (speculators.reported, vllm.reported):
        return Decision(adapter, State.NOT_NEEDED, "there is nothing to adapt")
    if pair is None or pair["result"] == "refused":
        return Decision(adapter, State.UNDECIDED, "its probe decides when speculators is imported")
    if adapter.name in pair["applied"]:
        return Decision(adapter, State.APPLIED, f"restores: {adapter.contract}")
    return Decision(adapter, State.NOT_NEEDED, "the contract is intact")


def _problems(speculators: Installed, vllm: Installed, pair: dict[str, Any] | None) -> Iterator[str]:
    for found in (speculators, vllm):
        if found.reported is None:
            yield f"{found.module} is not installed. {INSTALL[found.module]} ({TESTED} are tested)."
    if speculators.within(">=0.5.0"):
        try:
            say_that_it_is_removed(GENERATOR_MODULE)
        except RemovedError as error:
            yield str(error)
    if vllm.within("<0.11.0"):
        yield f"{vllm} is older than what speculators' generator was written for. Tested: {TESTED}."
    if speculators.within("<0.3.0"):
        yield f"{speculators} is older than the generator that is adapted. Tested: {TESTED}."
    if pair is not None and pair["result"] == "refused" and _is_of(pair, vllm):
        yield f"{speculators} was refused on vLLM {pair['vllm']}: {pair['words']}"


def _remarks(installed: tuple[Installed, ...]) -> Iterator[str]:
    speculators, vllm, *_ = installed
    if None not in (speculators.reported, vllm.reported) and (warning := untested_warning(speculators, vllm)):
        yield warning
    for found in installed[:2]:
        for requirement in _requirements(found):
            peer = next((one for one in installed if one.module == requirement.name), None)
            # A build for CPUs asks for `torch==2.10.0+cpu`; which build it is makes no difference here.
            wanted = re.sub(r"\+[\w.]+", "", str(requirement.specifier))
            if peer is not None and peer.within(wanted) is False:
                yield f"{found} asks for {requirement.name}{SpecifierSet(wanted)}, but {peer} is installed."


def _requirements(found: Installed) -> Iterator[Requirement]:
    if found.distribution is None:
        return
    for line in metadata.requires(found.distribution) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement
