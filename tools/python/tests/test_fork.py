"""A forked child has none of its parent's sessions: every call says so, dropping touches nothing, the parent goes on."""

import gc
import multiprocessing
import os
import signal
import threading
import traceback

import maru
import pytest
from conftest import KIB, content, digest, fields


def in_child(work) -> None:
    """Runs `work` in a forked child; fails with what it raised there."""
    sees, says = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(sees)
            work()
            status = 0
        except BaseException:
            os.write(says, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(says)
    try:
        with os.fdopen(sees) as pipe:
            told = pipe.read()
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {status}: {told}"


def calls(region, session, space, store, pooled, lease, reservation):
    """Every call there is, by name."""
    object = maru.ObjectId(space, digest(1))
    block = maru.ObjectId(pooled, digest(1))
    yield from {
        "region.region_id": lambda: region.region_id,
        "region.slots": lambda: region.slots,
        "region.usage": region.usage,
        "region.sessions": region.sessions,
        "region.session": lambda: region.session("child"),
        "region.close": region.close,
        "session.heartbeat": session.heartbeat,
        "session.namespace": lambda: session.namespace(fields()),
        "session.invalidate": lambda: session.invalidate(space),
        "session.namespace_usage": lambda: session.namespace_usage(space),
        "session.usage": session.usage,
        "session.counters": session.counters,
        "session.leases": lambda: session.leases,
        "session.sessions": session.sessions,
        "session.fence": lambda: session.fence(0, 1),
        "session.probe": lambda: session.probe(object),
        "session.why": lambda: session.why(object),
        "session.probe_prefix": lambda: session.probe_prefix([object]),
        "session.probe_prefixes": lambda: session.probe_prefixes(space, bytes(32)),
        "session.reserve": lambda: session.reserve(object, 10),
        "session.resolve": lambda: session.resolve(bytes(28)),
        "session.acquire": lambda: session.acquire([object]),
        "session.release": lambda: session.release(bytes(32)),
        "session.retire": lambda: session.retire(object),
        "session.reclaim": session.reclaim,
        "session.load_into": lambda: session.load_into([object], [bytearray(1)]),
        "session.store_from": lambda: session.store_from([object], [b"x"]),
        "session.close": session.close,
        "session.__exit__": lambda: session.__exit__(None, None, None),
        "lease.read": lease.read,
        "lease.read_into": lambda: lease.read_into(bytearray(64 * KIB)),
        "lease.view": lease.view,
        "lease.handle": lease.handle,
        "lease.release": lease.release,
        "lease.released": lambda: lease.released,
        "reservation.write_at": lambda: reservation.write_at(0, b"x"),
        "reservation.commit": reservation.commit,
        "reservation.abort": reservation.abort,
        "reservation.view": reservation.view,
        "store.heartbeat": store.heartbeat,
        "store.health": store.health,
        "store.usage": store.usage,
        "store.counters": store.counters,
        "store.sessions": lambda: store.sessions("cpu"),
        "store.session_index": lambda: store.session_index("cpu"),
        "store.write_order": lambda: store.write_order,
        "store.namespace": lambda: store.namespace(fields()),
        "store.invalidate": lambda: store.invalidate(pooled),
        "store.namespace_usage": lambda: store.namespace_usage(pooled),
        "store.probe": lambda: store.probe(block),
        "store.pool_of": lambda: store.pool_of(block),
        "store.why": lambda: store.why(block),
        "store.probe_prefix": lambda: store.probe_prefix([block]),
        "store.probe_prefixes": lambda: store.probe_prefixes(pooled, bytes(32)),
        "store.reserve": lambda: store.reserve(block, 10),
        "store.acquire": lambda: store.acquire([block]),
        "store.load_into": lambda: store.load_into([block], [bytearray(1)]),
        "store.store_from": lambda: store.store_from([block], [b"x"]),
        "store.retire": lambda: store.retire(block),
        "store.close": store.close,
    }.items()


def test_every_call_in_a_forked_child_says_other_process(region, session, space, folder):
    object, other = maru.ObjectId(space, digest(1)), maru.ObjectId(space, digest(2))
    session.store_from([object], [content(1, 64 * KIB)])
    [lease] = session.acquire([object])
    reservation = session.reserve(other, 10).reservation
    pool = {"name": "cpu", "path": str(folder / "pool"), "format": "if_absent", "size": 1 << 20, "slot_bytes": 4096}
    store = maru.Store.open({"engine": "a", "pools": [pool]})
    pooled = store.namespace(fields())
    before = region.usage(), store.usage(), session.leases

    def work():
        missed = []
        for name, call in calls(region, session, space, store, pooled, lease, reservation):
            try:
                call()
                missed.append(name)
            except maru.OtherProcess as error:
                assert error.code == "other_process" and "open the region again" in str(error), name
        assert not missed, missed
        assert session.alive is False
        repr(region), repr(session), repr(store), repr(lease), repr(reservation)

    in_child(work)
    assert (region.usage(), store.usage(), session.leases) == before
    # The parent goes on with all of it.
    assert lease.read() == content(1, 64 * KIB)
    reservation.write_at(0, b"0123456789")
    assert reservation.commit() == "stored" and session.heartbeat() > 0 and store.heartbeat() == 1


def test_every_public_call_is_in_the_list_above(region, session, space, folder):
    pool = {"name": "cpu", "path": str(folder / "pool"), "format": "if_absent", "size": 1 << 20, "slot_bytes": 4096}
    store = maru.Store.open({"engine": "a", "pools": [pool]})
    object = maru.ObjectId(space, digest(1))
    session.store_from([object], [b"x"])
    [lease] = session.acquire([object])
    reservation = session.reserve(maru.ObjectId(space, digest(2)), 10).reservation
    named = {name for name, _ in calls(region, session, space, store, store.namespace(fields()), lease, reservation)}
    things = {"region": region, "session": session, "store": store, "lease": lease, "reservation": reservation}
    methods = {
        f"{name}.{method}"
        for name, thing in things.items()
        for method in dir(thing)
        if not method.startswith("_") and callable(getattr(thing, method))
    }
    # What makes or names, and asks nothing of a region.
    assert methods - named == {"region.open", "store.open", "reservation.token"}


def test_dropping_in_a_forked_child_touches_nothing(region, session, space, path):
    object, other = maru.ObjectId(space, digest(1)), maru.ObjectId(space, digest(2))
    session.store_from([object], [content(1, 64 * KIB)])
    things = {"lease": session.acquire([object])[0], "reservation": session.reserve(other, 10).reservation}
    things["view"] = things["lease"].view()
    # One that nobody views: releasing it would store to a lease cell.
    things["plain"] = session.acquire([object])[0]
    things["session"] = region.session("second")
    index = things["session"].index
    before = open(path, "rb").read()

    def work():
        things["view"].release()
        things.clear()
        gc.collect()

    in_child(work)
    assert open(path, "rb").read() == before, "not a byte of the region moved"
    assert session.leases == 2 and things["view"] == content(1, 64 * KIB)
    assert [entry["alive"] for entry in session.sessions() if entry["index"] == index] == [True]


def test_a_child_opens_its_own_session(region, session, space, path):
    object = maru.ObjectId(space, digest(1))
    session.store_from([object], [content(1, 64 * KIB)])

    def work():
        with maru.Region.open(path).session("child") as mine:
            [lease] = mine.acquire([maru.ObjectId(mine.namespace(fields()), digest(1))])
            assert lease.read() == content(1, 64 * KIB)
            lease.release()
            own = maru.ObjectId(mine.namespace(fields()), digest(2))
            assert mine.store_from([own], [content(2, 100)]) == ["stored"]
            assert mine.epoch > session.epoch

    in_child(work)
    assert session.probe(maru.ObjectId(space, digest(2))) == 100


def test_fork_while_other_threads_are_in_calls(region, session, space):
    """A child may inherit a lock that a thread held which it has not; it must not wait for it."""
    objects = [maru.ObjectId(space, digest(n)) for n in range(8)]
    session.store_from(objects, [content(n, 64 * KIB) for n in range(8)])
    stop = threading.Event()
    reservation = session.reserve(maru.ObjectId(space, digest(100)), 64 * KIB).reservation

    def busy():
        buffers = [bytearray(64 * KIB) for _ in objects]
        while not stop.is_set():
            session.load_into(objects, buffers)
            reservation.write_at(0, buffers[0])

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()

    def work():
        for call in (session.heartbeat, region.usage, reservation.commit, lambda: reservation.write_at(0, b"x")):
            with pytest.raises(maru.OtherProcess):
                call()
        for call in (session.close, reservation.abort):
            with pytest.raises(maru.OtherProcess):
                call()

    try:
        for _ in range(30):
            in_child(work)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert reservation.commit() == "stored"


def of_the_parent(session):
    try:
        session.heartbeat()
        return "answered"
    except maru.OtherProcess as error:
        return error


def stores_one(path, number):
    with maru.Region.open(path).session(f"worker-{number}") as session:
        object = maru.ObjectId(session.namespace(fields()), digest(number))
        return session.store_from([object], [content(number, 1000)])[0]


_inherited = None


def of_the_global(_):
    return of_the_parent(_inherited)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(region, session, space, path, method):
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.starmap(stores_one, [(path, n) for n in range(6)]) == ["stored"] * 6
    assert session.probe_prefix([maru.ObjectId(space, digest(n)) for n in range(6)]) == 6
    if method == "fork":
        global _inherited
        _inherited = session
        with context.Pool(1) as pool:
            # The exception itself comes back whole.
            error = pool.apply(of_the_global, (0,))
        _inherited = None
        assert isinstance(error, maru.OtherProcess) and error.code == "other_process"
    assert session.heartbeat() > 0


def test_what_belongs_to_a_process_cannot_be_sent_to_another(region, session, space):
    import pickle

    for thing in (region, session, space, maru.ObjectId(space, digest(1)), session.reserve(maru.ObjectId(space, digest(1)), 5).reservation):
        with pytest.raises(TypeError, match=r"cannot pickle maru\.\w+: it belongs to its process; open the region"):
            pickle.dumps(thing)


def test_errors_can_be_sent_to_another(session):
    import pickle

    with pytest.raises(maru.ArgumentError) as error:
        session.resolve(b"short")
    again = pickle.loads(pickle.dumps(error.value))
    assert str(again) == str(error.value) and again.field == "token" and again.code == "argument"
