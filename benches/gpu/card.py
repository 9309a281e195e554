"""Which card this is, and what runs on it: one row a fact."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil

import machine as machines
from rows import Row


def card(machine):
    yield Row("python", note=platform.python_version())
    for name in ("numpy", "ml_dtypes", "torch", "flashinfer-python"):
        yield Row(name, note=_version(name))
    for name in ("compute-sanitizer", "nvcc", "ncu"):
        yield Row(name, note="present" if shutil.which(name) else "absent")
    if not machine.is_card:
        yield Row("card", note=f"none: a dry run over {machine.xp.__name__}")
        return
    cuda = machine.xp.cuda
    device = cuda.Device()
    properties = cuda.runtime.getDeviceProperties(device.id)
    free, total = device.mem_info
    yield Row("card", note=properties["name"].decode(errors="replace"))
    yield Row("compute capability", note=device.compute_capability)
    yield Row("driver", note=f"for CUDA {_dotted(cuda.runtime.driverGetVersion())}")
    yield Row("CUDA runtime", note=_dotted(cuda.runtime.runtimeGetVersion()))
    yield Row("NVRTC", note=".".join(map(str, cuda.nvrtc.getVersion())))
    yield Row("CuPy", note=machine.xp.__version__)
    yield Row("memory", float(total), "B", note=f"{free / total:.0%} free")
    yield Row("processors", note=str(properties["multiProcessorCount"]))
    yield Row("L2", float(properties["l2CacheSize"]), "B")


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _dotted(number):
    return f"{number // 1000}.{number % 1000 // 10}"


if __name__ == "__main__":
    machines.run(card)
