"""Set-ups that are refused at start, each with its reason. A set-up that is not named here is meant to work.

Everything is taken from vLLM's configuration by name, with a default where another version lacks it, so that the checks
can be tried without an engine.
"""


class Unsupported(ValueError):
    """The start is refused: names the setting, what was found, what is wanted, and why."""


def _refuse(setting, found, wanted, why):
    raise Unsupported(f"{setting}: found {found}, wanted {wanted}: {why}")


def _get(thing, path, default=None):
    for name in path.split("."):
        thing = getattr(thing, name, None)
        if thing is None:
            return default
    return thing


ACCEPTED_HASHES = ("sha256", "sha256_cbor")


def check_config(vllm_config, kv_cache_config):
    """Refuses what this connector does not handle; called by both roles before anything is opened.

    Returns how many of vLLM's hashes there are to a block.
    """
    transfer = _get(vllm_config, "kv_transfer_config.kv_load_failure_policy", "fail")
    if transfer != "recompute":
        _refuse(
            "kv_load_failure_policy", repr(transfer), '"recompute"',
            "a block may be gone between lookup and load, which is a miss and not an error of the request",
        )  # fmt: skip
    role = _get(vllm_config, "kv_transfer_config.kv_role")
    if role != "kv_both":
        _refuse("kv_role", repr(role), '"kv_both"', "this is a cache: every engine stores and loads")
    algorithm = str(_get(vllm_config, "cache_config.prefix_caching_hash_algo", "sha256"))
    if algorithm not in ACCEPTED_HASHES:
        _refuse(
            "--prefix-caching-hash-algo", algorithm, " or ".join(ACCEPTED_HASHES),
            "blocks are found by this hash alone, also by other engines and tenants, so it must be collision resistant",
        )  # fmt: skip
    if _get(vllm_config, "speculative_config") is not None:
        _refuse(
            "--speculative-config",
            "set",
            "none",
            "draft layers keep caches that are not whole with the target's blocks",
        )
    for name, flag in (
        ("pipeline_parallel_size", "--pipeline-parallel-size"),
        ("decode_context_parallel_size", "--decode-context-parallel-size"),
        ("prefill_context_parallel_size", "--prefill-context-parallel-size"),
    ):
        size = _get(vllm_config, f"parallel_config.{name}", 1)
        if size != 1:
            _refuse(flag, size, 1, "a hit must be whole on every rank, which is checked for tensor parallelism only")
    if _get(vllm_config, "cache_config.kv_sharing_fast_prefill", False):
        _refuse("--kv-sharing-fast-prefill", "set", "unset", "prefill then leaves blocks of some layers unwritten")
    if _get(vllm_config, "model_config.is_encoder_decoder", False):
        _refuse("model", "an encoder-decoder", "a decoder", "its cross-attention cache is not a function of the tokens")
    cache_dtype = str(_get(vllm_config, "cache_config.cache_dtype", "auto"))
    model_dtype = str(_get(vllm_config, "model_config.dtype", "")).removeprefix("torch.")
    if cache_dtype not in ("auto", model_dtype):
        _refuse(
            "--kv-cache-dtype", cache_dtype, f"auto or {model_dtype}",
            "a quantised cache has scales outside its blocks, which another engine need not share",
        )  # fmt: skip
    return check_groups(kv_cache_config)


def check_groups(kv_cache_config):
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        _refuse(
            "KV cache groups", len(groups), "one (--disable-hybrid-kv-cache-manager where attention kinds mix)",
            "with several groups a failed load cannot be named by block",
        )  # fmt: skip
    spec = groups[0].kv_cache_spec
    kind = type(spec).__name__
    if kind != "FullAttentionSpec":
        _refuse("KV cache kind", kind, "FullAttentionSpec", "its blocks were never tried to be whole by themselves")
    for name in ("sliding_window", "attention_chunk_size"):
        value = getattr(spec, name, None)
        if value is not None:
            _refuse(name, value, "none", "blocks outside the window are freed or never written")
    if getattr(spec, "non_causal", False):
        _refuse("attention", "non-causal", "causal", "a block then depends on what comes behind it")
    if getattr(spec, "page_size_padded", None):
        _refuse("page_size_padded", spec.page_size_padded, "none", "padding would be stored and compared")
    fine, block = kv_cache_config.hash_block_size or spec.block_size, spec.block_size
    if block % fine:
        _refuse("hash_block_size", fine, f"a divisor of {block}", "no hash ends where a block ends")
    return block // fine
