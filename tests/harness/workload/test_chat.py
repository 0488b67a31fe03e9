import json
from pathlib import Path

from harness.workload.chat import chat_turn


def test_a_prompt_becomes_a_user_turn(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    settings = {"chat_template": template, "eos_token": "</s>", "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert chat_turn(tmp_path)("What is 2 + 2?") == "<user>What is 2 + 2?</s><assistant>"


def test_without_a_template_the_prompt_stays(tmp_path: Path) -> None:
    assert chat_turn(tmp_path)("As it is.") == "As it is."


def test_the_default_model_gets_the_turn_that_transformers_makes() -> None:
    from transformers import AutoTokenizer

    from engine.model.named import prepare

    folder = prepare("smollm2-135m")
    messages = [{"role": "user", "content": "What is 2 + 2?\nBriefly."}]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    want = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert chat_turn(folder)(messages[0]["content"]) == want
