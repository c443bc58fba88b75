"""How many tokens an engine's KV cache holds, from the model's config.json and without an engine.

For models whose every layer has full attention (Qwen3, Llama, ...): it stores a key and a value of `head_dim` numbers
for each KV head and token.
"""

from typing import Any

import config

# bfloat16 or float16: vLLM's dtype "auto" also turns float32 models into one of them.
NUMBER_BYTES = 2


def bytes_per_token(model: Any) -> int | None:
    """On each GPU of an engine; `model` is a transformers config. Tensor parallelism splits the KV heads.

    None for other kinds of attention, where only the engine knows.
    """
    text = model.get_text_config()
    if hasattr(text, "kv_lora_rank") or set(getattr(text, "layer_types", None) or ()) - {"full_attention"}:
        return None
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    heads_here = max(1, heads // max(1, config.GPUS_PER_ENGINE))
    return int(2 * text.num_hidden_layers * heads_here * size * NUMBER_BYTES)


def tokens_held(kv_cache_bytes: int, token_bytes: int) -> int:
    """Tokens in whole blocks, less the one block that vLLM keeps back as its null block (0.26 and 0.27)."""
    blocks = kv_cache_bytes // (config.BLOCK_SIZE * token_bytes)
    return max(0, blocks - 1) * config.BLOCK_SIZE


def bytes_for(tokens: int, token_bytes: int) -> int:
    """The smallest KV cache that holds so many tokens."""
    blocks = -(-tokens // config.BLOCK_SIZE) + 1
    return blocks * config.BLOCK_SIZE * token_bytes
