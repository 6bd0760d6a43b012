"""Several processes in one region: they find each other's blocks, may die at any time, and tear nothing down."""

import os
import signal
import subprocess
import sys
import time

import maru
import pytest
from conftest import KIB, content, digest, fields

JOIN = """
region = maru.Region.open(sys.argv[1])
session = region.session("child")
space = session.namespace(fields())
"""


def test_two_processes_share_blocks(session, space, path, child):
    mine = [maru.ObjectId(space, digest(n)) for n in range(5)]
    theirs = [maru.ObjectId(space, digest(n)) for n in range(5, 10)]
    session.store_from(mine, [content(n, 64 * KIB) for n in range(5)])
    other = child(
        JOIN
        + """
buffers = [bytearray(64 * KIB) for _ in range(5)]
answers = session.load_into([maru.ObjectId(space, digest(n)) for n in range(5)], buffers)
print(answers == [None] * 5 and buffers == [content(n, 64 * KIB) for n in range(5)], flush=True)
stored = session.store_from([maru.ObjectId(space, digest(n)) for n in range(5, 10)], [content(n, 64 * KIB) for n in range(5, 10)])
print(stored.count("stored"), flush=True)
"""
        , path,
    )
    assert other.line() == "True" and other.line() == "5" and other.end() == 0
    assert session.probe_prefix(mine + theirs) == 10
    buffers = [bytearray(64 * KIB) for _ in theirs]
    assert session.load_into(theirs, buffers) == [None] * 5
    assert buffers == [content(n, 64 * KIB) for n in range(5, 10)]


def test_a_writer_killed_half_way_leaves_nothing(session, space, path, child):
    session.store_from([maru.ObjectId(space, digest(1))], [content(1, 64 * KIB)])
    before = session.usage()
    writer = child(
        JOIN
        + """
one = session.reserve(maru.ObjectId(space, digest(2)), 64 * KIB).reservation
one.write_at(0, content(2, 32 * KIB))
two = session.reserve(maru.ObjectId(space, digest(3)), 64 * KIB).reservation
view = two.view()
view[: 32 * KIB] = content(3, 32 * KIB)
lease = session.acquire([maru.ObjectId(space, digest(1))])[0].view()
print("half", flush=True)
sys.stdin.readline()
""",
        path,
    )
    assert writer.line() == "half"
    assert session.why(maru.ObjectId(space, digest(2))) == "not_ready"
    assert session.usage()["slots"]["writing"] == 2
    writer.kill()
    # Whoever wants the block recovers the dead writer itself; nobody has to wait for a time-out.
    start = time.monotonic()
    assert session.store_from([maru.ObjectId(space, digest(2))], [content(2, 64 * KIB)]) == ["stored"]
    assert time.monotonic() - start < 1
    session.reclaim()
    after = session.usage()
    assert after["slots"]["writing"] == after["slots"]["quarantined"] == 0
    assert after["ready_bytes"] == before["ready_bytes"] + 64 * KIB
    assert session.probe(maru.ObjectId(space, digest(3))) is None
    assert session.retire(maru.ObjectId(space, digest(1))) == "retired", "the dead reader's view holds nothing"
    buffer = bytearray(64 * KIB)
    assert session.load_into([maru.ObjectId(space, digest(2))], [buffer]) == [None] and buffer == content(2, 64 * KIB)


@pytest.mark.parametrize("ending", ["", "session.close()", "sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_whoever_only_attaches_tears_nothing_down(region, session, space, path, child, ending):
    object = maru.ObjectId(space, digest(1))
    session.store_from([object], [content(1, 64 * KIB)])
    [lease] = session.acquire([object])
    inode = os.stat(path).st_ino
    visitor = child(
        JOIN
        + f"""
[lease] = session.acquire([maru.ObjectId(space, digest(1))])
view = lease.view()
print(view == content(1, 64 * KIB), flush=True)
view.release(); lease.release()
{ending}
""",
        path,
    )
    assert visitor.line() == "True"
    visitor.end()
    assert os.stat(path).st_ino == inode
    assert session.heartbeat() > 0 and session.leases == 1
    assert lease.view() == content(1, 64 * KIB)
    session.reclaim()
    assert [entry["engine"] for entry in region.sessions()] == ["engine-a"], "the visitor's entry is free again"


def test_nothing_is_registered_for_the_end_of_the_process(path):
    code = """
import atexit, os, sys, threading, signal
handlers = lambda: (atexit._ncallbacks(), [signal.getsignal(number) for number in signal.valid_signals()], threading.active_count())
before = handlers()
import maru
session = maru.Region.open(sys.argv[1], format="if_absent", size=1 << 20, slot_bytes=4096).session("a")
assert handlers() == before, (before, handlers())
"""
    subprocess.run([sys.executable, "-c", code, path], check=True, timeout=60)
    region = maru.Region.open(path)
    assert region.usage()["allocated_bytes"] == 0
    region.session("b").reclaim()


def test_a_session_whose_engine_comes_back_has_a_higher_epoch(session, space, path, child):
    codes = JOIN + "print(session.epoch, flush=True); sys.stdin.readline()"
    first = child(codes, path)
    epoch = int(first.line())
    first.kill()
    second = child(codes, path)
    assert int(second.line()) > epoch > session.epoch


def test_a_fenced_session_says_so(region, session, space):
    other = region.session("other")
    object = maru.ObjectId(space, digest(1))
    other.store_from([object], [b"x"])
    [lease] = other.acquire([object])
    reservation = other.reserve(maru.ObjectId(space, digest(2)), 1).reservation
    assert not session.fence(other.index, other.epoch + 1) and session.fence(other.index, other.epoch)
    for call in (other.heartbeat, lambda: other.probe(object), lambda: other.store_from([object], [b"x"]), lease.read):
        with pytest.raises(maru.Fenced, match=rf"fenced: session {other.index} \(epoch {other.epoch}\)") as error:
            call()
        assert error.value.code == "fenced" and isinstance(error.value, maru.CallError)
    assert not other.alive and session.alive
    assert reservation.commit() == "fenced"


def test_a_replaced_region_says_so(region, session, space, path):
    maru.Region.open(path, format="replace", size=8 << 20, slot_bytes=64 * KIB)
    with pytest.raises(maru.Replaced, match="region replaced"):
        session.heartbeat()
    with pytest.raises(maru.Replaced):
        session.store_from([maru.ObjectId(space, digest(1))], [b"x"])
    assert not session.alive


def test_a_cut_region_says_so(session, space, path):
    object = maru.ObjectId(space, digest(1))
    os.truncate(path, 4 << 20)
    with pytest.raises(maru.Resized, match=r"mapped 8388608 bytes, the backing has 4194304"):
        session.heartbeat()
    with pytest.raises(maru.Resized):
        session.store_from([object], [b"x"])


@pytest.mark.parametrize("caught", [True, False])
def test_memory_that_faults(path, child, caught):
    """With the handler, what was lost is an answer; without it, the process ends (and only that process)."""
    code = ("maru.catch_faults(); maru.catch_faults()\n" if caught else "") + """
region = maru.Region.open(sys.argv[1], format="if_absent", size=8 << 20, slot_bytes=64 * KIB)
session = region.session("child")
space = session.namespace(fields())
object = maru.ObjectId(space, digest(1))
session.store_from([object], [content(1, 64 * KIB)])
view = session.acquire([object])[0].view()
os.truncate(sys.argv[1], 4096)
print("cut", flush=True)
try:
    session.probe(object)
    print("nothing")
except maru.Lost as error:
    print(error.code, error, session.alive, region.lost, view[:10] == bytes(10), flush=True)
os._exit(0)
"""
    victim = child(code, path)
    assert victim.line() == "cut"
    if caught:
        assert victim.line() == "lost region lost: its memory faulted False True True" and victim.end() == 0
    else:
        assert victim.end() == -signal.SIGBUS
