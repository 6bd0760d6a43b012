"""The vLLM connector: engines keep and find each other's KV blocks in Maru's regions, with no server between them.

    --kv-transfer-config '{"kv_connector": "MaruConnector", "kv_connector_module_path": "maru.vllm",
      "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"maru_storage_backend": "cpu", "maru_cpu_pool_size": "8G",
                                    "maru_engine_id": "a", "maru_cache_namespace": "qwen2.5-7b-a09a354"}}'

vLLM makes two connectors for an engine. The *scheduler* one maps the header of each region and nothing else: it asks
which leading blocks of a prompt are there, and plans. The *worker* one (one a rank) maps the payload: it copies whole
blocks out of the engine's tensors and back. What one engine step is to do travels from the first to the second as a
small plan.

| module | does | needs |
| --- | --- | --- |
| `connector.py` | vLLM's interface: hands each call to one of the two sides | vLLM |
| `settings.py` | the keys of `kv_connector_extra_config` | `maru.config` |
| `scheduler.py` | lookups, the plan of a step, what the workers reported | a session |
| `worker.py` | loads (at once or in the background) and stores | torch, a session |
| `plan.py` | what is loaded and stored when, for any split of a prefill | – |
| `identity.py` | which blocks are the same block; which requests stay out | – |
| `fingerprint.py`, `weights.py` | all that makes two engines' blocks interchangeable, as namespace fields | – |
| `seed.py` | an unset or differing PYTHONHASHSEED stops the start | a session |
| `support.py` | set-ups that are refused at start, each with its reason | – |
| `pools.py`, `breaker.py` | regions in their order; what fails is left alone and comes back by itself | a session |
| `pages.py` | an engine's tensors as rows of bytes, on any torch device | torch |
| `selftest.py` | one real block out and back before the engine serves | torch, vLLM |
| `tally.py`, `stats.py` | counters in vLLM's own statistics and on its /metrics | vLLM |

Importing `maru.vllm` imports neither vLLM nor torch; naming `MaruConnector` does.
"""


def __getattr__(name):
    # vLLM takes the class by name from this module; the pure parts stay importable without vLLM.
    if name == "MaruConnector":
        from .connector import MaruConnector

        return MaruConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["MaruConnector"]
