"""Every shipped kernel compiled for this card, by several processes, into CuPy's cache on disk.

What follows finds them there. Registers that were spilled show as local memory.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import cases
import machine as machines
from octavo.attention import kernels
from rows import Row

_MOST_WORKERS = 8


def wanted(machine):
    """The shipped kernels, and those of unequal dims that cases meet."""
    found = [one.kernel for one in kernels.shipped()]
    for case in cases.every(machine.pairs, is_tiny=machine.is_tiny):
        if case.dims[0] != case.dims[1]:
            found += [kernels.decode_cores(*case.pair, *case.dims, g) for g in kernels.CORES_GROUPS]
            if case.pair in kernels.TENSOR_PAIRS:
                found.append(kernels.decode_mma(*case.pair, *case.dims))
                found.append(kernels.prefill_mma(*case.pair, *case.dims))
    usable = {name for pair in machine.pairs for name in pair}
    half = {"bfloat16"} - usable
    return [one for one in dict.fromkeys(found) if not (half and "bfloat16" in one.name)]


def prepare(some):
    """Compiles some kernels. Returns for each its name, seconds, registers and local bytes."""
    from octavo.attention.gpu import CupyLauncher  # noqa: PLC0415 - in a process of its own

    launcher, told = CupyLauncher(), []
    driver = launcher.xp.cuda.driver
    for kernel in some:
        start = time.perf_counter()
        launcher.prepare(kernel)
        seconds = time.perf_counter() - start
        pointer = launcher.function(kernel).ptr
        counts = [
            driver.funcGetAttribute(attribute, pointer)
            for attribute in (
                driver.CU_FUNC_ATTRIBUTE_NUM_REGS,
                driver.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            )
        ]
        told.append((kernel.name, seconds, *counts))
    return told


def compiling(machine):
    every = wanted(machine)
    if not machine.is_card:
        yield Row(f"{len(every)} kernels", note="not compiled: a dry run")
        return
    start = time.perf_counter()
    workers = min(_MOST_WORKERS, os.cpu_count() or 1)
    shares = [every[first::workers] for first in range(workers)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        told = [one for share in pool.map(prepare, shares) for one in share]
    seconds = time.perf_counter() - start
    longest = max(told, key=lambda one: one[1])
    note = f"{workers} processes; longest {longest[1]:.1f} s, {longest[0]}"
    yield Row(f"{len(told)} kernels compiled", seconds, "s", note=note)
    spilled = [f"{name}: {local} B" for name, _, _, local in told if local]
    yield Row("local memory", note=", ".join(spilled) or "none")
    yield Row("registers", note=f"{max(one[2] for one in told)} at most")


if __name__ == "__main__":
    machines.run(compiling)
