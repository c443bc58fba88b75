"""The tokenizer of the local model: byte-level BPE, as Qwen's is, over words that are made of two syllables.

Written as the files that `tokenizers` and transformers read, so that no library version changes a byte of it.
"""

from itertools import product
from typing import Any

CONSONANTS, VOWELS = "bcdfghjklmnpqrstv", "aeiou"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


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


def tokenizer_config(max_positions: int) -> dict[str, Any]:
    """What transformers needs beside tokenizer.json; the generic class takes that file as it is."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
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


def _special(token_id: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, **flags, "special": True}


def _printable(byte: int) -> bool:
    return 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF
