"""How many prompt tokens the engines have to count, where nobody needs to encode all prompts to know it.

That is so for a set that generator.py made with this model's tokenizer. What a column of token counts in data from
elsewhere means, and for which tokenizer, only its owner knows.
"""

from typing import Any

import config
from harness.data import dataset, generator
from harness.data.storage import StorageError
from harness.preflight import prompt_length


def made(fingerprint: str, tokenizer: Any, first_prompts: list[str]) -> int | None:
    """Special tokens included, as engines count; None without a manifest of exactly these prompts and this tokenizer.

    `first_prompts` are encoded as engines do it: the manifest tells tokenizers apart by their vocabularies alone.
    `tokenizer` is None where the model has none that loads; that is said elsewhere.
    """
    if tokenizer is None:
        return None
    try:
        manifest = dataset.read_manifest(config.INPUT_PATH)
        if not manifest or manifest["fingerprint"] != fingerprint:
            return None
        if manifest["request"]["tokenizer"]["vocab_sha256"] != generator.vocab_sha256(tokenizer):
            return None
        shortest, longest, rows = (int(manifest[name]) for name in ("prompt_len_min", "prompt_len_max", "rows"))
        # Manifests from before 2026-11-30 do not hold the sum; it follows where all prompts are of one length.
        total = manifest.get("prompt_tokens", rows * shortest if shortest == longest else None)
    except (StorageError, KeyError, TypeError, ValueError):
        return None
    special = int(tokenizer.num_special_tokens_to_add())
    lengths = [len(ids) - special for ids in prompt_length.encode(tokenizer, first_prompts)]
    as_made = all(shortest <= length <= longest for length in lengths)
    return total + rows * special if as_made and isinstance(total, int) else None
