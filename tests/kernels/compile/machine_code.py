"""What a kernel comes to: its resources as ptxas tells them, its instructions as nvdisasm does."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from compile.nvrtc import Compiled, toolkit

# What `ptxas -v` says of an entry function.
_RESOURCES = re.compile(
    r"Compiling entry function '(?P<symbol>\w+)'"
    r".*?(?P<stack>\d+) bytes stack frame"
    r", (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers(?P<more>[^\n]*)",
    re.DOTALL,
)
_STATIC_SHARED = re.compile(r"(\d+) bytes smem")
_FUNCTION = re.compile(r"^\.text\.(\w+):$")
# An instruction, perhaps under a predicate: the address, then the name with its modifiers.
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
# Bytes of an instruction, from sm_70 on.
_INSTRUCTION_BYTES = 16


@dataclass(frozen=True)
class MachineCode:
    """A kernel on one architecture.

    Attributes:
        registers: Of a thread.
        static_shared: Bytes of its static shared arrays.
        stack: Bytes of a thread's stack frame.
        spilled: Bytes that a thread spills, stores and loads together.
        code_bytes: Of its instructions.
        opcodes: The instructions' names with their modifiers.
    """

    registers: int
    static_shared: int
    stack: int
    spilled: int
    code_bytes: int
    opcodes: frozenset[str]

    def has(self, opcode: str) -> bool:
        """Whether there is such an instruction, with these modifiers or more."""
        return any(found == opcode or found.startswith(opcode + ".") for found in self.opcodes)


def machine_code(compiled: Compiled) -> dict[str, MachineCode]:
    """The kernels of a program, by name expression."""
    resources = {found["symbol"]: found for found in _RESOURCES.finditer(compiled.log)}
    instructions = dict(functions(disassemble(compiled.cubin)))
    return {
        name: _joined(resources[symbol], instructions[symbol])
        for name, symbol in compiled.symbols.items()
    }


def disassemble(cubin: bytes) -> str:
    """The code of a program in words."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(toolkit() / "bin" / "nvdisasm"), "-c", "-ndf", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def functions(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each function's symbol with the names of its instructions, in order."""
    names: list[str] = []
    for line in text.splitlines():
        if function := _FUNCTION.match(line):
            names = []
            yield function[1], names
        elif instruction := _INSTRUCTION.match(line):
            names.append(instruction[1])


def _joined(resources: re.Match[str], instructions: list[str]) -> MachineCode:
    shared = _STATIC_SHARED.search(resources["more"])
    return MachineCode(
        registers=int(resources["registers"]),
        static_shared=int(shared[1]) if shared else 0,
        stack=int(resources["stack"]),
        spilled=int(resources["stores"]) + int(resources["loads"]),
        code_bytes=_INSTRUCTION_BYTES * len(instructions),
        opcodes=frozenset(instructions),
    )
