"""vLLM's OpenAI server as in production: API server, engine core and worker, each its own process; one core an
engine."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

from engine import CONNECTOR
from harness import cores


class Server:
    def __init__(self, model, port, core, log, *, extra=None, prefix_caching=True, scratch="/tmp", arguments=()):
        which = cores()[core % len(cores())]
        environment = {
            **os.environ,
            "VLLM_CPU_OMP_THREADS_BIND": str(which),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONHASHSEED": "0",
            "VLLM_RPC_BASE_PATH": str(scratch),
        }
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(model), "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port),
            "--enforce-eager", "--dtype", "bfloat16", "--max-model-len", "9216", "--max-num-seqs", "8",
            "--kv-cache-memory-bytes", str(512 << 20),
            "--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching", *arguments,
        ]  # fmt: skip
        if extra:
            command += ["--kv-transfer-config", json.dumps({**CONNECTOR, "kv_connector_extra_config": extra})]
        self.port, self.log_path = port, log
        self.log = open(log, "wb")
        # A session of its own: the processes that it starts end with it.
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, env=environment, start_new_session=True
        )

    def ready(self, seconds=300):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"server ended with {self.process.returncode}, log {self.log_path}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return self
            except OSError:
                time.sleep(0.5)
        raise TimeoutError(f"server not up in {seconds} s, log {self.log_path}")

    def ttft(self, ids):
        """Seconds from sending a streaming request to its first token."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        body = json.dumps(
            {"model": "m", "prompt": ids, "max_tokens": 1, "temperature": 0, "stream": True, "ignore_eos": True}
        )
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"server: {answer.status} {answer.read()[:500]!r}")
        while not (line := answer.readline()).startswith(b"data:"):
            if not line:
                raise RuntimeError("server: the stream ended before the first token")
        took = time.perf_counter() - began
        answer.read()
        connection.close()
        return took

    def counters(self):
        """vLLM's counters summed over their labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = {}
        for line in text.splitlines():
            if match := re.match(r"(vllm:\w+)(?:\{[^}]*\})? ([0-9.e+-]+)$", line):
                found[match[1]] = found.get(match[1], 0.0) + float(match[2])
        return found

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(20)
        self.log.close()
