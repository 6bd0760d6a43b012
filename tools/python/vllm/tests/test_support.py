"""Every set-up that is refused is refused by its name, and a plain one is not."""

from types import SimpleNamespace as Thing

import pytest
from maru.vllm.support import Unsupported, check_config


class FullAttentionSpec(Thing):
    pass


class MLAAttentionSpec(Thing):
    pass


def configs(*, groups=1, kind=FullAttentionSpec, hash_block_size=None, spec=None, **changes):
    config = Thing(
        kv_transfer_config=Thing(kv_load_failure_policy="recompute", kv_role="kv_both"),
        cache_config=Thing(prefix_caching_hash_algo="sha256", cache_dtype="auto", kv_sharing_fast_prefill=False),
        parallel_config=Thing(
            pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        model_config=Thing(dtype="torch.bfloat16", is_encoder_decoder=False),
        speculative_config=None,
    )
    for path, value in changes.items():
        section, _, name = path.partition("__")
        if name:
            setattr(getattr(config, section), name, value)
        else:
            setattr(config, section, value)
    group = Thing(kv_cache_spec=kind(block_size=128, **(spec or {})), layer_names=["l"])
    return config, Thing(kv_cache_groups=[group] * groups, hash_block_size=hash_block_size)


def test_a_plain_set_up_is_accepted():
    assert check_config(*configs()) == 1
    assert check_config(*configs(hash_block_size=32)) == 4
    assert check_config(*configs(cache_config__cache_dtype="bfloat16")) == 1


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"kv_transfer_config__kv_load_failure_policy": "fail"}, "kv_load_failure_policy"),
        ({"kv_transfer_config__kv_role": "kv_producer"}, "kv_role"),
        ({"cache_config__prefix_caching_hash_algo": "xxhash"}, "--prefix-caching-hash-algo: found xxhash"),
        ({"cache_config__cache_dtype": "fp8"}, "--kv-cache-dtype: found fp8"),
        ({"cache_config__kv_sharing_fast_prefill": True}, "--kv-sharing-fast-prefill"),
        ({"speculative_config": Thing()}, "--speculative-config"),
        ({"parallel_config__pipeline_parallel_size": 2}, "--pipeline-parallel-size: found 2"),
        ({"parallel_config__decode_context_parallel_size": 2}, "--decode-context-parallel-size"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "--prefill-context-parallel-size"),
        ({"model_config__is_encoder_decoder": True}, "encoder-decoder"),
        ({"groups": 2}, "KV cache groups: found 2"),
        ({"kind": MLAAttentionSpec}, "KV cache kind: found MLAAttentionSpec"),
        ({"spec": {"sliding_window": 4096}}, "sliding_window: found 4096"),
        ({"spec": {"attention_chunk_size": 8192}}, "attention_chunk_size"),
        ({"spec": {"non_causal": True}}, "attention: found non-causal"),
        ({"spec": {"page_size_padded": 4096}}, "page_size_padded"),
        ({"hash_block_size": 48}, "hash_block_size: found 48"),
    ],
)
def test_what_is_refused_is_named(changes, named):
    with pytest.raises(Unsupported, match=f"{named}.*wanted"):
        check_config(*configs(**changes))
