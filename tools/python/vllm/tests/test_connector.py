"""The glue to vLLM's interface, without an engine: what crosses processes, and what must agree."""

import pickle

import pytest
from maru.vllm.plan import Span, StepPlan, StepReport

connector = pytest.importorskip("maru.vllm.connector", reason="SKIPPED: no vLLM in this environment")


def test_a_scheduler_and_a_worker_that_look_in_two_places_do_not_start():
    side = connector.MaruConnector.__new__(connector.MaruConnector)
    side.fields = {"revision": "r", "dtype": "bfloat16"}
    same = connector.MaruHandshake({"revision": "r", "dtype": "bfloat16"}, 1)
    side.set_xfer_handshake_metadata_pp_aware({(0, 0): same, (0, 1): same})
    with pytest.raises(ValueError, match="dtype: found 'float16' in worker 1, wanted 'bfloat16'"):
        other = connector.MaruHandshake({"revision": "r", "dtype": "float16"}, 1)
        side.set_xfer_handshake_metadata_pp_aware({(0, 0): same, (0, 1): other})


def test_a_lookup_that_fails_is_a_miss():
    side = connector.MaruConnector.__new__(connector.MaruConnector)

    class Broken:
        def matched_tokens(self, request, tokens):
            raise RuntimeError("on purpose")

    class Request:
        request_id = "r"

    side.scheduler = Broken()
    assert side.get_num_new_matched_tokens(Request, 0) == (0, False)


def test_what_crosses_processes_is_plain():
    plan = connector.MaruMetadata(StepPlan(loads=[Span("r", 1, b"d" * 32, [4])], stores=[], failures_seen=2, renew=1))
    assert pickle.loads(pickle.dumps(plan)) == plan
    joined = connector.MaruWorkerMeta(StepReport(1, {"a": 3})).aggregate(
        connector.MaruWorkerMeta(StepReport(1, {"a": 2}))
    )
    assert pickle.loads(pickle.dumps(joined)).report.dropped == {"a": 2}


def test_statistics_add_up_and_keep_the_last_gauge():
    from maru.vllm.stats import MaruStats

    one = MaruStats(data={"counters": {"lookups": 2, "bypassed|adapter": 1}, "gauges": {"pool_state|cpu/worker0": 1}})
    both = one.aggregate(MaruStats(data={"counters": {"lookups": 3}, "gauges": {"pool_state|cpu/worker0": 0}}))
    assert both.data == {"counters": {"lookups": 5, "bypassed|adapter": 1}, "gauges": {"pool_state|cpu/worker0": 0}}
    assert not both.is_empty() and MaruStats().is_empty()
    assert both.reduce() == {"maru_lookups": 5, "maru_bypassed|adapter": 1, "maru_pool_state|cpu/worker0": 0}


def test_every_count_that_is_made_has_a_metric():
    """A name that no table has would be lost on /metrics without a word."""
    import pathlib
    import re

    from maru.vllm import stats

    folder = pathlib.Path(stats.__file__).parent
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    counted = set(re.findall(r"stats\.add\(\s*\"(\w+)\"", text))
    assert counted and counted == set(stats.COUNTERS)
    gauges = set(re.findall(r"tally\.set\(\s*\"(\w+)\"", text))
    assert gauges - {"pool_"} <= set(stats.GAUGES)
