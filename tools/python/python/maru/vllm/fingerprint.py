"""All that makes two engines' blocks interchangeable, as the fields of a Maru namespace.

Both sides of an engine build these fields on their own and the scheduler compares them with each worker's at start
(`MaruConnector.set_xfer_handshake_metadata`), so that they cannot look in two places.

| field | holds |
| --- | --- |
| tenant | `maru_tenant` |
| model | architecture |
| revision | `maru_cache_namespace`, which the operator vouches for; digest of the weights on disk (`weights.py`) |
| dtype, quantization | type of the cache's elements; how the weights are quantised |
| geometry | layers, KV heads, head size of the whole model, and a digest of its text configuration (RoPE, windows, …) |
| storage_format | version of a block here, vLLM's minor version, layout of the cache, device kind, instruction set |
| block_tokens | tokens of a block |
| parallel | sizes of tensor and pipeline parallelism; the *rank* is the `shard` of each object id |
| hash_algorithm, hash_seed | vLLM's, with the pickle protocol where it hashes pickles |
"""

import hashlib
import json
import pickle
import platform
from dataclasses import dataclass

from . import weights

FORMAT = "maru-vllm-1"
# Says where a configuration came from, not what it computes.
VOLATILE = ("_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures")


@dataclass(frozen=True)
class Geometry:
    """The numbers of the whole model and of one rank's block."""

    layers: int
    kv_heads: int
    head_size: int
    block_tokens: int
    rank_layers: int
    page_bytes: int

    @property
    def block_bytes(self):
        return self.rank_layers * self.page_bytes


def config_digest(config):
    """Digest of a model's configuration without what is only about names."""
    plain = {key: value for key, value in config.items() if key not in VOLATILE}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:16]


def instruction_set(device_type, dtype, block_tokens, head_size, cache_dtype):
    """What shapes the inside of a block on this kind of device."""
    if device_type != "cpu":
        return "any"
    try:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        return f"{platform.machine()}-{_get_attn_isa(dtype, block_tokens, head_size, cache_dtype)}"
    except (ImportError, TypeError, AttributeError):
        # Another vLLM: only equal processors share.
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
        return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:16]}"


def hash_name(algorithm):
    return f"vllm-{algorithm}" + (f"-pickle{pickle.HIGHEST_PROTOCOL}" if algorithm == "sha256" else "")


def fields(
    *, tenant, architecture, revision, dtype, quantization, geometry, config, storage, parallel, algorithm, seed
):
    return {
        "tenant": tenant,
        "model": architecture,
        "revision": revision,
        "adapter": "none",
        "dtype": dtype,
        "quantization": quantization,
        "geometry": f"layers={geometry.layers},kv_heads={geometry.kv_heads},head_size={geometry.head_size},"
        f"config={config}",
        "storage_format": "/".join((FORMAT, *storage)),
        "block_tokens": str(geometry.block_tokens),
        "parallel": parallel,
        "hash_algorithm": hash_name(algorithm),
        "hash_seed": seed,
    }


def geometry_of(vllm_config, kv_cache_config):
    group = kv_cache_config.kv_cache_groups[0]
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    return Geometry(
        layers=model.get_total_num_hidden_layers()
        if hasattr(model, "get_total_num_hidden_layers")
        else model.hf_text_config.num_hidden_layers,
        kv_heads=model.get_total_num_kv_heads(),
        head_size=model.get_head_size(),
        block_tokens=group.kv_cache_spec.block_size,
        rank_layers=len(group.layer_names) if parallel.pipeline_parallel_size == 1 else 0,
        page_bytes=group.kv_cache_spec.page_size_bytes,
    )


def of_engine(vllm_config, kv_cache_config, *, tenant, vouched, seed):
    """(fields, geometry) of an engine, from its configuration alone."""
    import vllm
    from vllm.platforms import current_platform

    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    geometry = geometry_of(vllm_config, kv_cache_config)
    device = current_platform.device_type
    storage = (
        "vllm-" + ".".join(vllm.__version__.split(".")[:2]),
        kv_cache_config.kv_cache_layout or "default",
        device,
        instruction_set(device, model.dtype, spec.block_size, geometry.head_size, cache.cache_dtype),
    )
    return (
        fields(
            tenant=tenant,
            architecture=(getattr(model.hf_config, "architectures", None) or ["unnamed"])[0],
            revision=vouched
            + "/"
            + weights.revision_of(
                model.model, model.revision, str(vllm_config.load_config.load_format), getattr(model, "seed", 0)
            ),
            dtype=str(spec.dtype).removeprefix("torch."),
            quantization=str(model.quantization or "none"),
            geometry=geometry,
            config=config_digest(model.hf_text_config.to_dict()),
            storage=storage,
            parallel=f"tp={parallel.tensor_parallel_size},pp={parallel.pipeline_parallel_size}",
            algorithm=str(cache.prefix_caching_hash_algo),
            seed=seed,
        ),
        geometry,
    )
