"""The engine as a process of its own: news in order, exactly one end per request, nothing left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
import torch

from engine.config import ConfigError
from engine.serving.client import EngineClient, Update
from engine.serving.request import SamplingParams
from engine.serving.startup import EngineOptions
from tests.engine.oracle import oracle_greedy, random_tensors, tiny_config, write_folder

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(CONFIG, tmp_path_factory.mktemp("tiny"))


def options(model: Path, **changes: object) -> EngineOptions:
    values: dict[str, object] = dict(model=model, device="cpu", kv_cache_bytes=1 << 20, max_num_seqs=8)
    return EngineOptions(**(values | changes))


class Inbox:
    """Collects the updates of one request and notices anything after its end."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.ends: list[Update] = []
        self.ended = asyncio.Event()

    def __call__(self, update: Update) -> None:
        assert not self.ends, "news after the end"
        self.ids += update.token_ids
        if update.finish:
            self.ends.append(update)
            self.ended.set()


def with_client(model: Path, body: Callable[[EngineClient], Awaitable[None]]) -> None:
    async def go() -> None:
        client = await EngineClient.start(options(model))
        try:
            await asyncio.wait_for(body(client), 60)
        finally:
            await client.stop()
        assert client._process.poll() is not None

    asyncio.run(go())


def test_requests_run_and_each_ends_once(model: Path) -> None:
    async def body(client: EngineClient) -> None:
        inboxes = [Inbox() for _ in range(6)]
        for i, inbox in enumerate(inboxes):
            client.submit([5, 6, i], SamplingParams(max_tokens=9), inbox)
        for i, inbox in enumerate(inboxes):
            await inbox.ended.wait()
            weights = {k: v.float().double() for k, v in random_tensors(CONFIG).items()}
            want = oracle_greedy(CONFIG, weights, [5, 6, i], 9, (0,))
            assert inbox.ids == want
            assert inbox.ends[0].finish == ("stop" if want[-1] == 0 else "length")
        assert client.stats["running"] == 0 and client.stats["kv_blocks_used"] == 0

    with_client(model, body)


def test_a_cancelled_request_ends_once_and_frees_its_blocks(model: Path) -> None:
    async def body(client: EngineClient) -> None:
        endless, other = Inbox(), Inbox()
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        request_id = client.submit([1, 2], params, endless)
        client.submit([3, 4], params, other)
        client.cancel(request_id)
        client.cancel(request_id)
        await endless.ended.wait()
        await other.ended.wait()
        assert endless.ends[0].finish == "cancelled" and len(endless.ids) < 200
        assert other.ends[0].finish == "length" and len(other.ids) == 200

    with_client(model, body)


def test_salts_and_the_reset_of_the_prefix_cache_reach_the_engine(model: Path) -> None:
    async def body(client: EngineClient) -> None:
        async def cached(salt: str = "") -> int:
            inbox, prompt = Inbox(), list(range(1, 40))
            client.submit(prompt, SamplingParams(max_tokens=2, ignore_eos=True), inbox, cache_salt=salt)
            await inbox.ended.wait()
            assert client.in_flight == 0
            return inbox.ends[0].cached_tokens

        assert [await cached(), await cached(), await cached("a"), await cached("a")] == [0, 32, 0, 32]
        client.reset_prefix_cache()
        assert [await cached(), await cached("a")] == [0, 0]

    with_client(model, body)


def test_a_request_that_cannot_run_is_refused_and_the_next_one_runs(model: Path) -> None:
    async def body(client: EngineClient) -> None:
        bad, good = Inbox(), Inbox()
        client.submit([1] * 300, SamplingParams(max_tokens=1), bad)
        client.submit([1], SamplingParams(max_tokens=1), good)
        await bad.ended.wait()
        await good.ended.wait()
        assert bad.ends[0].finish == "refused" and "300 prompt tokens" in bad.ends[0].error
        assert len(good.ids) == 1

    with_client(model, body)


def test_a_killed_engine_ends_every_request_and_says_so(model: Path) -> None:
    async def body(client: EngineClient) -> None:
        inboxes = [Inbox() for _ in range(4)]
        for inbox in inboxes:
            client.submit([1], SamplingParams(max_tokens=200, ignore_eos=True), inbox)
        client._process.send_signal(signal.SIGKILL)
        for inbox in inboxes:
            await inbox.ended.wait()
            assert inbox.ends[0].finish == "error" and "exit status -9" in inbox.ends[0].error
        assert client.state == "failed" and "exit status -9" in client.error
        late = Inbox()
        client.submit([1], SamplingParams(), late)
        await late.ended.wait()
        assert late.ends[0].finish == "error"

    with_client(model, body)


def test_a_model_that_cannot_be_loaded_is_a_plain_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        asyncio.run(EngineClient.start(options(tmp_path)))


def test_the_engine_dies_with_its_front_end(model: Path) -> None:
    program = (
        "import asyncio, sys, time; from pathlib import Path\n"
        "from engine.serving.client import EngineClient; from engine.serving.startup import EngineOptions\n"
        "async def go():\n"
        "    c = await EngineClient.start(EngineOptions(model=Path(sys.argv[1]), device='cpu', "
        "kv_cache_bytes=1 << 20, max_num_seqs=8))\n"
        "    print(c._process.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(go())\n"
    )
    front = subprocess.Popen([sys.executable, "-c", program, str(model)], stdout=subprocess.PIPE, text=True)
    engine = psutil.Process(int(front.stdout.readline()))
    front.kill()
    front.wait()
    gone, _ = psutil.wait_procs([engine], timeout=30)
    assert gone, "the engine outlived its front end"


def test_a_signal_to_the_whole_group_leaves_the_order_to_the_front_end(model: Path) -> None:
    async def body(client: EngineClient) -> None:
        os.kill(client._process.pid, signal.SIGTERM)
        os.kill(client._process.pid, signal.SIGINT)
        time.sleep(0.1)
        inbox = Inbox()
        client.submit([1], SamplingParams(max_tokens=3, ignore_eos=True), inbox)
        await inbox.ended.wait()
        assert len(inbox.ids) == 3

    with_client(model, body)


def test_weights_are_those_of_the_checkpoint(model: Path) -> None:
    """The fixture is worth something only if the file holds what the oracle computes with."""
    from engine.model.checkpoint import load_checkpoint

    loaded = load_checkpoint(model).tensors
    for name, tensor in random_tensors(CONFIG).items():
        assert torch.equal(loaded[name], tensor.float())
