"""Storing and loading in one process: every kind of buffer, every kind of length, every answer."""

import array
import mmap

import maru
import pytest
from conftest import KIB, MIB, content, digest, fields


def test_what_is_stored_is_loaded(session, space):
    objects = [maru.ObjectId(space, digest(n)) for n in range(20)]
    blocks = [content(n, 64 * KIB) for n in range(20)]
    assert session.probe_prefix(objects) == 0 and session.why(objects[0]) == "absent"
    assert session.store_from(objects, blocks, depths=range(20)) == ["stored"] * 20
    assert session.store_from(objects[:2], blocks[:2]) == ["present"] * 2
    assert session.probe_prefix(objects) == 20
    assert session.probe_prefixes(space, b"".join(id.prefix for id in objects)) == 20
    assert session.probe(objects[3]) == 64 * KIB and session.why(objects[3]) is None
    buffers = [bytearray(64 * KIB) for _ in objects]
    # More blocks than are protected at a time, in an order of their own.
    order = list(reversed(range(20)))
    assert session.load_into([objects[n] for n in order], [buffers[n] for n in order]) == [None] * 20
    assert buffers == blocks
    assert session.leases == 0
    assert session.counters()["stored_blocks"] == 20 and session.counters()["loaded_blocks"] == 20
    usage = session.usage()
    assert usage["ready_bytes"] == 20 * 64 * KIB and usage["slots"]["ready"] == 20


@pytest.mark.parametrize("length", [1, 63, 64, 65, 4095, 4096, 4097, 64 * KIB - 1, 64 * KIB])
def test_lengths(session, space, length):
    left, object, right = (maru.ObjectId(space, digest(n)) for n in (length, length + 1_000_000, length + 2_000_000))
    session.store_from([left, right], [content(1, 64 * KIB), content(2, 64 * KIB)])
    assert session.store_from([object], [content(3, length)]) == ["stored"]
    assert session.probe(object) == length
    [lease] = session.acquire([object])
    assert len(lease) == length and lease.read() == content(3, length)
    lease.release()
    for neighbour, number in ((left, 1), (right, 2)):
        [lease] = session.acquire([neighbour])
        assert lease.read() == content(number, 64 * KIB)
        lease.release()


def test_lengths_that_cannot_be(session, space):
    object = maru.ObjectId(space, digest(1))
    assert session.store_from([object], [b""]) == ["empty"]
    assert session.store_from([object], [bytes(64 * KIB + 1)]) == ["too_large"]
    assert session.reserve(object, 64 * KIB + 1).why == "too_large"
    session.store_from([object], [b"four"])
    assert session.store_from([object], [b"five!"]) == ["length_mismatch"]
    short = bytearray(b"xxx")
    assert session.load_into([object], [short]) == ["length"]
    assert bytes(short) == bytes(3), "bytes that do not count are nobody's to look at"
    assert session.load_into([maru.ObjectId(space, digest(2))], [bytearray(4)]) == ["absent"]


def test_every_contiguous_buffer(session, space):
    plain = content(7, 4096)
    mapped = mmap.mmap(-1, 4096)
    mapped.write(plain)
    sources = [plain, bytearray(plain), memoryview(plain), array.array("Q", plain), mapped, memoryview(b"_" + plain)[1:]]
    for number, source in enumerate(sources):
        object = maru.ObjectId(space, digest(number))
        assert session.store_from([object], [source]) == ["stored"]
        for target in (bytearray(4096), array.array("d", bytes(4096)), mmap.mmap(-1, 4096), memoryview(bytearray(5000))[4:4100]):
            assert session.load_into([object], [target]) == [None]
            assert bytes(target) == plain
            [lease] = session.acquire([object])
            assert lease.read_into(target) == 4096
            lease.release()


def test_buffers_that_cannot_be(session, space):
    object = maru.ObjectId(space, digest(1))
    with pytest.raises(maru.ArgumentError, match=r"buffers\[0\] is not contiguous"):
        session.store_from([object], [memoryview(bytes(100))[::2]])
    with pytest.raises(maru.ArgumentError, match=r"buffers\[0\] is 'text', wanted an object with a contiguous buffer"):
        session.store_from([object], ["text"])
    session.store_from([object], [b"1234"])
    with pytest.raises(maru.ArgumentError, match=r"buffers\[0\] is read-only, wanted a writable buffer"):
        session.load_into([object], [bytes(4)])
    with pytest.raises(maru.ArgumentError, match="buffers is 2 long, wanted 1, one for each object"):
        session.load_into([object], [bytearray(4), bytearray(4)])
    [lease] = session.acquire([object])
    with pytest.raises(maru.ArgumentError, match="buffer is read-only"):
        lease.read_into(b"1234")
    with pytest.raises(maru.LoadError, match="buffer has 5 bytes, the block 4") as error:
        lease.read_into(bytearray(5))
    assert error.value.code == "length"


def test_a_reservation_takes_pieces_in_any_order(session, space):
    object = maru.ObjectId(space, digest(1), shard=3, part=2)
    answer = session.reserve(object, 300, depth=4, parent=digest(0), after_hits=1)
    assert answer.granted and answer and answer.code == "granted" and answer.why is None
    reservation = answer.reservation
    assert len(reservation) == reservation.length == 300
    assert session.reserve(object, 300).code == "being_written"
    assert session.probe(object) is None and session.why(object) == "not_ready"
    reservation.write_at(200, b"c" * 100)
    reservation.write_at(0, b"a" * 100)
    assert reservation.commit() == "incomplete"
    assert session.resolve(reservation.token()) == "unknown"
    reservation.write_at(100, b"b" * 100)
    assert reservation.commit() == "stored"
    assert reservation.commit() == "already_stored"
    assert session.resolve(reservation.token()) == "already_stored"
    assert session.resolve(bytes(28)) == "generation_gone"
    assert session.reserve(object, 300).code == "present"
    [lease] = session.acquire([object])
    assert lease.read() == b"a" * 100 + b"b" * 100 + b"c" * 100
    with pytest.raises(maru.WriteError) as error:
        reservation.write_at(0, b"late")
    assert error.value.code == "ended"


def test_a_reservation_that_is_left_is_given_back(session, space):
    object = maru.ObjectId(space, digest(1))
    with pytest.raises(RuntimeError):
        with session.reserve(object, 100).reservation as reservation:
            reservation.write_at(0, bytes(50))
            raise RuntimeError
    assert reservation.commit() == "generation_gone" and not reservation.abort()
    assert session.usage()["allocated_bytes"] == 0
    answer = session.reserve(object, 100)
    assert answer.granted
    del answer
    assert session.usage()["allocated_bytes"] == 0, "dropping a reservation gives it back"
    with session.reserve(object, 4).reservation as reservation:
        reservation.write_at(0, b"good")
        assert reservation.commit() == "stored"
    assert session.probe(object) == 4, "a committed one stays"


def test_writing_out_of_bounds(session, space):
    with session.reserve(maru.ObjectId(space, digest(1)), 100).reservation as reservation:
        with pytest.raises(maru.WriteError, match=r"piece 50\+51 reaches beyond the 100 reserved bytes") as error:
            reservation.write_at(50, bytes(51))
        assert error.value.code == "out_of_bounds"
        with pytest.raises(maru.WriteError):
            reservation.write_at(2**32 - 1, b"x")


def test_all_or_nothing(session, space):
    here, gone = maru.ObjectId(space, digest(1)), maru.ObjectId(space, digest(2))
    session.store_from([here], [b"x"])
    answers = session.acquire([here, gone])
    assert [answer.why for answer in answers] == ["partner_missing", "absent"]
    assert not any(answers) and session.leases == 0
    lease, miss = session.acquire([here, gone], all_or_nothing=False)
    assert lease and miss.why == "absent" and session.leases == 1
    handle = lease.handle()
    assert session.release(handle) == "released" and session.release(handle) == "not_held"
    assert session.release(bytes(32)) == "not_held" and session.leases == 0


def test_more_blocks_than_lease_cells(folder):
    region = maru.Region.open(folder / "small", format="if_absent", size=MIB, slot_bytes=64, session_area_bytes=4096)
    session = region.session("a")
    space = session.namespace(fields())
    objects = [maru.ObjectId(space, digest(n)) for n in range(1000)]
    assert session.store_from(objects, [content(n, 64) for n in range(1000)]) == ["stored"] * 1000
    buffers = [bytearray(64) for _ in objects]
    assert session.load_into(objects, buffers) == [None] * 1000
    leases = [lease for lease in session.acquire(objects, all_or_nothing=False) if lease]
    assert len(leases) < 1000 and session.acquire(objects[:1])[0].why == "leases_full"
    assert session.load_into(objects[:20], buffers[:20]) == ["leases_full"] * 20
    leases.pop().release()
    # With one cell left, one after the other goes through it.
    buffers = [bytearray(64) for _ in objects]
    assert session.load_into(objects, buffers) == [None] * 1000
    assert buffers == [content(n, 64) for n in range(1000)]


def test_namespaces_are_apart_and_end_at_once(session, space):
    other = session.namespace(fields(dtype="fp8"))
    assert other != space and session.namespace(fields()) == space
    mine, theirs = maru.ObjectId(space, digest(1)), maru.ObjectId(other, digest(1))
    assert mine != theirs and len({mine, theirs, maru.ObjectId(space, digest(1))}) == 2
    session.store_from([mine], [b"mine"])
    assert session.probe(theirs) is None
    session.store_from([theirs], [b"else"])
    [lease] = session.acquire([mine])
    assert session.invalidate(space) and not session.invalidate(space)
    assert session.why(mine) == "invalidated" and session.probe(theirs) == 4
    assert session.load_into([mine], [bytearray(4)]) == ["invalidated"]
    with pytest.raises(maru.LoadError) as error:
        lease.read()
    assert error.value.code == "invalidated"
    assert session.store_from([mine], [b"more"]) == ["invalidated"]
    again = session.namespace(fields())
    assert again.generation == space.generation + 1 and session.probe(maru.ObjectId(again, digest(1))) is None


def test_budgets(session):
    space = session.namespace(fields(tenant="small"), budget_slots=2)
    objects = [maru.ObjectId(space, digest(n)) for n in range(3)]
    leases = []
    for object in objects[:2]:
        session.store_from([object], [b"x"])
        leases += session.acquire([object])
    assert session.store_from(objects[2:], [b"x"]) == ["over_budget"]
    usage = session.namespace_usage(space)
    assert usage["budget_slots"] == 2 and usage["spent_tokens"] == 2 and usage["slots"]["ready"] == 2
    with pytest.raises(maru.NamespaceError, match="namespace budget is 2 slots, asked for 3 slots") as error:
        session.namespace(fields(tenant="small"), budget_slots=3)
    assert error.value.code == "budget"


def test_eviction_is_the_sessions_choice(region):
    keeps, evicts = region.session("keeps", evict="never"), region.session("evicts", evict="when_full")
    space = keeps.namespace(fields())
    objects = [maru.ObjectId(space, digest(n)) for n in range(region.slots + 1)]
    stored = keeps.store_from(objects, [b"x"] * len(objects))
    assert stored.count("stored") == region.slots and stored[-1] == "no_space"
    assert keeps.probe_prefix(objects) == region.slots, "a refused store costs no hit"
    assert evicts.store_from(objects[-1:], [b"x"]) == ["stored"]
    assert region.session("waters", evict="watermarks", evict_low=0.1, evict_high=0.2).index not in (0, 1)


def test_regions_say_what_they_are(region, path):
    assert region.outcome == "formatted" and region.mode == "full" and region.backing == "tmpfs"
    assert region.slot_bytes == 64 * KIB and region.classes == [(64 * KIB, region.slots)]
    assert region.length_bytes == 8 * MIB and region.header_bytes < region.length_bytes
    again = maru.Region.open(path)
    assert again.outcome == "attached" and again.region_id == region.region_id and len(region.region_id) == 16
    with open(path, "rb") as file:
        assert maru.Region.open(fd=file.fileno(), mode="read_only").region_id == region.region_id
    [me] = [entry for entry in [region.session("who").sessions(), region.sessions()][0] if entry["engine"] == "who"]
    assert me["role"] == "worker" and me["alive"] is True


def test_a_scheduler_maps_no_payload(region, session, space, path):
    session.store_from([maru.ObjectId(space, digest(1))], [b"x"])
    header = maru.Region.open(path, mode="header_only")
    scheduler = header.session("engine-a", "scheduler")
    object = maru.ObjectId(scheduler.namespace(fields()), digest(1))
    assert scheduler.probe(object) == 1
    with pytest.raises(maru.NoPayload, match="no payload: the region is open header-only"):
        scheduler.acquire([object])
    with pytest.raises(maru.NoPayload):
        scheduler.store_from([object], [b"x"])
