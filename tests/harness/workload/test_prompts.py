"""The prompts of the repository, and refusal of prompt files that cannot be used."""

from pathlib import Path

import pytest

from harness.workload.prompts import PromptError, load_prompts


def test_the_set_is_large_varied_and_without_twins() -> None:
    prompts = load_prompts()
    assert len(prompts) >= 128
    assert [prompt.id for prompt in prompts] == [f"p{number:03d}" for number in range(len(prompts))]
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    words = [len(prompt.text.split()) for prompt in prompts]
    assert min(words) >= 8
    assert max(words) <= 160
    assert sum(count > 40 for count in words) >= 25
    assert len({" ".join(prompt.text.split()[:2]) for prompt in prompts}) > len(prompts) / 2


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "holds no prompts"),
        ('{"id":"a","prompt":"x"}\nnot json\n', "line 2: not JSON"),
        ('{"id":"a","prompt":"x"}\n{"id":"a","prompt":"y"}\n', "line 2: id 'a' was used before"),
        ('{"id":"a"}\n', "line 1: must be"),
        ('{"id":"a","prompt":" "}\n', "line 1: must be"),
        ('{"id":"a","prompt":["x"]}\n', "line 1: must be"),
        ("[]\n", "line 1: must be"),
    ],
)
def test_bad_files_are_refused(content: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(PromptError) as caught:
        load_prompts(path)
    assert named in str(caught.value)
