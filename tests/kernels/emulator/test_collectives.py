"""Barriers, shuffles, votes and atomics, and what is said when a block can't go on."""

import re

import numpy as np
import pytest

from emulator.launcher import EmulatorError

ORDERS = ["forward", "reverse", "random:4"]


@pytest.mark.parametrize("order", ORDERS)
def test_barriers_count_predicates(emulate, order):
    text = """
    __global__ void count(int* out) {
      const int t = threadIdx.x;
      for (int round = 0; round < 3; ++round) {
        const int counted = __syncthreads_count(t % 3 == round);
        const int all = __syncthreads_and(t < 70 - round), any = __syncthreads_or(t == 69 + round);
        out[(round * 70 + t) * 3] = counted;
        out[(round * 70 + t) * 3 + 1] = all;
        out[(round * 70 + t) * 3 + 2] = any;
      }
    }"""
    out = np.zeros((3, 70, 3), np.int32)
    emulate(text, "count", "*int32 out", [out], threads=70, order=order)
    assert (out == np.array([[24, 1, 1], [23, 0, 0], [23, 0, 0]])[:, None]).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [32, 8])
def test_shuffles(emulate, order, width):
    text = """
    __global__ void shuffle(float* out, int width) {
      const int t = threadIdx.x;
      const double x = t;
      out[t * 4] = __shfl_sync(0xffffffffu, (float)t, 35, width);
      out[t * 4 + 1] = (float)__shfl_xor_sync(0xffffffffu, x, 12, width);
      out[t * 4 + 2] = __shfl_up_sync(0xffffffffu, t, 3, width);
      out[t * 4 + 3] = __shfl_down_sync(0xffffffffu, (long long)t, 3, width);
    }"""
    out = np.zeros((64, 4), np.float32)
    args = [out, np.int32(width)]
    emulate(text, "shuffle", "*float32 out, int32 width", args, threads=64, order=order)
    lane = np.arange(64)
    within = lane % width
    segment = lane - within
    flipped = lane ^ 12
    expected = [
        segment + 35 % width,
        # A source in a later segment is out of reach, one in an earlier segment is not.
        np.where(flipped > segment + width - 1, lane, flipped),
        np.where(within >= 3, lane - 3, lane),
        np.where(within < width - 3, lane + 3, lane),
    ]
    assert np.array_equal(out, np.stack(expected, 1))


@pytest.mark.parametrize("order", ORDERS)
def test_votes_are_of_the_mask(emulate, order):
    text = """
    __global__ void vote(unsigned* out) {
      const int t = threadIdx.x;
      const unsigned mask = t < 8 ? 0xffu : 0xffffff00u;
      out[t * 3] = __ballot_sync(mask, t % 2);
      out[t * 3 + 1] = __any_sync(mask, t == 3);
      out[t * 3 + 2] = __all_sync(mask, t >= 8);
    }"""
    out = np.zeros((32, 3), np.uint32)
    emulate(text, "vote", "*uint32 out", [out], order=order)
    assert (out[:8] == [0xAA, 1, 0]).all()
    assert (out[8:] == [0xAAAAAA00, 0, 1]).all()


def test_a_short_warp_is_whole(emulate):
    text = """
    __global__ void last(int* out) {
      int* s = (int*)cuemu::dyn_smem();
      s[threadIdx.x] = threadIdx.x;
      __syncwarp();
      out[threadIdx.x] = s[threadIdx.x ^ 1];
    }"""
    out = np.zeros(40, np.int32)
    emulate(text, "last", "*int32 out", [out], threads=40, shared=160, order="reverse")
    assert np.array_equal(out, np.arange(40) ^ 1)


def test_threads_that_have_ended_are_not_waited_for(emulate):
    text = """
    __global__ void leave(int* out) {
      if (threadIdx.x >= 32) return;
      out[threadIdx.x] = __syncthreads_count(1);
    }"""
    out = np.zeros(32, np.int32)
    emulate(text, "leave", "*int32 out", [out], threads=96)
    assert (out == 32).all()


@pytest.mark.parametrize("order", ORDERS)
def test_atomics_of_all_blocks_add_up(emulate, order):
    text = """
    __global__ void atomics(int* i, float* f, unsigned* u) {
      const int t = blockIdx.x * blockDim.x + threadIdx.x;
      atomicAdd(&i[0], t);
      atomicSub(&i[1], 1);
      atomicMax(&i[2], t);
      atomicMin(&i[3], -t);
      if (atomicCAS(&i[4], 0, t + 1) == 0) atomicAdd(&i[5], 1);
      atomicAdd(&f[0], 0.5f);
      if (atomicExch(&u[0], 7u) != 7u) atomicAdd(&u[1], 1u);
    }"""
    i, f, u = np.zeros(6, np.int32), np.zeros(1, np.float32), np.zeros(2, np.uint32)
    params = "*int32 i, *float32 f, *uint32 u"
    emulate(text, "atomics", params, [i, f, u], grid=(6, 1, 1), threads=64, order=order)
    assert i[[0, 1, 2, 3, 5]].tolist() == [384 * 383 // 2, -384, 383, -383, 1]
    assert 1 <= i[4] <= 384
    assert (f.tolist(), u.tolist()) == ([192.0], [7, 1])


# Blocks of 40 threads: the second warp has 8 lanes.
EXITED = "a lane exited while another waits for it"
UNKNOWN = "the mask names lanes that do not exist or have exited"
FAULTS = {
    "deadlock: no thread of the block can run": """
      if (threadIdx.x < 16) __syncthreads();
      else __syncwarp(0xffffffffu);
    """,
    "lanes of a warp wait at different __syncthreads": """
      if (threadIdx.x % 2) __syncthreads(); else
        __syncthreads();
    """,
    "the calling lane is not in its own mask": """
      if (threadIdx.x == 0) __syncwarp(0xfffffffeu);
    """,
    UNKNOWN: """
      if (threadIdx.x >= 32) __ballot_sync(0xffffffffu, 1);
    """,
    EXITED: """
      if (threadIdx.x % 32) __syncwarp(0xffffffffu);
    """,
    "lanes disagree on the collective or its mask": """
      if (threadIdx.x < 16) __ballot_sync(0xffffffffu, 1);
      else if (threadIdx.x < 32) __shfl_sync(0xffffffffu, 1, 0);
    """,
    "__trap": """
      if (threadIdx.x == 37) __trap();
    """,
}
PLACE = r"  block \(0,0,0\) thread \d+ \[warp [01] lane \d+\]: \w+ at (kernel\.cu:[23]|\?:0).*"


def fault(emulate, body, order="forward"):
    text = "__global__ void wrong(int* out) {" + body + "out[0] = 0;}"
    with pytest.raises(EmulatorError) as caught:
        emulate(text, "wrong", "*int32 out", [np.zeros(1, np.int32)], threads=40, order=order)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("message", FAULTS)
@pytest.mark.parametrize("order", ORDERS)
def test_faults_are_told_with_thread_and_line(emulate, message, order):
    head, *places = fault(emulate, FAULTS[message], order)
    # Which of the two comes first is a matter of the order.
    told = (EXITED, UNKNOWN) if message == EXITED else (message,)
    assert head in {f"wrong: {each}" for each in told}
    assert places
    assert all(re.fullmatch(PLACE, each) for each in places)


def test_a_deadlock_tells_all_places(emulate):
    _, *places = fault(emulate, next(iter(FAULTS.values())))
    assert any("__syncthreads at kernel.cu:2" in place for place in places)
    assert any("__syncwarp at kernel.cu:3 mask ffffffff" in place for place in places)


def test_a_launch_after_a_fault_is_clean(emulate):
    text = "__global__ void f(int* out, int bad) { if (bad && threadIdx.x) __trap(); out[0] = 3; }"
    out = np.zeros(1, np.int32)
    with pytest.raises(EmulatorError):
        emulate(text, "f", "*int32 out, int32 bad", [out, np.int32(1)])
    emulate(text, "f", "*int32 out, int32 bad", [out, np.int32(0)])
    assert out[0] == 3
