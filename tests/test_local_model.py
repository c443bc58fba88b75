"""The model made by code: same bytes everywhere, and what engines expect of a Qwen3 folder."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from harness.data import local_model, prompts
from transformers import AutoModelForCausalLM

# SHA-256 of each file, as every machine and library version must write it.
DIGESTS = {
    "config.json": "ab78bc913dae1779a2f785623453177068f8dc9f99126c9a56a71ca1b2e50518",
    "generation_config.json": "7b5075fa1d6a506dd1e993278a989452678712f7c138ba8ba1578b6773764bde",
    "model.safetensors": "9ba50434a75c249b6bb7a9d035562d92e5dd6068129a16709b3bf6e21d110683",
    "tokenizer.json": "94cae508660dec2d8dbe690f3feea52b6bd01bc70297394d5e8f7a9a9023d81f",
    "tokenizer_config.json": "ae9739a958c001fe02fdd4df5da7cc1d8334c4fa4513d4ee8cf33afcec9c9fc4",
}


def test_every_machine_writes_the_same_bytes(model_folder: Path) -> None:
    written = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in model_folder.iterdir()}
    assert written == DIGESTS


def test_making_it_again_leaves_the_files_alone(model_folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in model_folder.iterdir()}
    local_model.make(model_folder)
    assert before == {path: path.stat().st_mtime_ns for path in model_folder.iterdir()}


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    local_model.make(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:1000])
    local_model.make(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == whole


def test_it_is_a_qwen3_checkpoint_with_finite_logits_that_depend_on_the_prompt(
    model_folder: Path, tokenizer: Any
) -> None:
    model, loading = AutoModelForCausalLM.from_pretrained(model_folder, output_loading_info=True)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert not any(loading.values()), loading
    ids = tokenizer([" bacu deso", " bacu lima"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(ids).logits[:, -1].float()
    assert torch.isfinite(logits).all()
    assert not torch.equal(logits[0], logits[1])


def test_the_vocabulary_fills_the_embedding_exactly(model_folder: Path, tokenizer: Any) -> None:
    settings = json.loads((model_folder / "config.json").read_text())
    assert settings["vocab_size"] == len(tokenizer)
    assert settings["eos_token_id"] == tokenizer.eos_token_id


def test_any_text_survives_the_tokenizer(tokenizer: Any) -> None:
    text = "Hello, wörld!\n\n\tdef f(x):  return x**2  # 日本語 🙂 12345"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_messages_are_wrapped_in_special_tokens(tokenizer: Any) -> None:
    message = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.convert_ids_to_tokens(tokenizer.encode(text)))


def test_thousands_of_words_are_one_token_each(tokenizer: Any) -> None:
    assert len(prompts.words(tokenizer)) == 4096
