"""Configuration by the RFC's keys: everything that can be wrong is refused by name."""

import pathlib
import re

import maru
import pytest
from conftest import KIB, MIB, content, digest, fields
from maru import config

BASE = {"maru_engine_id": "inference-a", "maru_cache_namespace": "immutable-weights-revision"}
CPU = {**BASE, "maru_storage_backend": "cpu", "maru_cpu_pool_size": "8G"}
CXL = {**BASE, "maru_storage_backend": "cxl", "maru_cxl_path": "/dev/dax0.0"}
MIXED = {**BASE, "maru_storage_backend": "mixed", "maru_cpu_pool_size": "8G", "maru_cxl_pool_size": "32G", "maru_cxl_path": "/dev/dax0.0"}


def read(mapping, **environ):
    return config.from_mapping(mapping, environ=environ)


def refused(mapping, key, *says, **environ):
    with pytest.raises(maru.ConfigError) as error:
        read(mapping, **environ)
    error = error.value
    assert error.field == key and error.found and error.wanted and isinstance(error, ValueError)
    for text in (key, *says):
        assert text in str(error), str(error)


def test_the_rfcs_example():
    rfc = {
        "maru_storage_backend": "mixed", "maru_cpu_pool_size": "8G", "maru_cxl_pool_size": "32G",
        "maru_write_order": ["cpu", "cxl"], "maru_read_order": ["cpu", "cxl"], "maru_engine_id": "inference-a",
        "maru_cache_namespace": "immutable-weights-revision",
    }
    found = read(rfc, CXL_DAX_DEVICE="/dev/dax1.0")
    assert found.pools == found.write_order == found.read_order == ("cpu", "cxl")
    assert (found.cpu_pool_size, found.cxl_pool_size) == (8 << 30, 32 << 30)
    assert found.namespace_fields(model="m") == {"tenant": "default", "revision": "immutable-weights-revision", "model": "m"}


@pytest.mark.parametrize(
    ("said", "bytes"),
    [
        ("8G", 8 << 30), ("8GiB", 8 << 30), ("8Gi", 8 << 30), ("8 gib", 8 << 30), ("1.5GiB", 3 << 29), ("4096", 4096),
        ("4096B", 4096), (4096, 4096), (8e9, 8_000_000_000), ("64K", 64 << 10), ("2M", 2 << 20), ("1T", 1 << 40),
    ],
)
def test_sizes(said, bytes):
    assert config.parse_size("x", said) == bytes


@pytest.mark.parametrize(
    "said", [0, -1, 2**70, "0", "-1", "-8G", "8GB", "8e9", "", "G", "8 Gigs", "1.3", "0.0001K", 1.5, float("inf"), float("nan"), True, None, [1], "9999999P"]
)
def test_sizes_that_cannot_be(said):
    with pytest.raises(maru.ConfigError, match="^maru_cpu_pool_size is ") as error:
        config.parse_size("maru_cpu_pool_size", said)
    assert error.value.found == repr(said)


def test_backends():
    assert read(CPU).pools == ("cpu",) and read(CXL).pools == ("cxl",) and read(MIXED).pools == ("cpu", "cxl")
    assert read(CPU | {"maru_storage_backend": "auto"}).backend == "cpu"
    assert read(CPU | {"maru_storage_backend": None}).backend == "cpu"
    assert read(CPU | {"maru_storage_backend": "auto"}, CXL_DAX_DEVICE="/dev/dax0.0").backend == "mixed"
    refused(CPU | {"maru_storage_backend": "ssd"}, "maru_storage_backend", "'ssd'", "one of cpu, cxl, mixed, auto")


@pytest.mark.parametrize("key", ["maru_engine_id", "maru_cache_namespace", "maru_cpu_pool_size"])
def test_what_must_be_said(key):
    refused({name: value for name, value in CPU.items() if name != key}, key, "is missing", f'for example "{key}": "')
    refused(CPU | {key: ""}, key, "''")
    refused(CPU | {key: []}, key, "[]")


def test_a_cxl_pool_needs_a_device():
    without = {name: value for name, value in CXL.items() if name != "maru_cxl_path"}
    refused(without, "maru_cxl_path", "CXL_DAX_DEVICE")
    assert read(without, CXL_DAX_DEVICE="/dev/dax0.0").cxl_path is None


def test_the_older_pool_size():
    """It means CXL only; where there may be another pool it says nothing about which is meant."""
    assert read(CXL | {"maru_pool_size": "32G"}).cxl_pool_size == 32 << 30
    refused(CPU | {"maru_pool_size": "8G"}, "maru_pool_size", "maru_storage_backend cpu", "it means the CXL pool alone", "wanted maru_cpu_pool_size")
    refused(MIXED | {"maru_pool_size": "8G"}, "maru_pool_size", "mixed", "maru_cpu_pool_size and maru_cxl_pool_size")
    refused(CXL | {"maru_pool_size": "8G", "maru_cxl_pool_size": "8G"}, "maru_pool_size", "maru_cxl_pool_size")


@pytest.mark.parametrize("key", ["maru_write_order", "maru_read_order"])
@pytest.mark.parametrize("order", [[], ["ssd"], ["cpu", "cpu"], "cpu", ["cpu", "cxl", "cpu"], 3, [3], {"cpu": 1}])
def test_orders_that_cannot_be(key, order):
    refused(MIXED | {key: order}, key, repr(order), "a list of some of cpu, cxl, each once")


def test_orders():
    found = read(MIXED | {"maru_write_order": ["cxl", "cpu"], "maru_read_order": ["cpu", "cxl"]})
    assert found.write_order == ("cxl", "cpu") and found.read_order == ("cpu", "cxl")
    refused(MIXED | {"maru_write_order": ["cpu"], "maru_read_order": ["cpu"]}, "maru_read_order", "pool cxl in one of the two orders")
    refused(CPU | {"maru_write_order": ["cpu", "cxl"]}, "maru_write_order")


def test_keys_of_a_pool_that_there_is_not():
    refused(CPU | {"maru_cxl_pool_size": "1G"}, "maru_cxl_pool_size", "maru_storage_backend cpu has no cxl pool")
    refused(CXL | {"maru_cpu_pool_size": "1G"}, "maru_cpu_pool_size", "maru_storage_backend cxl has no cpu pool")
    refused(CPU | {"maru_lock_file": "/x"}, "maru_lock_file")


def test_unknown_keys_name_the_nearest():
    refused(CPU | {"maru_cpu_poolsize": 1}, "maru_cpu_poolsize", "did you mean maru_cpu_pool_size?")
    refused(CPU | {"maru_engineid": 1}, "maru_engineid", "did you mean maru_engine_id?")
    refused(CPU | {"write_order": 1}, "write_order", "did you mean maru_write_order?")
    refused(CPU | {"zzz": 1}, "zzz")
    assert config.from_mapping(CPU | {"maru_mine": 7}, also_known=["maru_mine"], environ={}).extra == {"maru_mine": 7}
    with pytest.raises(maru.ConfigError, match="did you mean maru_mine?"):
        config.from_mapping(CPU | {"maru_nine": 7}, also_known=["maru_mine"], environ={})


def test_words_and_flags():
    refused(CPU | {"maru_evict": "always"}, "maru_evict", "one of when_full, never")
    refused(CPU | {"maru_cpu_scope": "domain"}, "maru_cpu_scope", "one of host, process")
    refused(CPU | {"maru_prefault": "yes"}, "maru_prefault", "true or false")
    refused(CPU | {"maru_tenant": 3}, "maru_tenant")


def small(folder, **changes):
    return read(
        {
            **MIXED, "maru_cpu_pool_size": "1MiB", "maru_cxl_pool_size": "1MiB", "maru_cpu_path": str(folder / "cpu"),
            "maru_cxl_path": str(folder / "cxl"), **changes,
        }
    )


def test_opening_what_was_configured(folder):
    store = small(folder).open(slot_bytes=64 * KIB)
    assert [(pool["name"], pool["medium"], pool["slot_bytes"]) for pool in store.health()] == [("cpu", "cpu", 65536), ("cxl", "cxl", 65536)]
    slots = sum(pool["slots"] for pool in store.health())
    space = store.namespace(fields())
    blocks = [maru.ObjectId(space, digest(n)) for n in range(slots + 10)]
    assert store.store_from(blocks, [content(n, 64 * KIB) for n in range(slots + 10)]) == ["stored"] * (slots + 10)
    assert store.pool_of(blocks[0]) == "cpu", "the first pool of the write order keeps what it has"
    assert store.counters()["cpu"]["evicted"] == 0 and store.counters()["cxl"]["evicted"] > 0
    scheduler = small(folder).open("scheduler", mode="header_only", format="never")
    assert scheduler.probe(maru.ObjectId(scheduler.namespace(fields()), digest(0))) == 64 * KIB
    assert [entry["role"] for entry in scheduler.sessions("cpu")] == ["worker", "scheduler"]


def test_a_store_that_never_evicts(folder):
    store = small(folder, maru_evict="never").open(slot_bytes=64 * KIB)
    slots = sum(pool["slots"] for pool in store.health())
    space = store.namespace(fields())
    blocks = [maru.ObjectId(space, digest(n)) for n in range(slots + 1)]
    assert store.store_from(blocks, [bytes(64 * KIB)] * (slots + 1))[-1] == "no_space"


def test_an_engine_id_in_use(folder, child):
    first = small(folder).open(slot_bytes=64 * KIB, alone=True)
    with pytest.raises(maru.AttachError, match="maru_engine_id: 'inference-a' is in use by a live worker") as error:
        small(folder).open(alone=True)
    assert error.value.code == "engine_id"
    assert len(first.sessions("cpu")) == 1, "the refused one left no session behind"
    small(folder, maru_engine_id="inference-b").open(alone=True)
    small(folder).open("scheduler", alone=True)
    first.close()
    small(folder).open(alone=True)


def test_more_than_there_is(folder):
    with pytest.raises(maru.OpenError, match="pool cpu: .*no space: need .*, available"):
        small(folder, maru_cpu_pool_size="200T").open(slot_bytes=1 << 30)
    assert not (folder / "cpu").exists()


def test_the_readme_has_the_table_of_keys():
    readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
    rows = re.findall(r"^\| `(maru_\w+)` \|", readme, re.MULTILINE)
    assert [row for row in rows if row in config.KEYS] == list(config.KEYS)
    for key, meaning in config.KEYS.items():
        assert meaning in readme, key
