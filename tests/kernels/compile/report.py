"""Compiles every shipped kernel for every architecture, and keeps what it came to.

python -m compile.report          compares with the reports in benches/gpu/reports
python -m compile.report --write  renews them
"""

import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from compile.machine_code import MachineCode, machine_code
from compile.nvrtc import compile_source, version
from emulator.launcher import grouped, source_text
from octavo.attention.kernels import shipped
from octavo.attention.launch import Kernel

ARCHS = ("sm_80", "sm_90", "sm_100")
FOLDER = Path(__file__).resolve().parents[3] / "benches" / "gpu" / "reports"
_JOBS = 2


def compile_shipped() -> dict[str, dict[str, MachineCode]]:
    """By architecture and name, the machine code of everything that is shipped."""
    groups = grouped(each.kernel for each in shipped())
    # What takes longest comes first, so that the last jobs end together.
    tasks = [(group, arch) for group in reversed(groups) for arch in ARCHS]
    found: dict[str, dict[str, MachineCode]] = {arch: {} for arch in ARCHS}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_JOBS, mp_context=spawn) as pool:
        for (_, arch), codes in zip(tasks, pool.map(_compile_group, tasks), strict=True):
            found[arch] |= codes
    return found


def _compile_group(task: tuple[Sequence[Kernel], str]) -> dict[str, MachineCode]:
    group, arch = task
    names = [kernel.name for kernel in group]
    return machine_code(compile_source(source_text(group[0]), names, arch))


def report(codes: dict[str, MachineCode]) -> str:
    """The report of an architecture: JSON, a line for each kernel."""
    dynamic = {each.kernel.name: each.kernel.shared_bytes for each in shipped()}
    lines = [
        json.dumps(
            {
                "kernel": name,
                "registers": code.registers,
                "static_shared": code.static_shared,
                "dynamic_shared": dynamic[name],
                "spilled": code.spilled,
                "code_bytes": code.code_bytes,
            }
        )
        for name, code in sorted(codes.items())
    ]
    kernels = ",\n".join(f"    {line}" for line in lines)
    return f'{{\n  "nvrtc": "{version()}",\n  "kernels": [\n{kernels}\n  ]\n}}\n'


def differences(arch: str, codes: dict[str, MachineCode]) -> list[str]:
    """The lines in which the committed report is not what was compiled, marked - and +."""
    path = FOLDER / f"{arch}.json"
    committed = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    compiled = report(codes).splitlines()
    gone = [f"- {line.strip()}" for line in committed if line not in compiled]
    return gone + [f"+ {line.strip()}" for line in compiled if line not in committed]


def main(arguments: Sequence[str]) -> int:
    """Prints what differs, or writes everything; 1 where something differs."""
    found = compile_shipped()
    if "--write" in arguments:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for arch, codes in found.items():
            (FOLDER / f"{arch}.json").write_text(report(codes), encoding="utf-8")
        return 0
    lines = [line for arch, codes in found.items() for line in differences(arch, codes)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
