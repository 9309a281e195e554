"""What is shipped compiles for every architecture, and comes to what was agreed and recorded."""

import pytest

from compile.report import ARCHS, compile_shipped, differences
from octavo.attention.kernels import shipped

# The compilers share two cores with other tests.
pytestmark = pytest.mark.timeout(1200)

SHIPPED = {each.kernel.name: each for each in shipped()}
# Bytes of shared memory that a block may have, by NVIDIA's table of compute capabilities.
MAX_SHARED = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024}
# Registers of a multiprocessor; a thread takes them by eights.
REGISTERS = 65536


@pytest.fixture(scope="module")
def compiled():
    return compile_shipped()


@pytest.fixture(params=ARCHS)
def arch(request):
    return request.param


def test_names_are_different():
    assert len(SHIPPED) == len(shipped())


def test_everything_is_compiled(compiled, arch):
    assert set(compiled[arch]) == set(SHIPPED)


def test_nothing_is_spilled_and_no_local_memory_is_used(compiled, arch):
    wrong = [
        name
        for name, code in compiled[arch].items()
        if code.spilled or code.stack or code.has("LDL") or code.has("STL")
    ]
    assert wrong == []


def test_registers_are_within_what_was_agreed(compiled, arch):
    wrong = {
        name: code.registers
        for name, code in compiled[arch].items()
        if code.registers > SHIPPED[name].max_registers
    }
    assert wrong == {}


def test_instructions_are_there(compiled, arch):
    missing = [
        (name, opcode)
        for name, code in compiled[arch].items()
        for opcode in SHIPPED[name].opcodes
        if not code.has(opcode)
    ]
    assert missing == []


def test_a_block_fits_a_multiprocessor(compiled, arch):
    wrong = []
    for name, code in compiled[arch].items():
        kernel = SHIPPED[name].kernel
        shared = code.static_shared + kernel.shared_bytes
        registers = -(-code.registers // 8) * 8 * kernel.threads
        if shared > MAX_SHARED[arch] or registers > REGISTERS:
            wrong.append((name, shared, registers))
    assert wrong == []


def test_committed_report_is_what_is_compiled(compiled, arch):
    """`make kernel-reports` renews it."""
    assert differences(arch, compiled[arch]) == []
