"""Hours in minutes: the engine under random requests of which many are given up, watched for what it keeps.

    python -m harness.micro.soak [--model smollm2-135m] [--seconds 600] [--concurrency 256]
                                 [--out results/micro/soak] [-- FLAG OF THE SERVER…]

Each of so many clients sends one request after the other: random prompts and lengths, greedy and sampled,
with and without log probabilities, streamed and plain. A third closes the connection somewhere in the middle,
some read slowly, some ask for what cannot be. Every five seconds a row for each process of the server goes to
soak.csv: its memory and the GPU's, the engine's gauges, and how requests have ended so far.

Exit status 1 when, all clients gone, a sequence or block is still held, a process has died, an answer is not
what was asked for, or the memory of a process has grown: by more than 16 MiB and 2 % from the second to the
last quarter of the rows (medians). The first quarter warms up.
"""

import argparse
import asyncio
import csv
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
import pynvml
import torch
import uvloop

from harness.micro.stamp import commit, machine

ROW_SECONDS = 5.0
DRAIN_SECONDS = 30.0
GROWTH_MIB, GROWTH_SHARE = 16.0, 0.02
MIB = 1 << 20
GAUGES = ("ladder_sequences_running", "ladder_sequences_waiting", "ladder_kv_blocks_used")


class Wrong(Exception):
    """An answer that is not what was asked for."""


@dataclass
class Soak:
    """One server under load."""

    host: str
    port: int
    vocabulary: int
    longest: int
    ends: Counter[str] = field(default_factory=Counter)

    async def client(self, number: int, until: float) -> None:
        draw = random.Random(number)
        while time.monotonic() < until:
            self.ends[await self._one(draw)] += 1

    async def _one(self, draw: random.Random) -> str:
        body, tokens = self._request(draw)
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(request_bytes(body))
            if draw.random() < 0.3:
                await self._give_up(draw, reader)
                return "given up"
            if draw.random() < 0.05:
                await asyncio.sleep(draw.uniform(0, 2))
            return checked(await reader.read(), body, tokens)
        finally:
            writer.close()

    async def _give_up(self, draw: random.Random, reader: asyncio.StreamReader) -> None:
        try:
            async with asyncio.timeout(draw.expovariate(2)):
                await reader.readexactly(draw.randint(1, 20_000))
        except (TimeoutError, asyncio.IncompleteReadError):
            pass

    def _request(self, draw: random.Random) -> tuple[dict[str, object], int]:
        """A body, and how many tokens its answer must have (0: it must be refused)."""
        tokens = draw.randint(1, 160)
        prompt = [draw.randrange(self.vocabulary) for _ in range(draw.randint(1, 256))]
        body: dict[str, object] = {
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        if draw.random() < 0.8:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if draw.random() < 0.4:
            body |= {"temperature": draw.uniform(0.1, 1.5), "seed": draw.randrange(1 << 30)}
            body |= draw.choice(
                ({}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"frequency_penalty": 0.5})
            )
        if draw.random() < 0.05:
            body["logprobs"] = 2
        if draw.random() < 0.03:
            body["max_tokens"], tokens = self.longest, 0
        return body, tokens

    async def fetch(self, target: str) -> str:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(f"GET {target} HTTP/1.1\r\nhost: soak\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer.decode()

    async def gauges(self) -> dict[str, int]:
        text = await self.fetch("/metrics")
        return {name: int(float(re.search(rf"^{name} (\S+)$", text, re.M)[1])) for name in GAUGES}


def request_bytes(body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: soak\r\nconnection: close\r\ncontent-length: "
    return f"{head}{len(data)}\r\n\r\n".encode() + data


def checked(answer: bytes, body: dict[str, object], tokens: int) -> str:
    """How a request ended. Raises Wrong unless it has all its tokens, or was refused where it must be."""
    status = int(answer.split(b" ", 2)[1]) if answer else 0
    if status == 429:
        return "queue full"
    if not tokens:
        if status != 400:
            raise Wrong(f"status {status} for {body['max_tokens']} tokens, which cannot be")
        return "refused"
    if status != 200:
        raise Wrong(f"status {status}: {answer[-300:]!r}")
    if "stream" in body and b"data: [DONE]" not in answer:
        raise Wrong(f"a stream without its end: {answer[-300:]!r}")
    counted = int(re.findall(rb'"completion_tokens": ?(\d+)', answer)[-1])
    if counted != tokens:
        raise Wrong(f"{counted} tokens instead of {tokens}")
    return "complete"


@dataclass(frozen=True)
class Server:
    """The server's processes."""

    process: subprocess.Popen[str]

    def memory_mib(self) -> dict[str, float]:
        """Resident memory by process."""
        first = psutil.Process(self.process.pid)
        found = {}
        for each in (first, *first.children(recursive=True)):
            name = next((word for word in each.cmdline() if word.startswith("engine")), each.name())
            found[f"{name} {each.pid}"] = each.memory_info().rss / MIB
        return found


def gpu_mib() -> float:
    """Memory in use on the first GPU, 0 without one."""
    if not torch.cuda.is_available():
        return 0.0
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used / MIB


async def soak(
    server: Server, load: Soak, seconds: float, concurrency: int
) -> tuple[list[dict[str, object]], list[str]]:
    """The rows, and what is wrong."""
    begin = time.monotonic()
    rows: list[dict[str, object]] = []
    clients = [asyncio.create_task(load.client(i, begin + seconds)) for i in range(concurrency)]
    while not all(client.done() for client in clients):
        await asyncio.wait(clients, timeout=ROW_SECONDS)
        gauges = await load.gauges()
        shared = {
            "seconds": round(time.monotonic() - begin, 1),
            "gpu_mib": round(gpu_mib()),
            **gauges,
            **load.ends,
        }
        rows += [
            shared | {"process": name, "rss_mib": round(rss, 1)} for name, rss in server.memory_mib().items()
        ]
        print(f"{shared['seconds']:7.1f} s  {dict(load.ends)}  {gauges}", flush=True)
    wrong = [str(client.exception()) for client in clients if client.exception()]
    wrong += await held(load)
    return rows, wrong + grown(rows)


async def held(load: Soak) -> list[str]:
    """What is still held when all clients are gone."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while any((await load.gauges()).values()) and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    return [f"{name} is {value} without a client" for name, value in (await load.gauges()).items() if value]


def grown(rows: list[dict[str, object]]) -> list[str]:
    """Processes, and the GPU, that hold more than they did."""
    series: dict[str, list[float]] = {}
    for row in rows:
        series.setdefault(row["process"], []).append(row["rss_mib"])
        series.setdefault("the GPU", []).append(row["gpu_mib"])
    wrong = []
    for name, values in series.items():
        quarter = len(values) // 4
        if not quarter:
            wrong.append(f"{name} has {len(values)} rows, too few to see it grow: run longer, or it has died")
            continue
        before, after = median(values[quarter : 2 * quarter]), median(values[-quarter:])
        if after - before > max(GROWTH_MIB, GROWTH_SHARE * before):
            wrong.append(f"{name} grew from {before:.0f} to {after:.0f} MiB")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m harness.micro.soak", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=30_000, help="prompts are of token ids below it")
    parser.add_argument("--out", type=Path, default=Path("results/micro/soak"))
    parser.add_argument("flags", nargs="*", help="flags of the server, after --")
    options = parser.parse_args(arguments)
    command = [
        sys.executable,
        "-m",
        "engine",
        "serve",
        "--model",
        options.model,
        "--port",
        "0",
        *options.flags,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        announced = re.search(r"http://([\d.]+):(\d+) .*context (\d+)", process.stdout.readline())
        if not announced:
            print("error: the server did not start", file=sys.stderr)
            return 2
        host, port, context = announced[1], int(announced[2]), int(announced[3])
        load = Soak(host, port, vocabulary=options.vocabulary, longest=context + 1)
        rows, wrong = uvloop.run(soak(Server(process), load, options.seconds, options.concurrency))
    finally:
        process.terminate()
        process.wait()
    stamp = {
        "concurrency": options.concurrency,
        "machine": machine(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "git_commit": commit(),
        "command": "python -m harness.micro.soak " + " ".join(arguments or sys.argv[1:]),
    }
    write(options.out / "soak.csv", [row | stamp for row in rows])
    for each in wrong:
        print(f"wrong: {each}")
    return 1 if wrong else 0


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval=0, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
