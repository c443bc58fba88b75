"""Sizes of a dense decoder with grouped-query attention, from its config.json (Llama, Mistral, Qwen2, Qwen3, ...)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


class ModelShape(NamedTuple):
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied_embeddings: bool
    dtype_bytes: int
    bias_and_norm_parameters: int  # read, but no matrix arithmetic to speak of

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of all layers that multiply each token: query, key, value, output, gate, up, down."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_parameters(self) -> int:
        """The output projection; it multiplies sampled tokens only."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        embeddings = self.head_parameters * (1 if self.tied_embeddings else 2)
        return self.layer_matrix_parameters + embeddings + self.bias_and_norm_parameters

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.dtype_bytes

    @property
    def step_weight_bytes(self) -> int:
        """Weights that one engine step reads: all but the input embedding, of which it reads a few rows."""
        matrices = self.layer_matrix_parameters + self.head_parameters + self.bias_and_norm_parameters
        return matrices * self.dtype_bytes

    @property
    def kv_token_bytes(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes


def from_config(config: Mapping[str, Any]) -> ModelShape:
    """The shape in a config.json. Raises ValueError for architectures whose sizes mean something else."""
    other_kinds = ("num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank", "quantization_config")
    unknown = [key for key in other_kinds if config.get(key)]
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        unknown.append("sliding_window")
    missing = [key for key in ("num_hidden_layers", "hidden_size", "intermediate_size") if key not in config]
    if unknown or missing:
        raise ValueError(
            f"model {config.get('model_type')!r}: expected the config.json of a dense decoder with full attention and "
            f"without quantisation, found {', '.join(unknown) or 'no ' + ', '.join(missing)}"
        )
    layers, hidden, heads = config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    return ModelShape(
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        config["intermediate_size"],
        config["vocab_size"],
        bool(config.get("tie_word_embeddings", False)),
        DTYPE_BYTES[config.get("torch_dtype") or config.get("dtype") or "bfloat16"],
        _bias_and_norm_parameters(config, layers, hidden, heads, kv_heads, head_dim),
    )


def _bias_and_norm_parameters(
    config: Mapping[str, Any], layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int
) -> int:
    """Two norms a layer, one at the end. Qwen3 norms queries and keys; Qwen2 has biases for queries, keys, values."""
    kind = config.get("model_type")
    per_layer = 2 * hidden
    per_layer += 2 * head_dim if kind == "qwen3" else 0
    biased = kind == "qwen2" or config.get("attention_bias", False)
    per_layer += (heads + 2 * kv_heads) * head_dim if biased else 0
    return layers * per_layer + hidden


def read(model: str) -> ModelShape:
    """The shape of a model in a local folder, or on the hub as far as it can be reached.

    Raises ValueError if there is no config.json, or one that is not that of a model.
    """
    path = _config_file(model)
    try:
        shape = from_config(json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        found = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}: expected the config.json of a decoder, found {found}; {_NEXT}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}; {_NEXT}") from error
    if min(shape[:7]) < 1:
        raise ValueError(f"{path}: expected sizes of at least 1, found {shape}; {_NEXT}")
    return shape


_NEXT = "give a hub id or the folder of a model"


def _config_file(model: str) -> Path:
    folder = Path(model)
    if folder.is_dir():
        path = folder / "config.json"
        if not path.exists():
            found = sorted(file.name for file in folder.iterdir())
            raise ValueError(f"{folder}: expected config.json, found {found}; {_NEXT}")
        return path
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, "config.json"))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].removesuffix(".")
        raise ValueError(
            f"expected the model {model}, found no such folder, and from the hub: {reason}; {_NEXT}"
        ) from None
