"""speculators' own capture and reply, with no more of this package than it takes to run on this vLLM."""

from __future__ import annotations

import os

from benchmarks.peers import Peer
from benchmarks.settings import Settings

# Without these, what is captured, sent and returned is as upstream has it.
OURS = ("decoder_signature", "prefill_loop", "result_order", "failed_call")


def start(settings: Settings) -> Peer:
    os.environ["SPECULATORS_COMPAT_DISABLE"] = ",".join(OURS)
    from benchmarks.peers.speculators_compat import Extraction

    return Extraction(settings, clocks=False)
