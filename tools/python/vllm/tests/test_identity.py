"""Digests, requests that stay out, the seed, the configuration's keys, the weights."""

import hashlib
import json
import struct
from types import SimpleNamespace as Thing

import pytest
from maru import ConfigError
from maru.vllm import seed, settings, weights
from maru.vllm.identity import Digests, bypass, split


def hashes(n, salt=b""):
    return [hashlib.sha256(salt + bytes([i])).digest() for i in range(n)]


def test_digests_grow_with_the_request():
    digests = Digests()
    assert digests.count(hashes(3)) == 3
    assert digests.count(hashes(5)) == 5
    assert split(digests.span(2, 5)) == hashes(5)[2:]


def test_finer_hashes_give_the_one_at_the_end_of_each_block():
    digests = Digests(hashes_per_block=4)
    assert digests.count(hashes(11)) == 2
    assert split(digests.span(0, 2)) == [hashes(11)[3], hashes(11)[7]]


def test_a_request_that_begins_anew():
    digests = Digests()
    digests.count(hashes(5))
    assert digests.count(hashes(2)) == 2 and split(digests.span(0, 2)) == hashes(2)


def test_hashes_that_are_no_sha256_are_refused():
    with pytest.raises(ValueError, match="16 bytes for 1 blocks, wanted 32"):
        Digests().count([b"x" * 16])


def request(**more):
    return Thing(
        **{
            "prompt_embeds": None,
            "prompt_token_ids": [1],
            "mm_features": [],
            "lora_request": None,
            "resumable": False,
            **more,
        }
    )


@pytest.mark.parametrize(
    "more, reason",
    [
        ({}, None),
        ({"prompt_embeds": object()}, "prompt_embeds"),
        ({"prompt_token_ids": None}, "no_token_ids"),
        ({"mm_features": [object()]}, "multimodal"),
        ({"lora_request": object()}, "adapter"),
        ({"resumable": True}, "streaming_input"),
    ],
)
def test_requests_that_stay_out(more, reason):
    assert bypass(request(**more)) == reason


@pytest.mark.parametrize("value", [None, "", "random", "x"])
def test_a_seed_that_is_not_shared_stops_the_start(value):
    environ = {} if value is None else {"PYTHONHASHSEED": value}
    with pytest.raises(seed.SeedError, match="PYTHONHASHSEED: found .*wanted a number"):
        seed.from_environment(environ)


def test_the_card_tells_seeds_and_algorithms_apart():
    mine = {"hash_algorithm": "vllm-sha256-pickle5", "hash_seed": "0", "revision": "r"}
    card = seed.card_bytes(mine)
    seed.check_card(card, mine)
    with pytest.raises(seed.SeedError, match="PYTHONHASHSEED: found '1' here, wanted '0'"):
        seed.check_card(card, {**mine, "hash_seed": "1"})
    with pytest.raises(seed.SeedError, match="--prefix-caching-hash-algo"):
        seed.check_card(card, {**mine, "hash_algorithm": "vllm-sha256_cbor"})
    assert seed.card_fields(mine) == seed.card_fields({**mine, "hash_seed": "1"})


CPU = {"maru_storage_backend": "cpu", "maru_cpu_pool_size": "8G", "maru_engine_id": "a", "maru_cache_namespace": "n"}


def test_settings_of_the_rfc():
    read = settings.read({**CPU, "maru_storage_backend": "mixed", "maru_cxl_pool_size": "32G", "maru_cxl_path": "/dev/dax0.0",
                          "maru_write_order": ["cpu", "cxl"], "maru_read_order": ["cxl", "cpu"], "maru_load_mode": "async"})  # fmt: skip
    assert [pool.name for pool in read.pools] == ["cpu", "cxl"]
    assert read.write_order == ("cpu", "cxl") and read.read_order == ("cxl", "cpu") and read.asynchronous
    assert [pool.session["evict"] for pool in read.pools] == ["never", "when_full"]
    assert read.pools[0].region["size"] == 8 << 30 and "mode" not in read.pools[0].region


@pytest.mark.parametrize(
    "more, message",
    [
        ({"maru_pool_size": "1G"}, "maru_pool_size.*maru_cpu_pool_size"),
        ({"maru_load_mode": "later"}, "maru_load_mode is 'later'"),
        ({"maru_store_generated": "yes"}, "maru_store_generated"),
        ({"maru_verify": "sometimes"}, "maru_verify"),
        ({"maru_cpu_scope": "process"}, "maru_cpu_scope.*scheduler is another process"),
        ({"maru_sise": 1}, "maru_sise"),
        ({"maru_cache_namespace": None}, "maru_cache_namespace is missing"),
    ],
)
def test_settings_that_are_refused(more, message):
    with pytest.raises(ConfigError, match=message):
        settings.read({**CPU, **more})


def safetensors(folder, tensors):
    folder.mkdir()
    header, data = {}, b""
    for name, content in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return str(folder)


def test_weights_are_told_by_content_and_not_by_path(tmp_path):
    tensors = {"a": b"\1" * 5000, "b": b"\2" * 70, "c": b"\3"}
    one = weights.revision_of(safetensors(tmp_path / "one", tensors), None)
    assert one == weights.revision_of(safetensors(tmp_path / "two", tensors), None)
    assert one.startswith("weights-")
    for name in tensors:  # a change in any tensor is seen, also of the same size
        other = {**tensors, name: bytes(len(tensors[name]))}
        assert weights.revision_of(safetensors(tmp_path / f"not-{name}", other), None) != one


def test_weights_that_cannot_be_told_are_refused():
    with pytest.raises(ValueError, match="neither its weights on this machine nor a revision"):
        weights.revision_of("nobody/nothing", None)
    assert weights.revision_of("nobody/nothing", "abc123") == "nobody/nothing@abc123"
    assert weights.revision_of("any", None, "dummy", 3) == "dummy-seed-3"


def test_a_damaged_file_of_weights_is_an_error(tmp_path):
    folder = safetensors(tmp_path / "one", {"a": b"1"})
    (tmp_path / "one" / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 50))
    with pytest.raises(ValueError, match="header of"):
        weights.revision_of(folder, None)
