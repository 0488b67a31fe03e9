"""Greedy output of transformers for a correctness schedule: the truth the systems are held against.

Runs as a process of its own, so that its memory and threads are gone before a server starts:

    python -m harness.reference --model DIR --schedule FILE --out FILE [--device cpu|cuda]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from harness.store import write_atomically
from harness.workload.schedule import ScheduledRequest, read

ATTENTION = "sdpa"
DTYPE = "float32"


def generate(model_dir: Path, schedule_path: Path, device: str) -> dict[str, Any]:
    """Continuations in fp32, one prompt at a time, TF32 off, ending at the model's end-of-sequence token.

    Returns {"packages", "attention", "dtype", "device", "wall_s", "answers"}, an answer a request being
    {"prompt_ids", "prompt_tokens", "ids", "text", "finish", "gaps"}: ids without the end token, gaps the
    top-2 logit gap at each of their positions and, when the end token was generated, at its.
    """
    import torch
    import transformers

    started = time.monotonic()
    schedule, _ = read(schedule_path)
    transformers.utils.logging.disable_progress_bar()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation=ATTENTION
    ).to(device)
    answers = [_answer(model, tokenizer, request) for request in schedule.requests]
    return {
        "packages": {"torch": torch.__version__, "transformers": transformers.__version__},
        "attention": ATTENTION,
        "dtype": DTYPE,
        "device": device,
        "wall_s": time.monotonic() - started,
        "answers": answers,
    }


def _answer(model: Any, tokenizer: Any, request: ScheduledRequest) -> dict[str, Any]:
    inputs = tokenizer(request.prompt, return_tensors="pt").to(model.device)
    prompt_tokens = inputs["input_ids"].shape[1]
    output = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        do_sample=False,
        max_new_tokens=request.max_tokens,
        return_dict_in_generate=True,
        output_logits=True,
    )
    generated = output.sequences[0, prompt_tokens:].tolist()
    ends = model.generation_config.eos_token_id
    ended = generated[-1] in (ends if isinstance(ends, list) else [ends])
    ids = generated[:-1] if ended else generated
    top_two = [logits[0].topk(2).values.tolist() for logits in output.logits]
    return {
        "prompt_ids": inputs["input_ids"][0].tolist(),
        "prompt_tokens": prompt_tokens,
        "ids": ids,
        "text": tokenizer.decode(ids, skip_special_tokens=True),
        "finish": "stop" if ended else "length",
        "gaps": [first - second for first, second in top_two],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.reference", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="HuggingFace folder")
    parser.add_argument("--schedule", type=Path, required=True, help="schedule file with the prompts")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args(argv)
    write_atomically(args.out, json.dumps(generate(args.model, args.schedule, args.device)).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
