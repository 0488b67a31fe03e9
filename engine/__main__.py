"""Command line of the engine: `python -m engine prepare|generate|serve`."""

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engine.config import PRESETS, ConfigError

if TYPE_CHECKING:
    from engine.serving.client import EngineClient


# A key on the command line can be read by every user of the machine.
API_KEY_VARIABLE = "LLM_LADDER_API_KEY"


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0 on success, 1 when the engine failed while serving, 2 for bad input.

    A server whose engine has failed goes on answering, 503 to everything, until it is stopped.
    """
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine", description="The llm-ladder engine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    prepare = commands.add_parser(
        "prepare", help="make a model ready in the cache folder and check it; prints its path"
    )
    prepare.add_argument("model", help="a named model, a HuggingFace folder or a .gguf file")
    prepare.set_defaults(run=_prepare)
    generate = commands.add_parser("generate", help="complete prompts on this machine and print them")
    _add_engine_options(generate)
    generate.add_argument("prompts", nargs="+", metavar="PROMPT")
    generate.add_argument("--max-tokens", type=int, default=64)
    generate.add_argument("--temperature", type=float, default=0.0, help="0 (default) is greedy")
    generate.add_argument("--seed", type=int, default=0)
    generate.set_defaults(run=_generate)
    serve = commands.add_parser("serve", help="serve the OpenAI-compatible HTTP API")
    _add_engine_options(serve)
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--served-model-name", help="the name clients use; default: the model as given")
    serve.add_argument(
        "--api-key",
        default=os.environ.get(API_KEY_VARIABLE),
        help=f"what clients must send as Authorization: Bearer KEY; default: ${API_KEY_VARIABLE}, else open",
    )
    serve.add_argument("--max-queue", type=int, default=2048, help="sequences that may wait before 429s")
    serve.add_argument(
        "--drain-seconds",
        type=float,
        default=30.0,
        help="how long running answers may go on after the first SIGTERM; 0 ends them at once",
    )
    serve.set_defaults(run=_serve)
    return parser


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="a named model, a HuggingFace folder or a .gguf file")
    add("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    add("--dtype", choices=("float32", "bfloat16"), help="default: bfloat16 on cuda, float32 on cpu")
    add("--max-model-len", type=int, help="longest prompt + output in tokens; default: what the model allows")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--kv-cache-bytes", type=int, help="size of the KV cache; default on cpu: 1 GiB")
    size.add_argument("--gpu-memory-share", type=float, help="share of GPU memory for weights and KV cache")
    add("--max-num-seqs", type=int, default=256, help="sequences that run at once")
    add("--max-batched-tokens", type=int, default=2048, help="tokens computed in one step")
    add(
        "--no-prefix-cache",
        dest="prefix_cache",
        action="store_false",
        help="never reuse KV of equal prefixes",
    )
    add("--preset", choices=tuple(PRESETS), default="full", help="leave steps towards speed out")


_ENGINE_OPTIONS = (
    "device", "dtype", "max_model_len", "kv_cache_bytes", "gpu_memory_share", "max_num_seqs",
    "max_batched_tokens", "prefix_cache", "preset",
)  # fmt: skip


def _engine_options(args: argparse.Namespace) -> dict[str, object]:
    return {name: getattr(args, name) for name in _ENGINE_OPTIONS}


def _prepare(args: argparse.Namespace) -> int:
    from engine.model.checkpoint import load_checkpoint
    from engine.model.named import prepare
    from engine.model.tokenizer_file import load_tokenizer

    folder = prepare(args.model)
    load_checkpoint(folder)
    load_tokenizer(folder)
    print(folder)
    return 0


def _generate(args: argparse.Namespace) -> int:
    from engine.serving.llm import LLM
    from engine.serving.request import SamplingParams

    llm = LLM(args.model, **_engine_options(args))
    params = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed)
    for prompt, output in zip(args.prompts, llm.generate(args.prompts, params), strict=True):
        print(f"{prompt}{output.text}\n[{output.finish_reason}, {len(output.token_ids)} tokens]")
    return 0


def _serve(args: argparse.Namespace) -> int:
    import uvloop

    return uvloop.run(_serve_async(args))


async def _serve_async(args: argparse.Namespace) -> int:
    from engine.model.named import prepare
    from engine.model.tokenizer_file import load_tokenizer
    from engine.serving.client import EngineClient
    from engine.serving.http.app import ServerSettings, bind, serve
    from engine.serving.http.chat_template import ChatTemplate
    from engine.serving.startup import EngineOptions

    name = args.served_model_name or args.model
    settings = ServerSettings(
        name,
        args.host,
        args.port,
        api_key=args.api_key,
        max_queue=args.max_queue,
        drain_seconds=args.drain_seconds,
    )
    listener = bind(settings)
    folder = prepare(args.model)
    tokenizer = load_tokenizer(folder)
    settings = replace(settings, chat_template=ChatTemplate.load(folder))
    client = await EngineClient.start(EngineOptions(model=folder, **_engine_options(args)))
    try:
        await serve(client, tokenizer, settings, listener, partial(_announce, name, client))
    finally:
        await client.stop()
    if client.state == "failed":
        print(f"error: the engine failed: {client.error}", file=sys.stderr)
        return 1
    return 0


def _announce(name: str, client: "EngineClient", host: str, port: int) -> None:
    info = client.info
    print(
        f"serving {name} on http://{host}:{port} ({info.device}, {info.dtype}, context {info.max_model_len}, "
        f"{info.num_blocks - 1} KV blocks of {info.block_size} tokens)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
