"""One real vLLM engine in this process, driven by JSON lines: a request a line on stdin, an answer a line on stdout.

    {"do": "generate", "prompts": [[1, 2, ...]], "max_tokens": 16, "salt": null}
    {"do": "blocks", "prompt": [1, 2, ...]}     SHA-256 of each full block of a prompt as it lies in the engine's own tensors
    {"do": "forget"}                            the engine's own prefix cache is emptied; {"connector": true}: and the namespace
    {"do": "metrics"}                           vLLM's counters by name
    {"do": "run", "code": "..."}                Python in here (`llm`, `worker`, `scheduler`, `answer`), to break things on purpose
    {"do": "end"}

Started by `harness.Engine` with the environment that an engine in one process needs; the arguments are one JSON object:
`{"model": DIR, "extra": {kv_connector_extra_config or null}, ... arguments of vllm.LLM}`.
"""

import hashlib
import json
import os
import sys
import traceback

CONNECTOR = {
    "kv_connector": "MaruConnector",
    "kv_connector_module_path": "maru.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


def start(wish):
    from vllm import LLM

    extra = wish.pop("extra", None)
    transfer = wish.pop("transfer", None) or ({**CONNECTOR, "kv_connector_extra_config": extra} if extra else None)
    arguments = {
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": "float32",
        "max_model_len": 9216,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 256 << 20,
        "disable_log_stats": False,
        **wish,
    }
    return LLM(**arguments, **({"kv_transfer_config": transfer} if transfer else {}))


class Driver:
    def __init__(self, llm):
        self.llm = llm
        core = llm.llm_engine.engine_core.engine_core
        self.core, self.scheduler = core, core.scheduler
        self.connector = self.scheduler.connector

    def worker_connector(self):
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        return get_kv_transfer_group() if has_kv_transfer_group() else None

    def generate(self, prompts, max_tokens=16, salt=None, **params):
        from vllm import SamplingParams

        wish = SamplingParams(
            temperature=0, max_tokens=max_tokens, detokenize=False, ignore_eos=True, logprobs=0, **params
        )
        asked = [{"prompt_token_ids": p, **({"cache_salt": salt} if salt else {})} for p in prompts]
        outputs = self.llm.generate(asked, wish, use_tqdm=False)
        return [
            {
                "tokens": list(o.outputs[0].token_ids),
                "logprobs": [next(iter(step.values())).logprob for step in o.outputs[0].logprobs],
                "cached": o.num_cached_tokens,
                "reason": o.outputs[0].finish_reason,
                "ttft": o.metrics.first_token_latency if o.metrics else None,
            }
            for o in outputs
        ]

    def blocks(self, prompt, salt=None):
        """Digest of each cached full block of the prompt, through vLLM's tensors and block pool."""
        import torch
        from vllm.v1.request import Request

        from vllm import SamplingParams

        request = Request(
            "blocks",
            prompt,
            SamplingParams(max_tokens=1),
            None,
            cache_salt=salt,
            block_hasher=self.core.request_block_hasher,
        )
        pool = self.scheduler.kv_cache_manager.block_pool
        caches = self.core.model_executor.driver_worker.worker.model_runner.kv_caches
        digests = []
        for block_hash in request.block_hashes:
            found = pool.get_cached_block(block_hash, [0])
            if found is None:
                break
            digest = hashlib.sha256()
            for cache in caches:
                digest.update(cache[found[0].block_id].contiguous().view(torch.uint8).numpy().tobytes())
            digests.append(digest.hexdigest())
        return digests

    def answer(self, request):
        do = request.pop("do")
        if do == "generate":
            return self.generate(**request)
        if do == "blocks":
            return self.blocks(**request)
        if do == "forget":
            return self.llm.reset_prefix_cache(reset_connector=request.get("connector", False))
        if do == "metrics":
            return self.metrics()
        if do == "run":
            names = {"llm": self.llm, "driver": self, "answer": None}
            worker = self.worker_connector()
            names.update(worker=worker and worker.worker, scheduler=self.connector and self.connector.scheduler)
            exec(request["code"], names)  # noqa: S102 tests break things in here on purpose
            return names["answer"]
        raise ValueError(f"do: found {do!r}")

    def metrics(self):
        found = {}
        for metric in self.llm.get_metrics():
            labels = [
                f"{k}={v}"
                for k, v in sorted(metric.labels.items())
                if k not in ("model_name", "engine", "engine_index")
            ]
            key = metric.name + ("{" + ",".join(labels) + "}" if labels else "")
            if hasattr(metric, "value"):
                found[key] = metric.value
        return found


def main():
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM logs to stdout

    def tell(answer):
        out.write(json.dumps(answer) + "\n")

    try:
        driver = Driver(start(json.loads(sys.argv[1])))
    except BaseException as error:
        traceback.print_exc()
        tell({"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})
        return 1
    tell({"ready": os.getpid()})
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "end":
            break
        try:
            tell({"ok": driver.answer(request)})
        except Exception as error:
            traceback.print_exc()
            tell({"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})
    driver.llm.llm_engine.engine_core.shutdown()
    tell({"ok": "ended"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
