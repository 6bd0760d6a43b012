"""Numbers, words and options that cannot be: an error that names the field, what was found and what is wanted."""

import maru
import pytest
from conftest import KIB, MIB, digest, fields

NUMBERS = [-1, 2**64, 2**70, -(2**70), 1.5, "7", None.__class__, True, b"1"]


def refused(call, field: str):
    with pytest.raises(maru.ArgumentError) as error:
        call()
    error = error.value
    assert error.field == field and error.found and error.wanted, (error.field, error.found, error.wanted)
    assert error.field in str(error) and error.found in str(error) and error.wanted in str(error)
    assert error.code == "argument" and isinstance(error, maru.MaruError) and isinstance(error, ValueError)
    return error


@pytest.mark.parametrize("found", NUMBERS, ids=repr)
@pytest.mark.parametrize(
    "option",
    "size slot_bytes offset length sessions session_area_bytes namespaces tokens copy_lease_ms stalled_writer_ms "
    "attach_wait_ms file_mode fd".split(),
)
def test_numbers_of_open(folder, option, found):
    error = refused(lambda: maru.Region.open(str(folder / "none"), format="if_absent", **{option: found}), option)
    assert error.found == repr(found)
    assert not list(folder.iterdir()), "nothing was made"


@pytest.mark.parametrize("option", ["size", "slot_bytes", "length", "sessions", "namespaces", "copy_lease_ms"])
def test_zero_is_no_size(folder, option):
    refused(lambda: maru.Region.open(str(folder / "none"), format="if_absent", **{option: 0}), option)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"size": 1}, maru.OpenError, "length_bytes is 1, wanted a positive multiple of align_bytes (4096)"),
        ({"size": 2**63, "slot_bytes": 64}, maru.OpenError, "9223372036854775808"),
        ({"size": 1 << 20, "slot_bytes": 100}, maru.OpenError, "slot_bytes is 100"),
        ({"size": 1 << 20, "slot_bytes": 2**63}, maru.OpenError, "9223372036854775808"),
        ({"size": 1 << 20, "sessions": 5000}, maru.OpenError, "5000"),
        ({"size": 1 << 20, "copy_lease_ms": 1}, maru.OpenError, "copy_lease"),
        ({"size": 1 << 40, "slot_bytes": 1 << 20}, maru.OpenError, "space"),
        ({}, maru.OpenError, "size_bytes is missing"),
        ({"size": 1 << 20, "mode": "none"}, maru.ArgumentError, "mode is 'none', wanted one of full, header_only, read_only"),
        ({"size": 1 << 20, "medium": "tape"}, maru.ArgumentError, "medium is 'tape', wanted one of cpu, cxl, ssd"),
        ({"size": 1 << 20, "scope": 3}, maru.ArgumentError, "scope is 3, wanted one of process, host, domain"),
        ({"sise": 1 << 20}, maru.ArgumentError, "option sise is unknown, wanted one of path, fd, mode"),
        ({"size": 1 << 20, "prefault": "yes"}, maru.ArgumentError, "prefault is 'yes', wanted True or False"),
        ({"size": 1 << 20, "classes": 3}, maru.ArgumentError, "classes is 3, wanted a list of"),
        ({"size": 1 << 20, "classes": [(64, -3)]}, maru.ArgumentError, "slots of a class is -3"),
        ({"size": 1 << 20, "classes": [(64, 1)], "slot_bytes": 64}, maru.ArgumentError, "classes is said beside slot_bytes"),
        ({"size": 1 << 20, "config": 3}, maru.ArgumentError, "config is 3"),
        ({"size": 1 << 20, "config": "[1]"}, maru.OpenError, "config: found an array, wanted a JSON object"),
        ({"size": 1 << 20, "fd": 0}, maru.ArgumentError, "fd is said beside path"),
    ],
)
def test_wishes_that_cannot_be_had(folder, options, error, says):
    with pytest.raises(error) as raised:
        maru.Region.open(str(folder / "none"), **{"format": "if_absent", **options})
    assert says in str(raised.value)
    assert raised.value.code not in ("", "error", "open")
    assert not list(folder.iterdir()), "no half-made file is left"


def test_places_that_cannot_be(folder, monkeypatch):
    for path, code in ((folder / "absent", "backing"), (folder, "backing"), ("/dev/null", "backing"), ("/dev/zero", "backing")):
        with pytest.raises(maru.OpenError) as error:
            maru.Region.open(path)
        assert error.value.code == code and str(path) in str(error.value)
    with pytest.raises(maru.ArgumentError, match=r"fd is 9999 \(Bad file descriptor.*, wanted an open descriptor"):
        maru.Region.open(fd=9999)
    (folder / "text").write_text("not a region" * 10000)
    with pytest.raises(maru.OpenError) as error:
        maru.Region.open(folder / "text", format="if_absent", size=1 << 20)
    assert error.value.code == "not_blank"
    (folder / "zeros").write_bytes(bytes(1 << 20))
    with pytest.raises(maru.OpenError) as error:
        maru.Region.open(folder / "zeros")
    assert error.value.code == "not_formatted"
    monkeypatch.delenv("CXL_DAX_DEVICE", raising=False)
    with pytest.raises(maru.OpenError, match="CXL_DAX_DEVICE"):
        maru.Region.open()
    error = refused(lambda: maru.Region.open(3), "path")
    assert error.wanted == "a path (str, bytes or os.PathLike)"
    refused(lambda: maru.Region.open("x", lock_file=3), "lock_file")
    with pytest.raises(TypeError, match="path"):
        maru.Region.open("x", path="x")


def test_a_differing_configuration_is_named(folder):
    path = folder / "region"
    maru.Region.open(path, format="if_absent", size=1 << 20, config='{"dtype": "bf16"}')
    assert maru.Region.open(path).config == '{"dtype": "bf16"}'
    with pytest.raises(maru.OpenError, match="config.dtype: region bf16, yours fp8") as error:
        maru.Region.open(path, config='{"dtype": "fp8"}')
    assert error.value.code == "config"


@pytest.mark.parametrize("found", NUMBERS, ids=repr)
def test_numbers_of_sessions_and_blocks(region, session, space, found):
    object = maru.ObjectId(space, digest(1))
    refused(lambda: session.namespace(fields(), budget_slots=found), "budget_slots")
    refused(lambda: session.namespace(fields(), budget_bytes=found), "budget_bytes")
    refused(lambda: region.session("x", most_reservations=found), "most_reservations")
    refused(lambda: maru.ObjectId(space, digest(1), found), "shard")
    refused(lambda: maru.ObjectId(space, digest(1), 0, found), "part")
    refused(lambda: session.reserve(object, found), "length")
    refused(lambda: session.reserve(object, 1, depth=found), "depth")
    refused(lambda: session.reserve(object, 1, after_hits=found), "after_hits")
    refused(lambda: session.store_from([object], [b"x"], depths=[found]), "depth")
    refused(lambda: session.probe_prefixes(space, b"", shard=found), "shard")
    refused(lambda: session.fence(found, 1), "index")
    with session.reserve(object, 10).reservation as reservation:
        refused(lambda: reservation.write_at(found, b"x"), "offset")
        reservation.write_at(0, b"0123456789")
        assert reservation.commit() == "stored"
    if isinstance(found, int) and not isinstance(found, bool):
        with session.acquire([object])[0] as lease:
            refused(lambda: lease.read(found), "verify")
    assert session.usage()["slots"]["ready"] == 1


def test_bounds_of_small_numbers(session, space):
    assert maru.ObjectId(space, digest(1), 65535, 65535).shard == 65535
    refused(lambda: maru.ObjectId(space, digest(1), 65536), "shard")
    refused(lambda: session.reserve(maru.ObjectId(space, digest(1)), 0), "length")
    assert session.reserve(maru.ObjectId(space, digest(1)), 2**64 - 1).why == "too_large"


def test_numbers_that_stand_for_whole_ones(session, space):
    class Seven:
        def __index__(self):
            return 7

    assert maru.ObjectId(space, digest(1), Seven()).shard == 7


def test_digests_and_tokens(session, space):
    for prefix, found in ((b"", "0 bytes"), (b"x" * 31, "31 bytes"), (b"x" * 33, "33 bytes"), ("x" * 32, repr("x" * 32)), (7, "7")):
        error = refused(lambda: maru.ObjectId(space, prefix), "prefix")
        assert error.found == found and error.wanted == "32 bytes"
    refused(lambda: session.resolve(b"x"), "token")
    refused(lambda: session.release(b"x"), "handle")
    refused(lambda: session.reserve(maru.ObjectId(space, digest(1)), 1, parent=b"x"), "parent")
    refused(lambda: session.probe_prefixes(space, b"x" * 33), "prefixes")
    refused(lambda: session.probe_prefixes(space, 3), "prefixes")
    assert session.probe_prefixes(space, b"") == 0 and session.probe_prefix([]) == 0
    assert session.load_into([], []) == [] and session.store_from([], []) == [] and session.acquire([]) == []


def test_words(region, session, space):
    error = refused(lambda: region.session("x", "boss"), "role")
    assert error.wanted == "one of worker, scheduler, coordinator, tool"
    refused(lambda: region.session("x", evict="sometimes"), "evict")
    refused(lambda: region.session(7), "engine")
    refused(lambda: region.session("x", foo=1), "Region.session: option foo")
    object = maru.ObjectId(space, digest(1))
    refused(lambda: session.reserve(object, 1, writer="gpu"), "writer")
    refused(lambda: session.load_into([object], [bytearray(1)], verify="perhaps"), "verify")


@pytest.mark.parametrize(
    ("engine", "options", "code", "says"),
    [
        ("", {}, "engine_name", "engine name has 0 bytes, wanted 1 to 64"),
        ("x" * 65, {}, "engine_name", "engine name has 65 bytes, wanted 1 to 64"),
        ("x\0", {}, "engine_name", "without control characters"),
        ("x", {"evict": "watermarks", "evict_low": -0.1}, "options", "evict.low is -0.1, wanted 0 to 0.5"),
        ("x", {"evict": "watermarks", "evict_low": 0.3, "evict_high": 0.2}, "options", "evict.high is 0.2"),
        ("x", {"evict": "watermarks", "evict_low": float("nan")}, "options", "evict.low is NaN"),
    ],
)
def test_sessions_that_cannot_be(region, engine, options, code, says):
    with pytest.raises(maru.AttachError) as error:
        region.session(engine, **options)
    assert error.value.code == code and says in str(error.value)


def test_a_read_only_region_has_no_sessions(region, path):
    with pytest.raises(maru.AttachError, match="open read-only") as error:
        maru.Region.open(path, mode="read_only").session("x")
    assert error.value.code == "read_only"


def test_a_full_table(folder):
    region = maru.Region.open(folder / "region", format="if_absent", size=1 << 20, sessions=2)
    kept = [region.session("a"), region.session("b")]
    with pytest.raises(maru.AttachError, match=r"participants full \(2\): 2 live") as error:
        region.session("c")
    assert error.value.code == "full"
    kept.pop().close()
    region.session("c")


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"model": None}, "missing", "namespace field `model` is missing; for example model("),
        ({"model": ""}, "field", "namespace field `model` is \"\", wanted a value"),
        ({"block_tokens": 0}, "field", "namespace field `block_tokens` is \"0\", wanted a number of at least 1"),
        ({"colour": "red"}, "field", "\"colour\", wanted one of tenant, model"),
        ({"tenant": "x" * 2000}, "too_long", "wanted at most"),
    ],
)
def test_namespaces_that_cannot_be(session, change, code, says):
    whole = {name: value for name, value in fields(**change).items() if value is not None}
    with pytest.raises(maru.NamespaceError) as error:
        session.namespace(whole)
    assert error.value.code == code and says in str(error.value)


def test_namespace_values_that_cannot_be(session):
    for found in (-1, 2**70, 1.5, None, b"x", ["x"]):
        error = refused(lambda: session.namespace(fields(block_tokens=found)), "namespace field block_tokens")
        assert error.found == repr(found)
    with pytest.raises(maru.ArgumentError):
        session.namespace({3: "x"})
    with pytest.raises(TypeError):
        session.namespace([("tenant", "x")])


def test_a_namespace_of_another_region(session, space, folder):
    other = maru.Region.open(folder / "other", format="if_absent", size=1 << 20, slot_bytes=4096).session("x")
    object = maru.ObjectId(space, digest(1))
    for call in (lambda: other.probe(object), lambda: other.acquire([object]), lambda: other.store_from([object], [b"x"]), lambda: other.invalidate(space)):
        with pytest.raises(maru.CallError, match="was not registered in this region") as error:
            call()
        assert error.value.code == "foreign_namespace"


def test_things_of_other_types(session, space):
    for call in (
        lambda: session.probe("x"),
        lambda: session.probe(space),
        lambda: session.probe_prefix([space]),
        lambda: session.probe_prefix(3),
        lambda: session.invalidate(3),
        lambda: maru.ObjectId(3, digest(1)),
        lambda: maru.Session(),
        lambda: maru.Region(),
        lambda: maru.Namespace(),
    ):
        with pytest.raises(TypeError):
            call()
