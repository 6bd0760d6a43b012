"""A store of pools: orders, several replicas, pools that fail and cost only their own blocks."""

import os

import maru
import pytest
from conftest import KIB, MIB, content, digest, fields

LENGTH = 64 * KIB


def pool(folder, name, **options):
    return {
        "name": name, "path": str(folder / name), "format": "if_absent", "size": MIB, "slot_bytes": LENGTH,
        "medium": name, "evict": "never", **options,
    }


def opened(folder, engine="a", write=("cpu", "cxl"), read=("cpu", "cxl"), **options):
    pools = [pool(folder, "cpu", **options), pool(folder, "cxl", **options)]
    return maru.Store.open({"engine": engine, "pools": pools, "write_order": list(write), "read_order": list(read)})


@pytest.fixture
def store(folder):
    return opened(folder)


def filled(store, count, first=0):
    space = store.namespace(fields())
    blocks = [maru.ObjectId(space, digest(n)) for n in range(first, first + count)]
    return blocks, store.store_from(blocks, [content(n, LENGTH) for n in range(first, first + count)])


def test_a_prefix_over_two_pools(folder, store):
    slots = store.health()[0]["slots"]
    blocks, answers = filled(store, slots + 5)
    assert answers == ["stored"] * (slots + 5)
    assert [store.pool_of(block) for block in blocks] == ["cpu"] * slots + ["cxl"] * 5
    assert store.probe_prefix(blocks) == slots + 5
    assert store.probe_prefixes(blocks[0].namespace, b"".join(block.prefix for block in blocks)) == slots + 5
    other = opened(folder, "b", read=("cxl", "cpu"))
    mine = [maru.ObjectId(other.namespace(fields()), block.prefix) for block in blocks]
    buffers = [bytearray(LENGTH) for _ in mine]
    assert other.load_into(mine, buffers) == [None] * (slots + 5)
    assert buffers == [content(n, LENGTH) for n in range(slots + 5)]
    assert other.store_from(mine[:1], [content(0, LENGTH)]) == ["present"]
    usage = store.usage()
    assert usage["cpu"]["slots"]["ready"] == slots and usage["cxl"]["slots"]["ready"] == 5
    assert store.namespace_usage(blocks[0].namespace)["cxl"]["ready_bytes"] == 5 * LENGTH
    assert store.counters()["cxl"]["stored_blocks"] == 5


def test_both_full_is_a_refusal_and_costs_no_hit(store):
    slots = sum(health["slots"] for health in store.health())
    blocks, answers = filled(store, slots + 1)
    assert answers[-1] == "no_space" and answers[:-1] == ["stored"] * slots
    answer = store.reserve(blocks[-1], LENGTH)
    assert answer.code == "refused" and answer.why == "no_space" and answer.detail == "cpu: no free slot; cxl: no free slot"
    assert store.probe_prefix(blocks) == slots


def test_write_order_and_another_replica(folder):
    store = opened(folder, write=("cxl", "cpu"), read=("cpu", "cxl"))
    assert store.write_order == ["cxl", "cpu"] and store.read_order == ["cpu", "cxl"]
    [block], _ = filled(store, 1)
    assert store.pool_of(block) == "cxl"
    assert store.reserve(block, LENGTH).code == "present" and store.reserve(block, LENGTH).pool == "cxl"
    answer = store.reserve(block, LENGTH, another=True)
    assert answer.granted and answer.pool == "cpu"
    answer.reservation.write_at(0, content(0, LENGTH))
    assert answer.reservation.commit() == "stored"
    assert store.pool_of(block) == "cpu", "the first of the read order"
    assert store.reserve(block, LENGTH, another=True).why == "has_replica"
    [lease] = store.acquire([block])
    assert lease.pool == "cpu" and lease.view() == content(0, LENGTH)
    lease.release()
    assert store.retire(block) == {"cpu": "retired", "cxl": "retired"} and store.why(block) == "absent"


def damage(path, block: bytes) -> None:
    """Changes a byte of a block in a region's file."""
    data = open(path, "rb").read()
    at = data.index(block)
    with open(path, "r+b") as file:
        file.seek(at + 100)
        file.write(bytes([data[at + 100] ^ 1]))


def test_a_damaged_replica_falls_to_the_next_pool(folder, store):
    [block], _ = filled(store, 1)
    with store.reserve(block, LENGTH, another=True).reservation as reservation:
        reservation.write_at(0, content(0, LENGTH))
        reservation.commit()
    damage(folder / "cpu", content(0, LENGTH))
    buffer = bytearray(LENGTH)
    assert store.load_into([block], [buffer]) == [None] and buffer == content(0, LENGTH)
    damage(folder / "cxl", content(0, LENGTH))
    assert store.load_into([block], [buffer]) == ["damaged"] and buffer == bytes(LENGTH)


def test_a_lost_pool_costs_its_own_blocks(folder, store):
    slots = store.health()[0]["slots"]
    blocks, _ = filled(store, slots + 3)
    os.truncate(folder / "cpu", 512 * KIB)
    assert store.heartbeat() == 1
    buffers = [bytearray(LENGTH) for _ in blocks]
    answers = store.load_into(blocks, buffers)
    assert answers[slots:] == [None] * 3 and None not in answers[:slots]
    cpu, cxl = store.health()
    assert cpu["state"] == "out" and "changed size" in cpu["why"] and cpu["errors"] >= 1
    assert cxl["state"] == "in_use" and cxl["errors"] == 0 and cxl["medium"] == "cxl"
    more, stored = filled(store, 2, first=1000)
    assert stored == ["stored"] * 2 and store.pool_of(more[0]) == "cxl"
    assert more[0].namespace.left_out[0][0] == "cpu" and "changed size" in more[0].namespace.left_out[0][1]


def test_no_pool_at_all_is_an_answer_and_not_an_error(folder, store):
    blocks, _ = filled(store, 2)
    for name in ("cpu", "cxl"):
        os.truncate(folder / name, 512 * KIB)
    assert store.heartbeat() == 0
    assert store.probe(blocks[0]) is None and store.why(blocks[0]) == "no_pool" and store.pool_of(blocks[0]) is None
    assert store.probe_prefix(blocks) == 0
    assert store.probe_prefixes(blocks[0].namespace, blocks[0].prefix) == 0
    assert store.load_into(blocks, [bytearray(LENGTH), bytearray(LENGTH)]) == ["no_pool"] * 2
    assert store.store_from(blocks, [bytes(LENGTH)] * 2) == ["no_pool"] * 2
    misses = store.acquire(blocks)
    assert [miss.why for miss in misses] == ["no_pool"] * 2
    assert misses[0].pools == [("cpu", "resized"), ("cxl", "resized")]
    assert store.reserve(blocks[0], LENGTH).why == "no_pool"
    assert [health["state"] for health in store.health()] == ["out", "out"]
    with pytest.raises(maru.NamespaceError, match="could not be registered in any pool"):
        store.namespace(fields())
    store.close()


def test_leases_and_close(store):
    blocks, _ = filled(store, 2)
    leases = store.acquire(blocks)
    with pytest.raises(maru.StillHeld, match=r"still holds 2 lease\(s\)") as error:
        store.close()
    assert error.value.leases == 2
    view = leases[0].view()
    for lease in leases:
        lease.release()
    with pytest.raises(maru.StillHeld):
        store.close()
    del view
    store.close()
    with pytest.raises(maru.CallError, match="the store is closed"):
        store.probe(blocks[0])


def test_misses_say_what_each_pool_says(store):
    blocks, _ = filled(store, 1)
    gone = maru.ObjectId(blocks[0].namespace, digest(99))
    lease, miss = store.acquire([blocks[0], gone], all_or_nothing=False)
    assert lease and miss.why == "absent" and miss.pools == [("cpu", "absent"), ("cxl", "absent")]
    lease.release()
    assert [miss.why for miss in store.acquire([blocks[0], gone])] == ["partner_missing", "absent"]


def test_namespaces_belong_to_their_store(folder, store, session, space):
    blocks, _ = filled(store, 1)
    with pytest.raises(maru.CallError, match="registered by a store, wanted one registered by a session") as error:
        session.probe(blocks[0])
    assert error.value.code == "foreign_namespace"
    with pytest.raises(maru.CallError, match="registered by a session, wanted one registered by a store"):
        store.probe(maru.ObjectId(space, digest(0)))
    other = opened(folder, "b")
    with pytest.raises(maru.CallError, match="namespace of another store"):
        other.probe(blocks[0])
    two = maru.ObjectId(store.namespace(fields(dtype="fp8")), digest(1))
    with pytest.raises(maru.ArgumentError, match=r"objects\[1\].namespace is another one"):
        store.probe_prefix([blocks[0], two])
    assert store.invalidate(blocks[0].namespace) == {"ended": ["cpu", "cxl"], "before": [], "failed": []}
    assert store.why(blocks[0]) == "invalidated"


def test_budgets_by_pool(store):
    space = store.namespace(fields(tenant="small"), budgets={"cpu": 2 * LENGTH})
    blocks = [maru.ObjectId(space, digest(n)) for n in range(4)]
    assert store.store_from(blocks, [bytes(LENGTH)] * 4) == ["stored"] * 4
    assert [store.pool_of(block) for block in blocks] == ["cpu", "cpu", "cxl", "cxl"]
    with pytest.raises(maru.ArgumentError, match=r"pool is 'ssd', wanted one of cpu, cxl"):
        store.namespace(fields(), budgets={"ssd": 1})
    with pytest.raises(maru.ArgumentError, match=r'budgets\["cpu"\] is -1'):
        store.namespace(fields(), budgets={"cpu": -1})


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"engine": None}, maru.ArgumentError, "Store.open: engine is missing, wanted a name"),
        ({"pools": None}, maru.ArgumentError, "Store.open: pools is missing"),
        ({"pools": 3}, maru.ArgumentError, "pools is 3, wanted a list of dicts"),
        ({"pools": []}, maru.ConfigError, "names no pool"),
        ({"pools": [3]}, maru.ArgumentError, "pools[0] is 3, wanted a dict"),
        ({"colour": 3}, maru.ArgumentError, "Store.open: option colour is unknown"),
        ({"role": "boss"}, maru.ArgumentError, "role is 'boss'"),
        ({"write_order": "cpu"}, maru.ArgumentError, "write_order is 'cpu', wanted a list of pool names"),
        ({"write_order": []}, maru.ConfigError, "write order: it names no pool"),
        ({"write_order": ["cpu", "cpu"]}, maru.ConfigError, 'write order: pool "cpu" stands there twice'),
        ({"read_order": ["cpu", "ssd"]}, maru.ConfigError, 'read order: no pool is named "ssd"'),
        ({"write_order": ["cpu"], "read_order": ["cpu"]}, maru.ConfigError, 'pool "cxl" stands in neither order'),
    ],
)
def test_stores_that_cannot_be(folder, change, error, says):
    config = {"engine": "a", "pools": [pool(folder, "cpu"), pool(folder, "cxl")], **change}
    with pytest.raises(error) as raised:
        maru.Store.open(config)
    assert says in str(raised.value)


def test_pools_that_cannot_be(folder):
    for change, says in (
        ({"name": None}, "pools[0]: name is missing"),
        ({"name": ""}, "pool name"),
        ({"colour": 1}, "pools[0]: option colour is unknown"),
        ({"size": -1}, "size is -1"),
        ({"format": "never"}, "pool cpu: "),
    ):
        with pytest.raises(maru.MaruError) as error:
            maru.Store.open({"engine": "a", "pools": [pool(folder, "cpu") | change]})
        assert says in str(error.value)
    with pytest.raises(maru.ConfigError, match="are one region"):
        same = pool(folder, "cpu")
        maru.Store.open({"engine": "a", "pools": [same, {**same, "name": "again"}]})
    with pytest.raises(maru.ConfigError, match='two pools are named "cpu"'):
        maru.Store.open({"engine": "a", "pools": [pool(folder, "cpu"), pool(folder, "cpu", path=str(folder / "x"))]})


def test_a_private_pool_is_not_another_processs(folder, child):
    mine = maru.Store.open({"engine": "a", "pools": [pool(folder, "cpu", scope="process"), pool(folder, "cxl")]})
    blocks, _ = filled(mine, 2)
    other = child(
        """
import test_pools, pathlib
store = test_pools.opened(pathlib.Path(sys.argv[1]), "b")
block = maru.ObjectId(store.namespace(fields()), digest(0))
print(store.health()[0]["state"], store.why(block), store.store_from([block], [content(0, 64 * KIB)])[0], store.pool_of(block), flush=True)
""",
        str(folder),
    )
    assert other.line() == "ineligible absent stored cxl"
    assert mine.health()[0]["state"] == "in_use" and mine.pool_of(blocks[0]) == "cpu"
