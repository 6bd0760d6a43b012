"""Which blocks are the same block, and which requests stay out.

*The prefix digest of a block is vLLM's own block hash.* vLLM hashes each full block of a request as it arrives: SHA-256
over (hash of the block before, token ids, extra keys), where the extra keys hold the cache salt, the adapter's name and
path, and multimodal hashes. Taking it costs nothing on the scheduler's path (a chain of our own over 8,192 tokens would
cost more than the whole lookup may), it is the identity by which vLLM shares blocks within an engine, and a cache salt
is in it as a hash input only: the region never sees the salt. Three things make it stable enough to share: only
`sha256` and `sha256_cbor` are accepted (`support.py`), algorithm, pickle protocol and seed are fields of the namespace
(`fingerprint.py`), and a differing seed stops the start (`seed.py`).

vLLM may hash finer than it pages: `digests` takes the hash at the end of each page, which covers all before it.

*Requests that stay out* are computed as if there were no Maru, neither looked up nor stored; each has a reason that is
counted. An adapter is named in vLLM's hash by name and path, and a path says where weights are, not which: a region
lives longer than an adapter under its path, so requests with an adapter stay out.
"""

DIGEST_BYTES = 32


def bypass(request):
    """Why this request stays out of the shared cache; `None` if it does not."""
    if getattr(request, "prompt_embeds", None) is not None:
        return "prompt_embeds"
    if getattr(request, "prompt_token_ids", None) is None:
        return "no_token_ids"
    if getattr(request, "mm_features", None):
        return "multimodal"
    if getattr(request, "lora_request", None) is not None:
        return "adapter"
    if getattr(request, "resumable", False):
        return "streaming_input"
    return None


class Digests:
    """The prefix digests of one request, in one growing buffer.

    `count(hashes)` says how many blocks have one; `data` holds them, 32 bytes each. vLLM only ever appends to
    a request's hashes, so what was taken stays.
    """

    def __init__(self, hashes_per_block=1):
        self.hashes_per_block = hashes_per_block
        self.data = bytearray()

    def count(self, hashes):
        per = self.hashes_per_block
        have, want = len(self.data) // DIGEST_BYTES, len(hashes) // per
        if want < have:  # the request began anew
            del self.data[want * DIGEST_BYTES :]
        elif want > have:
            if per == 1 and have == 0:
                self.data += b"".join(hashes)
            else:
                for block in range(have, want):
                    self.data += hashes[(block + 1) * per - 1]
        if len(self.data) != want * DIGEST_BYTES:
            raise ValueError(
                f"block hashes: found {len(self.data)} bytes for {want} blocks, "
                f"wanted {DIGEST_BYTES} bytes each (sha256)"
            )
        return want

    def span(self, first, last):
        """The digests of blocks `first` up to, not including, `last`."""
        return bytes(self.data[first * DIGEST_BYTES : last * DIGEST_BYTES])


def split(span):
    """One buffer of digests as a list."""
    return [span[at : at + DIGEST_BYTES] for at in range(0, len(span), DIGEST_BYTES)]
