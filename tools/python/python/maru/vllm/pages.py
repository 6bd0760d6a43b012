"""An engine's KV tensors as rows of bytes: row `b` of layer `l` is all that layer `l` keeps of block `b`.

A block of the region is the rows of all local layers, one after the other, in the order of the layers' names in the
engine's configuration. Nothing looks inside a row: on a CPU, for one, the shape of vLLM's tensor does not even say how
keys and values lie in it. What is required is checked: that the first dimension counts blocks, and that what a block
holds is one dense run of bytes.

Copies go through a bounded staging buffer in host memory, by torch, so any device will do. On a host device the staging
buffer is filled row by row; on others the rows are first brought together on the device, so that each batch crosses to
the host in one transfer.
"""

import torch


class LayoutError(ValueError):
    """The engine's tensors are not rows of whole blocks."""


def rows_of(name, tensor, block_count):
    """The tensor as `[block_count, row_bytes]`, sharing its memory."""
    item = tensor.element_size()
    if block_count <= 0 or tensor.dim() < 2 or tensor.shape[0] % block_count:
        raise LayoutError(
            f"{name}: found shape {tuple(tensor.shape)}, wanted a multiple of {block_count} blocks in dimension 0"
        )
    parts = tensor.shape[0] // block_count  # a block may be several kernel blocks
    dense = 1
    for stride, size in sorted(
        (tensor.stride(d), tensor.shape[d]) for d in range(1, tensor.dim()) if tensor.shape[d] > 1
    ):
        if stride != dense:
            raise LayoutError(
                f"{name}: found strides {tensor.stride()} for shape {tuple(tensor.shape)}, "
                "wanted a dense run of bytes a block"
            )
        dense *= size
    if parts > 1 and tensor.stride(0) != dense:
        raise LayoutError(
            f"{name}: found kernel blocks {tensor.stride(0)} elements apart, wanted {dense}, one behind the other"
        )
    if tensor.stride(0) < dense:
        raise LayoutError(
            f"{name}: found blocks {tensor.stride(0)} elements apart, wanted at least {dense}: they overlap"
        )
    storage = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    row, step = dense * item * parts, tensor.stride(0) * item * parts
    return torch.as_strided(storage, (block_count, row), (step, 1), tensor.storage_offset() * item)


def _runs(ids):
    """Consecutive ids as (position, first id, count)."""
    start = 0
    for at in range(1, len(ids) + 1):
        if at == len(ids) or ids[at] != ids[at - 1] + 1:
            yield start, ids[start], at - start
            start = at


class Pages:
    def __init__(self, kv_caches, layer_names, block_count):
        missing = [name for name in layer_names if name not in kv_caches]
        if missing:
            raise LayoutError(
                f"KV tensors: found none for {missing[:3]}, wanted one for each of {len(layer_names)} layers"
            )
        self.layer_names = list(layer_names)
        self.block_count = block_count
        self.rows = [rows_of(name, kv_caches[name], block_count) for name in layer_names]
        sizes = {rows.shape[1] for rows in self.rows}
        devices = {rows.device for rows in self.rows}
        if len(sizes) != 1 or len(devices) != 1:
            raise LayoutError(
                f"KV tensors: found blocks of {sorted(sizes)} bytes on {sorted(map(str, devices))}, "
                "wanted one size and device"
            )
        self.row_bytes = sizes.pop()
        self.device = devices.pop()
        self.block_bytes = self.row_bytes * len(self.rows)
        self.direct = self.device.type == "cpu"

    def staging(self, bytes_wished):
        return Staging(self, max(1, bytes_wished // self.block_bytes))

    def gather(self, ids, staging):
        """Blocks `ids` out of the engine into the first places of `staging`."""
        host = staging.host[: len(ids)]
        if self.direct:
            for layer, rows in enumerate(self.rows):
                for at, first, count in _runs(ids):
                    host[at : at + count, layer].copy_(rows[first : first + count])
            return
        wanted = torch.tensor(ids, dtype=torch.int64).to(self.device)
        together = torch.empty(host.shape, dtype=torch.uint8, device=self.device)
        for layer, rows in enumerate(self.rows):
            together[:, layer].copy_(rows.index_select(0, wanted))
        host.copy_(together)  # waits for the device

    def scatter(self, ids, staging):
        """The first places of `staging` into the engine's blocks `ids`."""
        host = staging.host[: len(ids)]
        if self.direct:
            for layer, rows in enumerate(self.rows):
                for at, first, count in _runs(ids):
                    rows[first : first + count].copy_(host[at : at + count, layer])
            return
        wanted = torch.tensor(ids, dtype=torch.int64).to(self.device)
        together = host.to(self.device)  # waits: the staging buffer is free again
        for layer, rows in enumerate(self.rows):
            rows.index_copy_(0, wanted, together[:, layer].contiguous())


class Staging:
    """Host memory for `count` blocks. One user at a time."""

    def __init__(self, pages, count):
        self.count = count
        pin = pages.device.type == "cuda"
        self.host = torch.empty((count, len(pages.rows), pages.row_bytes), dtype=torch.uint8, pin_memory=pin)
        flat = self.host.numpy().reshape(count, -1)
        self.buffers = [memoryview(flat[place]) for place in range(count)]

    @property
    def bytes(self):
        return self.host.numel()
