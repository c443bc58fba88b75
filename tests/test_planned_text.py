"""Token ids and text outside the engines: the same as inside."""

import random
from typing import Any

import config
import numpy as np
import pytest
from harness.planning import text
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer


def streamed(tokenizer: Any, prompt: list[int], output: list[int]) -> str:
    """vLLM's own text of an output, token by token."""
    request = EngineCoreRequest(
        request_id="0", prompt_token_ids=prompt, mm_features=None, sampling_params=SamplingParams(),
        pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None,
    )  # fmt: skip
    detokenizer = FastIncrementalDetokenizer(tokenizer, request)
    for token in output:
        detokenizer.update([token], False)
    return detokenizer.output_text


def spaced() -> PreTrainedTokenizerFast:
    """As Llama 2's: words carry their space, and the first one loses it when decoded."""
    words = ["<unk>", "▁a", "▁b", "▁cd", "e", "▁"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.normalizer = normalizers.Prepend("▁")
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(content=" ", left=1, right=0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


@pytest.mark.parametrize("kind", ["bytes", "spaces"])
def test_the_text_of_an_output_is_what_vllms_detokeniser_makes_of_it(
    kind: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = tokenizer if kind == "bytes" else spaced()
    monkeypatch.setattr(text, "tokenizer", lambda: used)
    text._anchor.cache_clear()
    rng = random.Random(0)
    outputs = [[rng.randrange(1, len(used)) for _ in range(rng.randint(1, 9))] for _ in range(200)]
    # A text, so no half characters: what vLLM makes of those depends on the prompt.
    prompt = used.encode("a b", add_special_tokens=False)
    tokens = np.array([token for output in outputs for token in output], np.int32)
    found = text.decode(tokens, np.array([len(output) for output in outputs])).to_pylist()
    text._anchor.cache_clear()
    expected = [streamed(used, prompt, output) for output in outputs]
    assert found == expected


def test_prompts_become_the_ids_that_an_engine_would_see(
    tokenizer: Any, model_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "MODEL_NAME", str(model_folder))
    text.tokenizer.cache_clear()
    prompts = [" two words", "ünïcödé", "x" * 50]
    tokens, lengths = text.encode(prompts)
    text.tokenizer.cache_clear()
    assert lengths.tolist() == [len(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    assert tokens.tolist() == [token for prompt in prompts for token in tokenizer(prompt)["input_ids"]]
