"""Shared by all tests here. `--all` runs what CI leaves out; without it those say SKIPPED and why."""

import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
SCRATCH = pathlib.Path(os.environ.get("MARU_VLLM_SCRATCH", "/tmp/maru-vllm"))


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="also the tests that start many engines")


def pytest_configure(config):
    config.addinivalue_line("markers", "full: not in the CI set")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--all"):
        return
    for item in items:
        if "full" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="SKIPPED: not in the CI set, run with --all"))


@pytest.fixture(scope="session")
def scratch():
    SCRATCH.mkdir(parents=True, exist_ok=True)
    return SCRATCH


@pytest.fixture(scope="session")
def models(scratch):
    """Folders of random models: tiny, another of the same shape, small."""
    import mkmodel

    return {
        name: mkmodel.make(scratch / f"m-{name}", size, seed)
        for name, size, seed in (("tiny", "tiny", 0), ("tiny-b", "tiny", 1), ("small", "small", 0))
    }


class Regions:
    """Region files in /dev/shm that end with their test."""

    def __init__(self):
        self.paths = []

    def path(self, name):
        path = pathlib.Path(f"/dev/shm/maru-vllm-test-{os.getpid()}-{len(self.paths)}-{name}")
        self.paths.append(path)
        return path

    def extra(self, engine, path, size="128M", **more):
        return {
            "maru_storage_backend": "cpu",
            "maru_cpu_pool_size": size,
            "maru_cpu_path": str(path),
            "maru_engine_id": engine,
            "maru_cache_namespace": "test",
            **more,
        }

    def end(self):
        for path in self.paths:
            for left in path.parent.glob(path.name + "*"):
                left.unlink()


@pytest.fixture(scope="module")
def regions():
    kept = Regions()
    yield kept
    kept.end()


@pytest.fixture(scope="module")
def engines(scratch, regions):  # `regions` ends after them: an engine makes a region anew that it finds gone
    """Starts engines and kills them after the module. `engines(model, extra=..., ...)` does not wait for the start."""
    from harness import Engine

    started = []

    def start(model, **arguments):
        log = scratch / f"engine-{os.getpid()}-{len(started)}.log"
        engine = Engine(model, log=log, core=len(started), wait=False, **arguments)
        started.append(engine)
        return engine

    yield start
    for engine in started:
        engine.kill()


@pytest.fixture(scope="session")
def inspect():
    """`maru-inspect verify --payload` of a region: the summary it ends with; `None` where there is no such program."""
    import json
    import subprocess

    target = HERE.parents[3] / "target"
    programs = [os.environ.get("MARU_INSPECT"), target / "release/maru-inspect", target / "debug/maru-inspect"]
    program = next((p for p in programs if p and pathlib.Path(p).exists()), None)

    def verify(path):
        if program is None:
            print("SKIPPED: no maru-inspect (cargo build --release -p maru-inspect, or MARU_INSPECT=PATH)")
            return None
        run = subprocess.run(
            [program, "verify", "--payload", "--json", path], capture_output=True, text=True, timeout=60
        )
        return json.loads(run.stdout.splitlines()[-1])

    return verify
