"""Tensors as rows of bytes: every layout that has a block in one run, both ways of copying, and refusals."""

import pytest
import torch
from maru.vllm.pages import LayoutError, Pages, rows_of

BLOCKS, HEADS, TOKENS, WIDTH, LAYERS = 10, 3, 8, 16, 4


def caches(layout):
    """Layers with distinct content, laid out as vLLM may: L layers, B blocks, H heads, N tokens, C content."""
    count = LAYERS * BLOCKS * HEADS * TOKENS * WIDTH
    base = torch.arange(count, dtype=torch.int32)
    sizes = {"L": LAYERS, "B": BLOCKS, "H": HEADS, "N": TOKENS, "C": WIDTH}
    whole = base.view([sizes[d] for d in layout]).permute([layout.index(d) for d in "LBHNC"])
    return {f"layer{i}": whole[i] for i in range(LAYERS)}


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
@pytest.mark.parametrize("direct", [True, False])
def test_round_trip(layout, direct):
    tensors = caches(layout)
    pages = Pages(tensors, list(tensors), BLOCKS)
    pages.direct = direct
    staging = pages.staging(pages.block_bytes * 4)
    ids = [7, 2, 3, 9]
    wanted = {name: tensor[ids].clone() for name, tensor in tensors.items()}
    others = {name: tensor[[0, 1, 4, 5, 6, 8]].clone() for name, tensor in tensors.items()}
    pages.gather(ids, staging)
    for tensor in tensors.values():
        tensor[ids] = -1
    pages.scatter(ids, staging)
    for name, tensor in tensors.items():
        assert torch.equal(tensor[ids], wanted[name])
        assert torch.equal(tensor[[0, 1, 4, 5, 6, 8]], others[name])


@pytest.mark.parametrize("direct", [True, False])
def test_a_block_is_the_layers_one_after_the_other(direct):
    tensors = caches("LBHNC")
    pages = Pages(tensors, list(tensors), BLOCKS)
    pages.direct = direct
    staging = pages.staging(pages.block_bytes * 2)
    pages.gather([5, 6], staging)
    assert bytes(staging.buffers[1]) == b"".join(t[6].numpy().tobytes() for t in tensors.values())


def test_kernel_blocks_are_joined():
    tensor = torch.arange(BLOCKS * 4 * HEADS * WIDTH, dtype=torch.int16).view(BLOCKS * 4, HEADS, WIDTH)
    rows = rows_of("t", tensor, BLOCKS)
    assert rows.shape == (BLOCKS, 4 * HEADS * WIDTH * 2)
    assert bytes(rows[3].numpy()) == tensor[12:16].numpy().tobytes()


def test_layouts_that_are_not_whole_blocks_are_refused():
    good = torch.zeros(BLOCKS, HEADS, TOKENS, WIDTH)
    for tensor, said in (
        (torch.zeros(2, BLOCKS + 1, HEADS, TOKENS), "dimension 0"),
        (torch.zeros(BLOCKS, HEADS, TOKENS, WIDTH + 1)[..., :WIDTH], "dense run"),
        (good[:1].expand(BLOCKS, HEADS, TOKENS, WIDTH), "overlap"),
    ):
        with pytest.raises(LayoutError, match=said):
            rows_of("t", tensor, BLOCKS)


def test_layers_that_are_missing_or_differ_are_refused():
    tensors = caches("LBHNC")
    with pytest.raises(LayoutError, match="found none for"):
        Pages(tensors, [*tensors, "layer9"], BLOCKS)
    tensors["layer1"] = tensors["layer1"].to(torch.int64)
    with pytest.raises(LayoutError, match="wanted one size"):
        Pages(tensors, list(tensors), BLOCKS)


def test_staging_is_bounded():
    tensors = caches("LBHNC")
    pages = Pages(tensors, list(tensors), BLOCKS)
    assert pages.staging(pages.block_bytes * 3 + 1).count == 3
    assert pages.staging(1).count == 1
