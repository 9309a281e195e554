"""The compile check can fail: what it looks for is found where it is, and nowhere else."""

import pytest

from compile.machine_code import MachineCode, functions, machine_code
from compile.nvrtc import CompileError, compile_source

# A row a thread; 256 floats of it are all alive at the end of the loop.
ROW = """
__global__ void __launch_bounds__(1024) row(float* out, const float* x) {
  float kept[256];
#pragma unroll
  for (int i = 0; i < 256; ++i) kept[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 256; ++i) out[i * 1024 + threadIdx.x] = kept[255 - i] + kept[i];
}
"""
COPY = """
template <class T>
__global__ void copy(T* out, const T* x) {
  __shared__ T s[128];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s[127 - threadIdx.x];
}
"""


def compiled(text, names, arch="sm_90"):
    return machine_code(compile_source(text, names, arch))


def test_spilled_registers_are_seen():
    code = compiled(ROW, ["row"])["row"]
    assert code.registers <= 64
    assert code.spilled > 0
    assert code.stack > 0
    assert code.has("LDL")
    assert code.has("STL")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_instructions_are_of_their_kernel(arch):
    found = compiled(COPY, ["copy<float>", "copy<float4>"], arch)
    one, four = found["copy<float>"], found["copy<float4>"]
    assert (one.static_shared, four.static_shared) == (512, 2048)
    assert (one.spilled, one.stack) == (0, 0)
    assert 0 < one.registers <= four.registers < 32
    assert one.code_bytes % 16 == 0
    assert four.has("LDG.E.128")
    assert four.has("STS.128")
    assert one.has("LDG.E")
    assert not one.has("LDG.E.128")
    assert not one.has("LDL")


def test_a_name_is_matched_with_its_modifiers():
    code = MachineCode(1, 0, 0, 0, 16, frozenset({"LDG.E.128.CONSTANT", "LDSM.16.M88.4"}))
    assert code.has("LDG")
    assert code.has("LDG.E.128")
    assert code.has("LDG.E.128.CONSTANT")
    assert not code.has("LDG.E.12")
    assert not code.has("LDS")


def test_predicates_are_no_instructions():
    text = """
.text._Z1f:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/             @!UP1 UIADD3 UR4, UR4, 0x1, URZ ;
.L_x_1:
        /*10030*/                  EXIT ;
.text._Z1g:
        /*0000*/              @UPT BRA `(.L_x_2) ;
"""
    found = dict(functions(text))
    assert found == {"_Z1f": ["LDC", "LDG.E.128", "UIADD3", "EXIT"], "_Z1g": ["BRA"]}


def test_what_does_not_compile_is_told_with_its_line():
    with pytest.raises(CompileError, match=r'kernel\.cu\(2\): error: identifier "oops"'):
        compile_source("\n__global__ void f() { oops; }\n", ["f"], "sm_90")


def test_a_warning_is_an_error():
    text = "\n__global__ void f(int* out) { int unused = 3; out[0] = 1; }\n"
    with pytest.raises(CompileError, match=r'kernel\.cu\(2\): warning .*"unused"'):
        compile_source(text, ["f"], "sm_90")


def test_an_unknown_architecture_is_refused():
    with pytest.raises(CompileError, match="invalid value for --gpu-architecture"):
        compile_source(COPY, ["copy<float>"], "sm_1")
