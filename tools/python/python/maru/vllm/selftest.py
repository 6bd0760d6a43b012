"""One real block out of the engine's tensors into the region and back, before the engine serves.

Blocks are moved as opaque bytes, so nothing here would notice if vLLM laid its cache out in another way. This does, at
start: it lets vLLM's own kernel write keys and values for every token of one block in every layer, and wants that to
touch exactly the bytes that we take for that block, all of them and none of its neighbour's. Then the block goes
through the region and must come back, as seen through the engine's own tensors. The block is a free one (no request has
begun), and is put back as it was.
"""

import logging
import os

import torch

from .breaker import SPACE
from .pages import LayoutError

log = logging.getLogger("vllm.maru")


class SelfTestError(RuntimeError):
    """The start is refused: what was stored is not what came back, or not all of it."""


def write_by_kernel(kv_caches, layers, names, block, block_tokens):
    """Every token of `block` in every layer, by vLLM's own kernel; False if this backend has no such call."""
    for name in names:
        layer = layers.get(name)
        update = getattr(getattr(layer, "impl", None), "do_kv_cache_update", None)
        if update is None:
            return False
        cache = kv_caches[name]
        tokens = torch.arange(block_tokens, device=cache.device, dtype=torch.int64) + block * block_tokens
        shape = (block_tokens, layer.num_kv_heads, layer.head_size)
        key, value = (1 + torch.rand(shape, dtype=torch.float32, device=cache.device) for _ in "kv")
        try:
            update(layer, key.to(cache.dtype), value.to(cache.dtype), cache, tokens)
        except (TypeError, AttributeError) as error:
            log.warning("maru: self test without vLLM's kernel: %s", error)
            return False
    return True


def check_layout(pages, kv_caches, layers, block, block_tokens):
    """The kernel touches all bytes of `block` and none of the block before. False if there is no kernel to ask."""
    for rows in pages.rows:
        rows[block - 1 : block + 1].zero_()
    if not write_by_kernel(kv_caches, layers, pages.layer_names, block, block_tokens):
        return False
    for name, rows in zip(pages.layer_names, pages.rows):
        if rows[block - 1].any():
            raise LayoutError(
                f"{name}: found bytes of block {block} in block {block - 1}: blocks are not rows of dimension 0"
            )
        elements = rows[block].view(kv_caches[name].dtype)
        written = int((elements != 0).sum())
        if written != elements.numel():
            raise LayoutError(
                f"{name}: found {written} of {elements.numel()} elements of block {block} written, "
                "wanted all: its bytes lie elsewhere too"
            )
    return True


def through_region(pages, pools, shard, block, staging):
    """Stores the block, wipes it, loads it back. False if no pool has room to try."""
    digest = os.urandom(32)
    pages.gather([block], staging)
    (code,) = pools.store([digest], shard, staging.buffers[:1], [0])
    if code in SPACE:
        return False
    if code != "stored":
        raise SelfTestError(f"self test: found {code!r} for a store of one block, wanted 'stored'")
    for rows in pages.rows:
        rows[block].zero_()
    staging.host[0].zero_()
    (miss,) = pools.load([digest], shard, staging.buffers[:1])
    if miss is not None:
        raise SelfTestError(f"self test: found {miss!r} for the load of the block just stored, wanted its bytes")
    pages.scatter([block], staging)
    pools.retire(digest, shard)
    return True


def run(pages, pools, kv_caches, layers, *, shard, block_tokens):
    block = pages.block_count - 1
    if block < 2:
        raise SelfTestError(f"self test: found {pages.block_count} blocks of KV cache, wanted at least 3")
    staging = pages.staging(pages.block_bytes)
    before = [rows[block - 1 : block + 1].clone() for rows in pages.rows]
    try:
        by_kernel = check_layout(pages, kv_caches, layers, block, block_tokens)
        if not by_kernel:
            for rows in pages.rows:
                rows[block].copy_(torch.randint(0, 256, rows[block].shape, dtype=torch.uint8).to(rows.device))
        parts = [tensor.shape[0] // pages.block_count for tensor in (kv_caches[name] for name in pages.layer_names)]
        seen = [kv_caches[name][block * n : (block + 1) * n].clone() for name, n in zip(pages.layer_names, parts)]
        stored = through_region(pages, pools, shard, block, staging)
        for name, n, wanted in zip(pages.layer_names, parts, seen):
            found = kv_caches[name][block * n : (block + 1) * n]
            if not torch.equal(found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8)):
                raise SelfTestError(f"self test: {name}: found other bytes after a store and a load, wanted the same")
    finally:
        for rows, wanted in zip(pages.rows, before):
            rows[block - 1 : block + 1].copy_(wanted)
    log.info(
        "maru: self test: %d layers of %d bytes, %s, %s",
        len(pages.rows), pages.row_bytes,
        "written by the engine's kernel" if by_kernel else "written as bytes",
        "through the region and back" if stored else "not through the region: it is full",
    )  # fmt: skip
    return by_kernel, stored
