"""What the tests share: a place for a region, namespaces, blocks with known bytes, and other processes."""

from __future__ import annotations

import faulthandler
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import maru
import pytest

KIB, MIB = 1 << 10, 1 << 20


def fields(**changes) -> dict:
    """A whole namespace."""
    return {
        "tenant": "tests", "model": "m", "revision": "1", "adapter": "none", "dtype": "bfloat16", "quantization": "none",
        "geometry": "layers=2", "storage_format": "tests-1", "block_tokens": 16, "parallel": "tp=1",
        "hash_algorithm": "sha256", "hash_seed": "0", **changes,
    }


def digest(number: int) -> bytes:
    """A prefix digest."""
    return hashlib.sha256(number.to_bytes(8, "little")).digest()


def content(number: int, length: int) -> bytes:
    """The bytes of block `number`: every block, and every place in it, differs."""
    seed = hashlib.sha256(b"content" + number.to_bytes(8, "little")).digest()
    return (seed * (length // 32 + 1))[:length]


def too_long(*_):
    raise TimeoutError("a test hangs")


@pytest.fixture(autouse=True)
def deadline():
    """Nothing here may hang. A test that does fails; one that does so inside a call ends the run and shows where."""
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    signal.alarm(0)


@pytest.fixture
def folder():
    """A folder in memory."""
    with tempfile.TemporaryDirectory(prefix="maru-python-", dir="/dev/shm") as name:
        yield pathlib.Path(name)


@pytest.fixture
def path(folder) -> str:
    return str(folder / "region")


@pytest.fixture
def region(path) -> maru.Region:
    return maru.Region.open(path, format="if_absent", size=8 * MIB, slot_bytes=64 * KIB)


@pytest.fixture
def session(region):
    session = region.session("engine-a")
    yield session


@pytest.fixture
def space(session) -> maru.Namespace:
    return session.namespace(fields())


class Child:
    """Another Python process, which runs `code` and talks in lines. Its `sys.argv[1:]` are `arguments`."""

    def __init__(self, code: str, *arguments: str):
        preamble = f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\nfrom conftest import *\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", preamble + code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        line = self.process.stdout.readline()
        assert line, f"the child ended with {self.process.wait(10)}"
        return line.strip()

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        assert self.process.wait(30) == -signal.SIGKILL

    def end(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def child():
    """Starts children, and sees to it that none is left."""
    children: list[Child] = []

    def start(code: str, *arguments: str) -> Child:
        children.append(Child(code, *arguments))
        return children[-1]

    yield start
    for started in children:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()
        started.process.stdin.close()
        started.process.stdout.close()
