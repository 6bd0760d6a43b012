"""Blocks in place: read-only, and protected for as long as any buffer of them lives, whatever else is dropped."""

import gc
import weakref

import maru
import pytest
from conftest import KIB, content, digest, fields


@pytest.fixture
def stored(session, space):
    object = maru.ObjectId(space, digest(1))
    assert session.store_from([object], [content(1, 64 * KIB)]) == ["stored"]
    return object


def test_a_view_shows_the_bytes_without_a_copy(region, session, stored):
    [lease] = session.acquire([stored])
    view = lease.view()
    assert view.readonly and view.contiguous and view.nbytes == 64 * KIB and view.format == "B"
    assert view == content(1, 64 * KIB)
    # Two views of one block lie at one address: in the region, not in copies.
    import ctypes

    class PyBuffer(ctypes.Structure):
        _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t)]
        _fields_ += [("rest", ctypes.c_byte * 128)]

    def address(exporter) -> int:
        buffer = PyBuffer()
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(exporter), ctypes.byref(buffer), 0)
        start = buffer.buf
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
        return start

    assert address(view) == address(lease.view())
    maps = open("/proc/self/maps").read().splitlines()
    inside = [line for line in maps if int(line.split("-")[0], 16) <= address(view) < int(line.split()[0].split("-")[1], 16)]
    assert "maru-python-" in inside[0], inside


def test_a_view_cannot_be_written(session, stored):
    [lease] = session.acquire([stored])
    view = lease.view()
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1
    with pytest.raises((TypeError, BufferError)):
        memoryview(view.obj).cast("B")[0:1] = b"x"
    with pytest.raises(maru.ArgumentError, match="read-only"):
        session.load_into([stored], [view])
    import ctypes

    with pytest.raises((BufferError, TypeError)):
        (ctypes.c_char * view.nbytes).from_buffer(view)
    assert lease.read() == content(1, 64 * KIB)


def test_a_view_holds_the_lease(session, stored):
    [lease] = session.acquire([stored])
    view = lease.view()
    part = view[100:200]
    assert lease.release() and not lease.release() and lease.released
    assert session.leases == 1, "the view holds it"
    assert session.retire(stored) == "draining"
    view.release()
    assert session.leases == 1, "the slice holds it"
    assert session.reclaim()["draining_slots"] == 1
    assert part == content(1, 64 * KIB)[100:200]
    part.release()
    assert session.leases == 0
    assert session.reclaim()["freed_slots"] == 1
    with pytest.raises(maru.LoadError, match="the lease has been released") as error:
        lease.view()
    assert error.value.code == "released"


def test_a_view_outlives_lease_session_and_region(path):
    region = maru.Region.open(path, format="if_absent", size=8 << 20, slot_bytes=64 * KIB)
    session = region.session("short")
    object = maru.ObjectId(session.namespace(fields()), digest(1))
    session.store_from([object], [content(1, 64 * KIB)])
    [lease] = session.acquire([object])
    view = lease.view()
    gone = [weakref.ref(thing) for thing in (lease, session, region)]
    index = session.index
    del lease, session, region
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3, "the objects are gone"
    assert bytes(view) == content(1, 64 * KIB)
    watcher = maru.Region.open(path)
    mine = [entry for entry in watcher.sessions() if entry["index"] == index]
    assert mine and mine[0]["alive"], "its session is still in the region"
    other = watcher.session("other")
    # Everything but the block in view can go; the block's slot never becomes another one's.
    space = other.namespace(fields())
    for n in range(3 * watcher.slots):
        assert other.store_from([maru.ObjectId(space, digest(1000 + n))], [content(n, 64 * KIB)]) == ["stored"]
    assert bytes(view) == content(1, 64 * KIB)
    del view
    gc.collect()
    assert not [entry for entry in watcher.sessions() if entry["index"] == index], "the last view took the session along"


def test_a_session_with_views_cannot_be_closed(session, stored):
    [lease] = session.acquire([stored])
    view = lease.view()
    with pytest.raises(maru.StillHeld, match=r"session 0 still holds 1 lease\(s\)") as error:
        session.close()
    assert error.value.leases == 1 and error.value.reservations == 0 and error.value.code == "still_held"
    assert session.probe(stored) == 64 * KIB, "it goes on"
    lease.release()
    with pytest.raises(maru.StillHeld):
        session.close()
    view.release()
    session.close()
    session.close()
    with pytest.raises(maru.CallError, match="the session is closed") as error:
        session.probe(stored)
    assert error.value.code == "closed"


def test_a_session_with_a_reservation_cannot_be_closed(session, space):
    reservation = session.reserve(maru.ObjectId(space, digest(2)), 10).reservation
    with pytest.raises(maru.StillHeld) as error:
        session.close()
    assert error.value.reservations == 1 and error.value.leases == 0
    reservation.abort()
    session.close()


def test_a_slot_can_be_filled_in_place(session, space):
    object = maru.ObjectId(space, digest(3))
    reservation = session.reserve(object, 1000).reservation
    view = reservation.view()
    assert not view.readonly and view.nbytes == 1000
    view[:] = content(3, 1000)
    part = view[10:20]
    for end in (reservation.commit, reservation.abort):
        with pytest.raises(maru.WriteError, match=r"[12] writable view\(s\) of the slot are in use, wanted none") as error:
            end()
        assert error.value.code == "viewed"
    view.release()
    with pytest.raises(maru.WriteError):
        reservation.commit()
    part.release()
    assert reservation.commit() == "stored"
    with pytest.raises(maru.WriteError):
        reservation.view()
    [lease] = session.acquire([object])
    assert lease.read() == content(3, 1000)


def test_a_dropped_reservation_waits_for_its_views(session, space):
    object = maru.ObjectId(space, digest(4))
    reservation = session.reserve(object, 1000).reservation
    view = reservation.view()
    del reservation
    gc.collect()
    assert session.usage()["slots"]["writing"] == 1, "somebody may still write there"
    view[:] = bytes(1000)
    view.release()
    gc.collect()
    assert session.usage()["allocated_bytes"] == 0


def test_leases_as_context_managers(session, stored):
    with session.acquire([stored])[0] as lease:
        assert session.leases == 1
        assert lease.read("never") == lease.read(4) == content(1, 64 * KIB)
    assert session.leases == 0 and lease.released
