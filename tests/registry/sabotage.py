"""The sweep with something broken on purpose, a row for each fault: `python -m tests.registry.sabotage RESULTS`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.registry.faults import FAULTS
from tests.registry.sweep import Job, registry, sweep

if __name__ == "__main__":
    kinds = registry()
    jobs = {fault.name: Job(fault.architecture, kinds[fault.architecture], fault.inflict) for fault in FAULTS}
    sweep(jobs, Path(sys.argv[1]), at_a_time=2)
