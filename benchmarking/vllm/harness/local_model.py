"""A small Qwen3 model made by code: for tests, CI and machines without a hub.

    python -m harness.local_model ../../.local/model

The folder loads wherever `Qwen/Qwen3-8B` does (vLLM, Daft's provider, Ray Data): architecture Qwen3ForCausalLM, seeded
random weights of about 3 MB, a byte-level BPE tokenizer with ChatML's special tokens and template. The text that it
generates means nothing; the engine, its scheduler, its prefix cache and its counters are the real ones.

Same bytes on every machine: weights come from a random bit stream that numpy keeps stable and are small whole numbers
times a power of two, which bfloat16 holds without rounding.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

SEED = 42
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 2, 128, 4, 2, 32, 384
MAX_POSITIONS = 8192
CONSONANTS, VOWELS = "bcdfghjklmnpqrstv", "aeiou"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make(folder: str | Path) -> Path:
    """Writes the model into `folder`; files that already hold the right bytes are left alone. Returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_json()
    vocab_size = len(tokenizer["model"]["vocab"]) + len(SPECIAL_TOKENS)
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    eos = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    _write(folder / "config.json", _json(model_config(vocab_size, eos[0])))
    _write(folder / "generation_config.json", _json({"eos_token_id": eos, "pad_token_id": eos[1]}))
    _write(folder / "tokenizer.json", _json(tokenizer))
    _write(folder / "tokenizer_config.json", _json(tokenizer_config()))
    _write(folder / "model.safetensors", safetensors(vocab_size))
    return folder


def model_config(vocab_size: int, eos_token_id: int) -> dict[str, Any]:
    """Qwen3-8B's config.json with small sizes."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": eos_token_id,
    }


def tokenizer_json() -> dict[str, Any]:
    """Byte-level BPE as `tokenizers` stores it: 256 bytes, then tokens of a space and a word of two syllables.

    Merges: consonant + vowel, then space + syllable, then space + syllable + syllable. So every text encodes, and each
    word with its space is exactly one token.
    """
    syllables = ["".join(pair) for pair in product(CONSONANTS, VOWELS)]
    starts = ["Ġ" + syllable for syllable in syllables]
    merges = [list(syllable) for syllable in syllables]
    merges += [["Ġ", syllable] for syllable in syllables]
    merges += [list(pair) for pair in product(starts, syllables)]
    tokens = [*byte_alphabet(), *("".join(pair) for pair in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    # A word keeps the one space before it, as in Qwen's tokenizer.
    pattern = {"Regex": r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(len(tokens) + i, text) for i, text in enumerate(SPECIAL_TOKENS)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """What transformers needs beside tokenizer.json; the generic class takes that file as it is."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_POSITIONS,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE: printable ones as they are, the rest from U+0100."""
    spare = map(chr, range(0x100, 0x200))
    return [chr(byte) if _printable(byte) else next(spare) for byte in range(256)]


def safetensors(vocab_size: int) -> bytes:
    """A safetensors file: length of the header (8 bytes), header (JSON padded to 8 bytes), tensors in bfloat16.

    Norms are one, matrices uniform with a deviation of about 0.02.
    """
    bits = np.random.PCG64(SEED)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape in shapes(vocab_size):
        values = np.ones(shape, np.float32) if len(shape) == 1 else _draw(bits, shape)
        start = len(body)
        # bfloat16 is the upper half of a float32; these values have nothing in the lower half.
        body += (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, len(body)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(body)


def shapes(vocab_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor of a Qwen3 checkpoint , output before input, in the order drawn."""
    yield "model.embed_tokens.weight", (vocab_size, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (HIDDEN,)
        yield f"{at}.self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)
        yield f"{at}.self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{at}.self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{at}.self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield f"{at}.self_attn.q_norm.weight", (HEAD_DIM,)
        yield f"{at}.self_attn.k_norm.weight", (HEAD_DIM,)
        yield f"{at}.post_attention_layernorm.weight", (HIDDEN,)
        yield f"{at}.mlp.gate_proj.weight", (INTERMEDIATE, HIDDEN)
        yield f"{at}.mlp.up_proj.weight", (INTERMEDIATE, HIDDEN)
        yield f"{at}.mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", (HIDDEN,)


def _draw(bits: np.random.PCG64, shape: tuple[int, ...]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    whole = (bits.random_raw(int(np.prod(shape))) >> np.uint64(56)).astype(np.int64) - 128
    return (whole.astype(np.float32) * np.float32(2.0**-12)).reshape(shape)


def _special(token_id: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, **flags, "special": True}


def _printable(byte: int) -> bool:
    return 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()


def _write(path: Path, content: bytes) -> None:
    if path.exists() and path.read_bytes() == content:
        return
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(content)
    part.replace(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the small Qwen3 model.", epilog="Same bytes on every machine.")
    parser.add_argument("folder", type=Path, help="where to write it, e.g. ../../.local/model")
    print(make(parser.parse_args().folder))
