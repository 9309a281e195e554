"""What the benchmarks ask for: engines, allocators and traces, and whether it must be quick."""

import os
from pathlib import Path

import pytest

from inputs import BLOCK_SIZE, Engine, full_cache, mixed_cache, tokens


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="fewer rounds, shorter runs")


def pytest_configure(config):
    config.pluginmanager.register(Skipped(), "skipped")


class Skipped:
    """Puts into the results what was not measured, and why."""

    def __init__(self):
        self.reasons = {}

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self.reasons[report.nodeid.rpartition("::")[2]] = reason

    def pytest_benchmark_update_json(self, output_json):
        output_json["skipped"] = self.reasons


@pytest.fixture
def quick(request):
    return request.config.getoption("--quick")


@pytest.fixture
def trace_path():
    """A function that gives the path of a published trace, or skips where it is absent."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "traces"
    folder = Path(os.environ.get("OCTAVO_TRACES", beside))

    def path(name):
        if not (folder / name).exists():
            pytest.skip(f"the trace {name} is not here")
        return folder / name

    return path


@pytest.fixture
def engine(request):
    return Engine(request.param)


@pytest.fixture
def cache(request):
    return mixed_cache(request.param)


@pytest.fixture
def cached_prompts(request):
    """An allocator full of cached prompts of 4,096 tokens, and those prompts, one token longer."""
    blocks_each = 256
    cache, seeds = full_cache(request.param, blocks_each)
    length = blocks_each * BLOCK_SIZE + 1
    return cache, [tokens(seed, length) for seed in seeds[:2_000]]
