"""The start-up self test must stop a start: kernels that write elsewhere, pools that give back something else."""

import pytest
import torch
from maru.vllm import selftest
from maru.vllm.pages import LayoutError, Pages

BLOCKS, HEADS, TOKENS, SIZE = 6, 2, 8, 4


class Impl:
    """Writes keys and values of a token as [block, head, token, key | value]."""

    def __init__(self, shift=0, heads=HEADS):
        self.shift, self.heads = shift, heads

    def do_kv_cache_update(self, layer, key, value, cache, slots):
        for at, slot in enumerate((slots + self.shift).tolist()):
            block, token = divmod(slot, TOKENS)
            cache[block, : self.heads, token, :SIZE] = key[at, : self.heads]
            cache[block, : self.heads, token, SIZE:] = value[at, : self.heads]


class Layer:
    num_kv_heads, head_size = HEADS, SIZE

    def __init__(self, impl):
        self.impl = impl


class Memory:
    def __init__(self, change=lambda block: block, refuse=None, miss=None):
        self.change, self.refuse, self.miss, self.kept, self.retired = change, refuse, miss, {}, []

    def store(self, digests, shard, buffers, depths):
        if self.refuse:
            return [self.refuse]
        self.kept[digests[0]] = bytes(buffers[0])
        return ["stored"]

    def load(self, digests, shard, buffers):
        if self.miss:
            return [self.miss]
        buffers[0][:] = self.change(bytearray(self.kept[digests[0]]))
        return [None]

    def retire(self, digest, shard):
        self.retired.append(digest)


def run(impl=None, memory=None):
    caches = {f"l{i}": torch.randn(BLOCKS, HEADS, TOKENS, 2 * SIZE).to(torch.bfloat16) for i in range(3)}
    before = {name: cache.clone() for name, cache in caches.items()}
    layers = {name: Layer(impl) for name in caches} if impl else {}
    pages = Pages(caches, list(caches), BLOCKS)
    memory = memory or Memory()
    try:
        return selftest.run(pages, memory, caches, layers, shard=0, block_tokens=TOKENS), memory
    finally:
        assert all(torch.equal(caches[name], before[name]) for name in caches), (
            "the engine's blocks are not as they were"
        )


def test_a_sound_engine_and_pool():
    (by_kernel, stored), memory = run(Impl())
    assert by_kernel and stored and memory.retired == list(memory.kept)


def test_a_backend_without_the_call_is_tried_with_bytes():
    assert run()[0] == (False, True)


@pytest.mark.parametrize(
    "impl, said", [(Impl(shift=-3), "found bytes of block 5 in block 4"), (Impl(heads=1), "found .* of 128 elements")]
)
def test_another_layout_stops_the_start(impl, said):
    with pytest.raises(LayoutError, match=said):
        run(impl)


def one_byte_off(block):
    block[-1] ^= 1
    return block


def test_other_bytes_stop_the_start():
    with pytest.raises(selftest.SelfTestError, match="l2: found other bytes"):
        run(Impl(), Memory(change=one_byte_off))


def test_a_load_that_fails_stops_the_start():
    with pytest.raises(selftest.SelfTestError, match="found 'damaged'"):
        run(Impl(), Memory(miss="damaged"))


def test_a_store_that_is_refused_stops_the_start_unless_for_room():
    assert run(Impl(), Memory(refuse="no_space"))[0] == (True, False)
    with pytest.raises(selftest.SelfTestError, match="found 'too_large'"):
        run(Impl(), Memory(refuse="too_large"))
