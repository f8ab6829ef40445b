"""What calls of a generator leave in the processes that take part."""

from __future__ import annotations

from typing import Any

from tests.cases import prompt
from tests.in_worker import in_use


def growth(generator: Any, calls: int) -> list[dict[str, int]]:
    """How much more of each kind of `in_use` calls leave, after half as many to warm up: in the caller, then in each worker."""

    def call(number: int) -> None:
        generator.generate([prompt(1 + (number + seed) % 40, seed) for seed in range(3)])

    def measure() -> list[dict[str, int]]:
        generator.generate([prompt(8)])
        return [in_use(), *generator.executor.collective_rpc(in_use)]

    measure()  # frees what starting up has left, whose place calls then take
    for number in range(calls // 2):
        call(number)
    before = measure()
    for number in range(calls):
        call(number)
    return [{what: now[what] - then[what] for what in now} for now, then in zip(measure(), before, strict=True)]
