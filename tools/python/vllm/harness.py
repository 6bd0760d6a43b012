"""Engines as child processes: started together, asked by JSON lines, stopped by their own process id."""

import json
import os
import pathlib
import queue
import random
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
VOCABULARY = (3, 500)  # token ids that mean nothing in particular


def prompt(seed, length):
    """Random token ids, the same for the same seed."""
    source = random.Random(repr(seed))
    return [source.randint(*VOCABULARY) for _ in range(length)]


def cores():
    return sorted(os.sched_getaffinity(0))


class EngineError(RuntimeError):
    pass


class Engine:
    """`wait=False` starts it and returns; `ready()` waits for it."""

    def __init__(self, model, *, extra=None, core=0, log=None, environ=None, wait=True, **arguments):
        which = cores()[core % len(cores())]
        environment = {
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONHASHSEED": "0",
            "VLLM_RPC_BASE_PATH": os.environ.get("TMPDIR", "/tmp"),
            **(environ or {}),
        }
        for name, value in list(environment.items()):
            if value is None:
                del environment[name]
        wish = json.dumps({"model": str(model), "extra": extra, **arguments})
        self.log_path = log
        self.log = open(log, "ab") if log else subprocess.DEVNULL
        self.process = subprocess.Popen(
            ["taskset", "-c", str(which), sys.executable, str(HERE / "engine.py"), wish],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=environment,
        )  # fmt: skip
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        if wait:
            self.ready()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    @property
    def pid(self):
        return self.process.pid

    def ready(self, timeout=600):
        answer = self._next(timeout)
        if "error" in answer:
            self.process.wait(30)
            raise EngineError(answer["error"])
        return self

    def _next(self, timeout):
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"engine {self.pid}: no answer in {timeout} s, log {self.log_path}") from None
        if line is None:
            raise EOFError(f"engine {self.pid} ended with {self.process.wait(30)}, log {self.log_path}")
        return json.loads(line)

    def tell(self, do, **request):
        """Sends without waiting; `answer()` takes what comes."""
        self.process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, timeout=300):
        answer = self._next(timeout)
        if "error" in answer:
            raise EngineError(answer["error"] + "\n" + answer.get("trace", ""))
        return answer["ok"]

    def ask(self, do, timeout=300, **request):
        self.tell(do, **request)
        return self.answer(timeout)

    def generate(self, *prompts, timeout=300, **params):
        answers = self.ask("generate", timeout, prompts=list(prompts), **params)
        return answers if len(prompts) > 1 else answers[0]

    def run(self, code, timeout=300):
        return self.ask("run", timeout, code=code)

    def blocks(self, ids, **more):
        return self.ask("blocks", prompt=ids, **more)

    def metrics(self):
        return self.ask("metrics")

    def forget(self, connector=False):
        return self.ask("forget", connector=connector)

    def kill(self):
        # `taskset` became the engine (exec), so this is the engine itself.
        self.process.kill()
        self.process.wait(30)
        if self.log is not subprocess.DEVNULL:
            self.log.close()

    def end(self):
        if self.process.poll() is None:
            try:
                self.tell("end")
                self.process.wait(30)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                pass
        self.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def eventually(ask, wanted=bool, seconds=20, step=0.1):
    """The first answer that is as wanted; the last one if none was."""
    deadline = time.monotonic() + seconds
    while True:
        found = ask()
        if wanted(found) or time.monotonic() >= deadline:
            return found
        time.sleep(step)
