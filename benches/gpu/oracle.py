"""What the answer is, in float64 on the host, and how far from it rounding may lead."""

from __future__ import annotations

import numpy as np

from octavo.attention import reference

# Half the distance between two neighbouring numbers, relative to them.
_ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Sums of float32: tensor cores cut what others round.
_SUMS = {True: 2e-5, False: 4e-6}


class MismatchError(Exception):
    """An answer that is off by more than rounding, or bytes that differ."""


def decoded(twin, layer, q, tables, lens, **options):
    """Output and log-sum-exp of a decode over the memory's twin on the host."""
    args = (twin, layer, q.astype(np.float64), tables, lens)
    return reference.decode(*args, return_lse=True, **options)


def prefilled(twin, layer, q, starts, tables, lens, **options):
    """The same of a prefill."""
    args = (twin, layer, q.astype(np.float64), starts, tables, lens)
    return reference.prefill(*args, return_lse=True, **options)


def largest_value(twin, layer, tables, lens):
    """The largest value that an output is made of."""
    _, values = reference.gather(twin, layer, tables, lens)
    return float(np.abs(values.astype(np.float64)).max(initial=0.0))


def check_attention(what, found, expected, *, dtype, largest, on_tensor):
    """Raises where an output or log-sum-exp is off. Returns the largest error of the output.

    An output is rounded once; tensor cores round each weight, too, by at most so much of the
    largest value; sums of float32 take the rest.
    """
    (out, lse), (answer, logs) = found, expected
    half = _ROUNDING[dtype]
    allowed = half * np.abs(answer) + (half * largest if on_tensor else 0.0)
    allowed += _SUMS[on_tensor] * max(1.0, largest)
    error = np.abs(out.astype(np.float64) - answer)
    # Not error > allowed: NaN is wrong, too.
    wrong = ~(error <= allowed)
    if wrong.any():
        worst = float(np.nanmax(np.where(wrong, error / allowed, 0)))
        raise MismatchError(f"{what}: {wrong.sum()} of {wrong.size} outputs are off, {worst:.3g} x")
    if not np.array_equal(np.isneginf(lse), np.isneginf(logs)):
        raise MismatchError(f"{what}: other rows are empty")
    seen = np.isfinite(logs)
    off = np.abs(lse[seen] - logs[seen]) > 2 * _SUMS[on_tensor] * np.maximum(1, np.abs(logs[seen]))
    if off.any() or np.isnan(lse).any():
        raise MismatchError(f"{what}: {off.sum()} log-sum-exps are off")
    return float(error.max(initial=0.0))


def check_equal(what, found, expected):
    """Raises where arrays differ in shape, type or a bit."""
    same = found.shape == expected.shape and found.dtype == expected.dtype
    if not same or found.tobytes() != np.ascontiguousarray(expected).tobytes():
        raise MismatchError(f"{what}: differs")


def check_memory(what, machine, kv, twin):
    """Raises where the memory of the machine and its twin on the host differ in a byte."""
    for layer in range(kv.spec.num_layers):
        for name, mine, theirs in zip("KV", kv.pages(layer), twin.pages(layer), strict=True):
            found = machine.host(machine.xp.ascontiguousarray(mine)).view(np.uint8)
            expected = np.ascontiguousarray(theirs).view(np.uint8)
            check_equal(f"{what}: {name} of layer {layer}", found, expected)
