"""Which weights: a digest of what lies on disk, so that neither a path nor a name decides what is interchangeable.

Two sets of weights under one name must not meet, and one set under two paths should. A full hash of tens of gigabytes
would hold up every start, so from each safetensors file this takes the header (names, types, shapes) and, from *every
tensor*, its first, middle and last bytes: weights that differ in a tensor differ there, short of one made to deceive.
Other files of weights give size and evenly spaced pieces. A model that is not on disk as a folder (yet) is taken by its
revision, which then must be said.
"""

import functools
import hashlib
import json
import os
import struct

PIECE = 64
OTHER_PIECES = 256
WEIGHT_SUFFIXES = (".bin", ".pt", ".pth", ".gguf")


def _safetensors(digest, path):
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(8)
        if len(head) < 8:
            raise ValueError(f"{path}: found {size} bytes, wanted a safetensors header")
        (length,) = struct.unpack("<Q", head)
        if length > size - 8:
            raise ValueError(f"{path}: header of {length} bytes in a file of {size}")
        header = file.read(length)
        digest.update(hashlib.sha256(header).digest())
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        for name in sorted(entries):
            begin, end = (8 + length + offset for offset in entries[name]["data_offsets"])
            for at in (begin, (begin + end - PIECE) // 2, end - PIECE):
                file.seek(max(begin, at))
                digest.update(file.read(min(PIECE, end - begin)))


def _other(digest, path):
    size = os.path.getsize(path)
    digest.update(struct.pack("<Q", size))
    with open(path, "rb") as file:
        for piece in range(OTHER_PIECES):
            file.seek(max(0, (size - PIECE) * piece // (OTHER_PIECES - 1)))
            digest.update(file.read(PIECE))


@functools.lru_cache(maxsize=8)
def of_folder(folder):
    """Digest of the weights in a folder, as hex; `None` if there are none."""
    digest, files = hashlib.sha256(b"maru weights 1"), 0
    names = sorted(os.listdir(folder))
    whole = [name for name in names if name.endswith(".safetensors")]
    for name in whole or [name for name in names if name.endswith(WEIGHT_SUFFIXES)]:
        path = os.path.join(folder, name)
        (_safetensors if whole else _other)(digest, path)
        files += 1
    return digest.hexdigest()[:32] if files else None


def _cached_snapshot(model, revision):
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(model, "config.json", revision=revision)
    return os.path.dirname(found) if isinstance(found, str) else None


def revision_of(model, revision, load_format="auto", seed=0):
    """The `revision` field of the namespace."""
    if load_format == "dummy":
        return f"dummy-seed-{seed}"
    folder = model if os.path.isdir(model) else _cached_snapshot(model, revision)
    if folder is not None:
        digest = of_folder(os.path.realpath(folder))
        if digest is not None:
            return f"weights-{digest}"
    if revision:
        return f"{model}@{revision}"
    raise ValueError(
        f"model {model!r}: found neither its weights on this machine nor a revision, wanted one of them: two sets of "
        'weights under one name must not share blocks; say --revision COMMIT (not "main")'
    )
