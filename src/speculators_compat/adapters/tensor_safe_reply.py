"""Tensor-safe conditionals: `if not aux_hidden_states` fails on a tensor, because the reply lost the list around it.

Making the condition alone tensor-safe would be wrong: without the list, `[0]` takes the first layer for all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor, mentions
from speculators_compat.patching import Proxy, proxied

CAPTURED = "_get_captured_states"


class ListedReplyExecutor(Proxy):
    """An executor that answers a call to one rank with a list of that one reply, as vLLM 0.11.0 did."""

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        reply = self.__wrapped__.collective_rpc(method, *args, **kwargs)
        if method != CAPTURED or kwargs.get("unique_reply_rank") is None or _is_listed(reply):
            return reply
        return [reply]


def _is_listed(reply: Any) -> bool:
    """Whether the reply is the list of one that 0.11.0 gave: what is in it is a list or None, not a layer's tensor."""
    return isinstance(reply, list) and len(reply) == 1 and (reply[0] is None or isinstance(reply[0], list))


def with_listed_reply(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return proxied(wrapped(*args, **kwargs), ListedReplyExecutor)


def probe() -> Finding:
    if mentions("generate", "captured_states_list"):
        return Finding.broken("speculators takes the first of a list of replies")
    return Finding.intact("speculators takes the bare reply")


ADAPTER = Adapter(
    name="tensor_safe_reply",
    contract="collective_rpc with unique_reply_rank answers with a list of one reply.",
    symptom="RuntimeError: Boolean value of Tensor with more than one value is ambiguous",
    vllm=">=0.11.0",
    speculators="<0.4.0",
    broken_by="vllm/v1/executor/multiproc_executor.py, 0.11.1: the bare reply comes back",
    removable_when="speculators 0.3 is no longer supported",
    probe=probe,
    patches=(executor(with_listed_reply),),
)
