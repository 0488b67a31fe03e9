from tests.harness.workload.made_traces import made_traces

__all__ = ["made_traces"]
