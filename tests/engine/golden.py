"""Greedy answers of transformers in fp32, kept so that tests need not make them.

`python -m tests.engine.golden` writes smollm2_greedy.json: for each of the first 64 prompts of the harness,
as a chat turn, the ids that `generate` yields on a CPU, one prompt at a time, up to 20 new tokens, without
the end-of-sequence id.
"""

import json
from pathlib import Path

PATH = Path(__file__).with_name("smollm2_greedy.json")
PROMPTS, MAX_TOKENS = 64, 20


def main() -> None:
    import tempfile

    from engine.model.named import prepare
    from harness.reference import generate
    from harness.workload.chat import chat_turn
    from harness.workload.prompts import load_prompts
    from harness.workload.schedule import correctness, write

    folder = prepare("smollm2-135m")
    turn = chat_turn(folder)
    prompts = [turn(prompt.text) for prompt in load_prompts()[:PROMPTS]]
    with tempfile.TemporaryDirectory() as place:
        schedule = Path(place) / "schedule.jsonl"
        write(correctness(prompts, count=PROMPTS, max_tokens=MAX_TOKENS), schedule)
        made = generate(folder, schedule, "cpu")
    rows = [
        {"prompt": prompt, "ids": answer["ids"], "finish": answer["finish"]}
        for prompt, answer in zip(prompts, made["answers"], strict=True)
    ]
    content = {"packages": made["packages"], "attention": made["attention"], "answers": rows}
    PATH.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
