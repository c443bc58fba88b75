"""A small Qwen3 model made by code: for tests, CI and machines without a hub.

    python -m harness.data.local_model ../../.local/model

The folder loads wherever `Qwen/Qwen3-8B` does (vLLM, Daft's provider, Ray Data): architecture Qwen3ForCausalLM, seeded
random weights of about 3 MB, and the tokenizer of local_tokenizer.py. The text that it generates means nothing; the
engine, its scheduler, its prefix cache and its counters are the real ones.

Same bytes on every machine: weights come from a random bit stream that numpy keeps stable and are small whole numbers
times a power of two, which bfloat16 holds without rounding.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness.data import local_tokenizer

SEED = 42
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 2, 128, 4, 2, 32, 384
MAX_POSITIONS = 8192


def make(folder: str | Path) -> Path:
    """Writes the model into `folder`; files that already hold the right bytes are left alone. Returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = local_tokenizer.tokenizer_json()
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    vocab_size = len(tokenizer["model"]["vocab"]) + len(ids)
    eos = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    _write(folder / "config.json", _json(model_config(vocab_size, eos[0])))
    _write(folder / "generation_config.json", _json({"eos_token_id": eos, "pad_token_id": eos[1]}))
    _write(folder / "tokenizer.json", _json(tokenizer))
    _write(folder / "tokenizer_config.json", _json(local_tokenizer.tokenizer_config(MAX_POSITIONS)))
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
    try:
        print(make(parser.parse_args().folder))
    except OSError as error:
        sys.exit(f"local_model: expected a folder that can be written, found: {error}")
