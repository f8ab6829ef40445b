"""What the workers have captured, as upstream gets it: complete, in input order, and in the form that it reads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

from speculators_compat.errors import CaptureError, ModelError
from speculators_compat.extraction import current
from speculators_compat.patching import Proxy
from speculators_compat.worker.capture import CapturedStates, PromptStates
from speculators_compat.worker.shared_memory import Extent, Slab

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("speculators_compat")

# Those that wait for what the device has been given.
WAITING_METHODS = ("_reset_capture", "_get_captured_states")


class CapturingExecutor(Proxy):
    """An executor whose workers' states are complete, or an error, and have the form that upstream reads."""

    _self_looks_ahead = False

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        if method in WAITING_METHODS and not args:
            kwargs.setdefault("timeout", _step_timeout())
        ahead = self._self_look_ahead() if method == "_get_captured_states" and self._self_looks_ahead else {}
        reply = self.__wrapped__.collective_rpc(method, *args, **kwargs)
        if method == "_setup_hidden_states_capture":
            self._self_ask_workers()
        if method != "_get_captured_states" or reply is None or (isinstance(reply, dict) and not reply):
            return reply  # of nothing, upstream makes an error
        if isinstance(reply, CapturedStates):
            return self._self_deliver(reply, ahead)
        if isinstance(reply, list) and any(isinstance(one, CapturedStates) for one in reply):  # vLLM 0.11.0 lists replies
            return [self._self_deliver(one, ahead) if isinstance(one, CapturedStates) else one for one in reply]
        raise CaptureError(
            "an override of _get_captured_states answered with states that nobody has checked. Return what super() returns."
        )

    def _self_look_ahead(self) -> dict[Extent, list[Tensor]]:
        """States whose place in memory is known already: the device may still be at work on them."""
        extents = chain.from_iterable(self.__wrapped__.collective_rpc("_extents", timeout=_step_timeout()))
        with suppress(OSError):  # which is met again, and told, when states are delivered
            return in_memory(extents)
        return {}

    def _self_deliver(self, captured: CapturedStates, ahead: dict[Extent, list[Tensor]]) -> Any:
        try:
            return for_upstream(captured, ahead)
        except OSError as error:
            self.__wrapped__.collective_rpc("_share_no_memory")
            raise CaptureError(
                f"the memory with the hidden states cannot be mapped: {error}. The next call does without sharing memory."
            ) from error

    def _self_ask_workers(self) -> None:
        """See how the set-up came out, with builtins: a function of ours would activate the package where it is unpickled."""
        rpc = self.__wrapped__.collective_rpc
        if reasons := set(filter(None, rpc(getattr, args=("_refusal", "")))):
            raise ModelError("; ".join(sorted(reasons)))
        try:
            samples = [slab.map() for slab in rpc(getattr, args=("_sample", None)) if slab is not None]
        except OSError as error:
            logger.warning(
                "the workers' memory cannot be mapped (%s): states are pickled, which is several times slower", error
            )
            rpc("_share_no_memory")
            return
        if samples:
            rpc("_write_sample")
        # Not where mapped memory is copied at once, as after mlockall: what is written later would not be seen.
        self._self_looks_ahead = bool(samples) and all(memory[0] for memory in samples)


def _step_timeout() -> int:
    """How long a worker may take to answer, in seconds: it may have to wait for a step that was ended early."""
    from vllm import envs

    return int(envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)


def for_upstream(captured: CapturedStates, ahead: Mapping[Extent, list[Tensor]]) -> Any:
    """By request for speculators that asks by request, else by layer, with the prompts one after another.

    Args:
        captured: A worker's reply.
        ahead: What `in_memory` has given already.

    Raises:
        CaptureError: If the worker could not capture, or something is missing.
        OSError: If the worker's memory cannot be mapped.
    """
    prompts = _complete(captured)
    extents = (prompt.extent for prompt in prompts.values() if prompt.extent is not None)
    found = {**ahead, **in_memory(extent for extent in extents if extent not in ahead)}
    states = {
        request_id: list(map(_own, prompt.layers)) if prompt.extent is None else found[prompt.extent]
        for request_id, prompt in prompts.items()
    }
    return states if _expects_states_by_request() else [Rows(layer) for layer in zip(*states.values(), strict=True)]


def in_memory(extents: Iterable[Extent]) -> dict[Extent, list[Tensor]]:
    """The states that are, or will be, where workers have said.

    Raises:
        OSError: If their memory cannot be mapped.
    """
    mapped: dict[Slab, Any] = {}
    states: dict[Extent, list[Tensor]] = {}
    for extent in extents:
        if extent.slab not in mapped:
            mapped[extent.slab] = extent.slab.map()
        states[extent] = list(map(_own, extent.tensors(mapped[extent.slab])))
    return states


def _complete(captured: CapturedStates) -> dict[str, PromptStates]:
    """The prompts in input order, each with a state for every token."""
    if captured.failure is not None:
        raise CaptureError(f"hidden states could not be captured: {captured.failure}")
    extraction = current()
    if extraction is None:
        raise CaptureError(
            "hidden states were asked for outside of generate(), so it is not known which prompts they belong to"
        )
    lengths = extraction.prompt_lengths
    for index, (request_id, length) in enumerate(lengths.items()):
        prompt = captured.prompts.get(request_id)
        found = 0 if prompt is None else prompt.computed.count(1)
        if found != length:
            raise CaptureError(
                f"prompt {index} (request {request_id}) has {length} tokens, but hidden states of {found} were captured; "
                "none are returned. Its other tokens were not computed in this call: check that prefix caching is off."
            )
    return {request_id: captured.prompts[request_id] for request_id in lengths}


@cache
def _own_class() -> type[Tensor]:
    import torch

    class Own(torch.Tensor):  # type: ignore[misc, unused-ignore]
        """A tensor that nobody else has, so that the first `clone()`, which is upstream's, need not copy it."""

        __torch_function__ = torch._C._disabled_torch_function_impl  # what is computed from it is a plain tensor
        _given = False

        def clone(self, *args: Any, **kwargs: Any) -> Tensor:
            if self._given:
                return super().clone(*args, **kwargs).as_subclass(torch.Tensor)
            self._given = True
            return self.data  # a plain tensor, and no view

        def __reduce_ex__(self, protocol: Any) -> Any:
            return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)

    return Own


def _own(layer: Tensor) -> Tensor:
    return layer.as_subclass(_own_class())


class Rows:
    """One layer's states of all prompts, one after another, out of which upstream takes each prompt's.

    Args:
        prompts: `[tokens, hidden_size]` for each prompt.
    """

    def __init__(self, prompts: Sequence[Tensor]) -> None:
        ends = list(accumulate(map(len, prompts)))
        self._prompts = dict(zip(pairwise([0, *ends]), prompts, strict=True))

    def __getitem__(self, rows: Any) -> Tensor:
        prompt = self._prompts.get((rows.start, rows.stop)) if isinstance(rows, slice) and rows.step is None else None
        return self._joined[rows] if prompt is None else prompt

    def __len__(self) -> int:
        return sum(map(len, self._prompts.values()))

    def __bool__(self) -> bool:
        return bool(self._joined)  # as ambiguous as a tensor's, lest one be taken for a list of layers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._joined, name)

    @cached_property
    def _joined(self) -> Tensor:
        import torch

        return torch.cat(list(self._prompts.values()))


def _expects_states_by_request() -> bool:
    from speculators.data_generation import custom_worker

    return hasattr(custom_worker.HiddenStatesWorkerExtension, "_set_request_metadata")
