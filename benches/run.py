"""Measures everything that has a budget, and prints the table.

    python benches/run.py [--quick] [--write]

`--quick` measures for a fraction of a second each: to see that everything works, or a coarse fault.
"""

import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import table

CRITERION = ("allocator", "step", "waiting", "queue")
CARGO = ("cargo", "bench", "--locked", "--quiet", "-p", "octavo-core")


def run(command, **options):
    """Runs a command in the root of the project; its failure is ours."""
    return subprocess.run(command, cwd=table.ROOT, check=True, **options)


def flags(name, *, given):
    return [name] if given else []


def measure_core(*, quick):
    benches = [word for name in CRITERION for word in ("--bench", name)]
    run([*CARGO, *benches, "--", *flags("--quick", given=quick)])


def measure_memory(folder):
    told = run([*CARGO, "--bench", "memory"], stdout=subprocess.PIPE, text=True)
    (folder / "memory.json").write_text(told.stdout, encoding="utf-8")


def measure_python(folder, *, quick):
    command = [sys.executable, "-m", "pytest", "benches/python", "--benchmark-only", "--timeout=0"]
    columns = "--benchmark-columns=min,median,iqr,rounds"
    result = f"--benchmark-json={folder / 'python.json'}"
    command += ["-q", "--benchmark-disable-gc", columns, result, *flags("--quick", given=quick)]
    # One core, as all else here: threads of BLAS that wait for a busy core measure that core.
    run(command, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})


def measure_instructions():
    """Counts instructions where valgrind is at hand; a ratio above 1.05 shows in the table."""
    if shutil.which("valgrind") is not None:
        subprocess.run([sys.executable, "benches/instructions.py"], cwd=table.ROOT, check=False)


def about(*, quick):
    """When and where this was measured, in one sentence."""
    commit = run(["git", "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True)
    rust = run(["rustc", "--version"], stdout=subprocess.PIPE, text=True).stdout.split()[1]
    day = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    kind = "quickly, so coarsely, " if quick else ""
    return (
        f"Measured {kind}on {day} at {commit.stdout.strip()} on {os.cpu_count()} x {processor()}, "
        f"Rust {rust}, CPython {platform.python_version()}; medians, and half the distance of the "
        "quartiles."
    )


def processor():
    """The name of the processor, as far as the system says it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a fraction of a second each")
    parser.add_argument("--write", action="store_true", help="put the table into the README too")
    words = parser.parse_args()
    folder = table.results_folder()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    measure_instructions()
    measure_core(quick=words.quick)
    measure_memory(folder)
    measure_python(folder, quick=words.quick)
    (folder / "about.txt").write_text(about(quick=words.quick), encoding="utf-8")
    run([sys.executable, "benches/table.py", *flags("--write", given=words.write)])


if __name__ == "__main__":
    main()
