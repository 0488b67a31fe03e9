"""What a step of the engine costs its host: CPU time by part and batch, without a GPU and without a model.

    python -m harness.micro.engine_host [--batches 1 64 256] [--out results/micro/engine_host]

A closed loop keeps `batch` greedy requests in flight, of 64 to 192 prompt and 32 to 96 output tokens, two
steps queued ahead. Instead of a GPU a stand-in answers each Plan with the rows that a device would give; its
time is not counted. Thread CPU time, so that what else runs on the machine costs little, less what reading
the clock costs. A value is the mean over the steps of a repetition, the median of the repetitions stands in
the row. The parts: schedule, choosing the step; send, packing its inputs and the changes of the tables, and
copying them; process, applying its results; news, packing them for the front end; step, the four together.
"""

import argparse
import csv
import gc
import random
import sys
from collections import deque
from itertools import count
from pathlib import Path
from statistics import median
from time import thread_time_ns

import numpy as np
import torch

from engine.config import EngineConfig
from engine.serving import link
from engine.serving.graphs import PaddedSteps
from engine.serving.news import News
from engine.serving.paged import PagedInputs
from engine.serving.plan import Plan, Results
from engine.serving.request import Finish, Request, SamplingParams
from engine.serving.scheduler import Scheduler
from engine.serving.staging import Staging
from engine.serving.tables import Tables
from harness.micro.stamp import commit, machine

PARTS = ("schedule", "send", "process", "news")
BATCHES = (1, 64, 256)
WARM_STEPS = 300  # three lives of a request: by then ends and arrivals are spread over the steps
VOCABULARY = 32_000
LONGEST_ITEM, KV_HEADS = 64, 12  # as for llama-190m


class Device:
    """Answers Plans as a device would: every slot gets a token a step, up to the greatest length."""

    def __init__(self, slots: int) -> None:
        self._length = np.zeros(slots, np.int64)
        self._limit = np.zeros(slots, np.int64)

    def run(self, plan: Plan) -> Results:
        for admit in plan.admits:
            self._length[admit.slot], self._limit[admit.slot] = len(admit.tokens), admit.max_length
        slots = plan.sampled_slots
        rows = np.zeros((len(slots), 4), np.int64)
        rows[:, 0] = self._length[slots] < self._limit[slots]
        rows[:, 1] = 77
        self._length[slots] += rows[:, 0]
        rows[:, 2] = self._length[slots] >= self._limit[slots]
        return Results(rows)


class HostPath:
    """The host's work of an engine's steps, in the order of Engine.step and of its process."""

    def __init__(self, batch: int) -> None:
        config = EngineConfig(
            "cpu", "float32", max_model_len=4096, num_blocks=60_000, max_num_seqs=256, queue_depth=2
        )
        self.spent = dict.fromkeys(PARTS, 0)
        self._random, self._numbers, self._ids = random.Random(0), np.random.default_rng(0), count()
        self._depth = config.queue_depth
        self._scheduler = Scheduler(config)
        self._inputs = PagedInputs(config, Tables(config), LONGEST_ITEM, KV_HEADS)
        self._shapes = PaddedSteps(lambda _: torch.empty(0), config, LONGEST_ITEM)
        self._device = Device(config.max_num_seqs)
        self._queued: deque[tuple[Results, Staging]] = deque()
        for _ in range(batch):
            self._add()

    def _add(self) -> None:
        length = self._random.randint(64, 192)
        prompt = self._numbers.integers(VOCABULARY, size=length, dtype=np.int32)
        params = SamplingParams(max_tokens=self._random.randint(32, 96), ignore_eos=True)
        request = Request(next(self._ids), prompt, params, (), len(prompt) + params.max_tokens)
        self._scheduler.add(request)

    def step(self) -> None:
        while len(self._queued) < self._depth:
            begin = thread_time_ns()
            plan = self._scheduler.schedule()
            self.spent["schedule"] += thread_time_ns() - begin
            if plan is None:
                break
            begin = thread_time_ns()
            staging = self._inputs.send(plan, self._shapes.covering(plan))
            self.spent["send"] += thread_time_ns() - begin
            self._queued.append((self._device.run(plan), staging))
        results, staging = self._queued.popleft()
        self._inputs.give_back(staging)
        begin = thread_time_ns()
        news = self._scheduler.process(results)
        end = thread_time_ns()
        link.pack_step(news, self._stats())
        self.spent["process"] += end - begin
        self.spent["news"] += thread_time_ns() - end
        self._replace(news)

    def _replace(self, news: News) -> None:
        for _ in range(np.count_nonzero(news.finishes != Finish.NOT_YET)):
            self._add()

    def _stats(self) -> dict[str, int]:
        pool = self._scheduler.pool
        return {
            "running": len(self._scheduler.running),
            "waiting": self._scheduler.waiting,
            "kv_blocks_used": pool.capacity - pool.free,
            "kv_blocks": pool.capacity,
            "preemptions": self._scheduler.preemptions,
        }


def clock_cost_ns(calls: int = 2000) -> float:
    """What a reading of the thread's CPU clock adds to what is timed with it."""
    begin = thread_time_ns()
    for _ in range(calls):
        thread_time_ns()
    return (thread_time_ns() - begin) / calls


def measure(batch: int, steps: int, repetitions: int) -> dict[str, float]:
    """Microseconds of a step by part: the median over the repetitions, of `steps` steps each."""
    path = HostPath(batch)
    for _ in range(WARM_STEPS):
        path.step()
    gc.collect()
    gc.freeze()
    clock_ns = clock_cost_ns()
    means: dict[str, list[float]] = {part: [] for part in (*PARTS, "step")}
    for _ in range(repetitions):
        path.spent = dict.fromkeys(PARTS, 0)
        for _ in range(steps):
            path.step()
        for part, nanoseconds in path.spent.items():
            means[part].append((nanoseconds / steps - clock_ns) / 1000)
        means["step"].append(sum(means[part][-1] for part in PARTS))
    return {part: round(median(values), 1) for part, values in means.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/micro/engine_host"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    gc.disable()  # no step of the engine's process waits for a collection either
    stamp = {
        "steps": options.steps,
        "repetitions": options.repetitions,
        "machine": machine(),
        "git_commit": commit(),
        "command": "python -m harness.micro.engine_host " + " ".join(arguments or sys.argv[1:]),
    }
    rows = []
    for batch in options.batches:
        for part, spent in measure(batch, options.steps, options.repetitions).items():
            rows.append({"batch": batch, "part": part, "us_per_step": spent} | stamp)
            print(f"batch {batch:4}  {part:8} {spent:8.1f} us", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "engine_host.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
