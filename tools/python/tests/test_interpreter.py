"""Other Python threads go on while a call copies, searches or waits."""

import sys
import threading
import time

import maru
import pytest
from conftest import MIB, content, digest, fields

BLOCK = 96 * MIB


@pytest.fixture
def big(folder):
    region = maru.Region.open(str(folder / "big"), format="if_absent", size=4 * BLOCK, slot_bytes=BLOCK, prefault=True)
    return region.session("big")


class Ticker:
    """A thread that counts, and gives the interpreter away after each count. Nobody is ever made to give it away: with the
    switch interval this long, counts while a call runs prove that the call itself let go."""

    def __enter__(self):
        self.interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)
        self.count, self.stop = 0, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        while not self.stop:
            self.count += 1
            time.sleep(0.0001)

    def __exit__(self, *_):
        self.stop = True
        self.thread.join()
        sys.setswitchinterval(self.interval)

    def during(self, call) -> int:
        before = self.count
        call()
        return self.count - before


def test_the_ticker_stands_still_where_nobody_lets_go():
    data = bytes(BLOCK)
    with Ticker() as ticker:
        # A search holds the interpreter all the time.
        assert ticker.during(lambda: data.find(b"x")) == 0


def test_copies_and_lookups_let_go(big):
    space = big.namespace(fields())
    data, target = content(1, BLOCK), bytearray(BLOCK)
    one, two, three = (maru.ObjectId(space, digest(n)) for n in (1, 2, 3))
    with Ticker() as ticker:
        assert ticker.during(lambda: big.store_from([one], [data])) > 0, "store_from"
        assert ticker.during(lambda: big.load_into([one], [target])) > 0, "load_into"
        assert target == data
        [lease] = big.acquire([one])
        assert ticker.during(lambda: lease.read_into(target)) > 0, "read_into"
        assert ticker.during(lease.read) > 0, "read"
        lease.release()
        reservation = big.reserve(two, BLOCK).reservation
        assert ticker.during(lambda: reservation.write_at(0, data)) > 0, "write_at"
        reservation.abort()
        reservation = big.reserve(three, BLOCK).reservation
        reservation.view().release()
        assert ticker.during(reservation.commit) > 0, "commit reads what was written in place"
        many = b"".join(digest(n) for n in range(1000)) * 300
        prefixes = digest(1) * 300_000
        assert len(many) == len(prefixes)
        assert ticker.during(lambda: big.probe_prefixes(space, prefixes)) > 0, "probe_prefixes"


def test_pools_let_go(folder):
    pool = {"name": "cpu", "path": str(folder / "pool"), "format": "if_absent", "size": 2 * BLOCK, "slot_bytes": BLOCK}
    store = maru.Store.open({"engine": "a", "pools": [pool]})
    block = maru.ObjectId(store.namespace(fields()), digest(1))
    data, target = content(1, BLOCK), bytearray(BLOCK)
    with Ticker() as ticker:
        assert ticker.during(lambda: store.store_from([block], [data])) > 0
        assert ticker.during(lambda: store.load_into([block], [target])) > 0
    assert target == data


def test_opening_lets_go(folder):
    with Ticker() as ticker:
        options = {"format": "if_absent", "size": 4 * BLOCK, "slot_bytes": BLOCK, "prefault": True}
        assert ticker.during(lambda: maru.Region.open(str(folder / "prefaulted"), **options)) > 0


def test_a_buffer_in_use_cannot_be_resized(big):
    """The buffer is held for as long as it is copied from, with the interpreter free for others."""
    space = big.namespace(fields())
    data = bytearray(content(1, BLOCK))
    seen = []

    def resize():
        while not seen:
            try:
                data.append(0)
                data.pop()
            except BufferError as error:
                seen.append(str(error))
            time.sleep(0.0001)

    thread = threading.Thread(target=resize)
    thread.start()
    for number in range(50):
        big.store_from([maru.ObjectId(space, digest(number))], [data])
        if seen:
            break
    seen.append("end")
    thread.join()
    assert "Existing exports of data: object cannot be re-sized" in seen[0]


def test_threads_share_a_session(session, space):
    """Each thread stores its own and reads everybody's; every byte is right."""
    faults = []

    def work(base):
        try:
            for n in range(20):
                object = maru.ObjectId(space, digest(base + n))
                assert session.store_from([object], [content(base + n, 3000)])[0] in ("stored", "present")
                buffer = bytearray(3000)
                for other in range(0, 400, 100):
                    if session.load_into([maru.ObjectId(space, digest(other + n))], [buffer]) == [None]:
                        assert buffer == content(other + n, 3000)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(base,)) for base in range(0, 400, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    assert session.leases == 0
