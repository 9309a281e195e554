"""Every shipped decode kernel against float64, over shapes, lengths, layouts and windows."""

import pytest

from cases import cases
from octavo.attention import kernels
from octavo.attention.dtypes import FP8
from world import KernelBackend, check_decode, filled, ragged

CORES = [pair for pair in kernels.PAIRS if pair not in kernels.TENSOR_PAIRS or pair[1] != FP8]


@pytest.mark.parametrize(
    "case",
    cases(CORES, kernels.HEAD_DIMS, [1, 2, 3, 4]),
)
def test_decode_on_cores_is_attention(launcher, case):
    backend = KernelBackend(launcher, decode_on="cores", debug=True)
    memory = filled(ragged(case.size), case.pair, case.dim, case.size, case.layout)
    check_decode(backend, memory, case.pair[0], case.group, tensor=False, window=case.window)
    check_decode(backend, memory, case.pair[0], case.group, tensor=False)


@pytest.mark.parametrize(
    "case",
    cases(kernels.TENSOR_PAIRS, kernels.HEAD_DIMS, [1, 5, 16]),
)
def test_decode_on_tensor_cores_is_attention(launcher, case):
    backend = KernelBackend(launcher, decode_on="tensor", debug=True)
    memory = filled(ragged(case.size), case.pair, case.dim, case.size, case.layout)
    check_decode(backend, memory, case.pair[0], case.group, tensor=True, window=case.window)
    check_decode(backend, memory, case.pair[0], case.group, tensor=True)


@pytest.mark.parametrize("pair", [("float32", "float32"), ("float32", FP8), ("float16", "float16")])
def test_decode_of_groups_beyond_a_thread_block_is_attention(backend, pair):
    memory = filled(ragged(16), pair, 64, 16, "NHD")
    for group in (6, 17, 33):
        check_decode(backend, memory, pair[0], group, tensor=pair[0] != "float32")
