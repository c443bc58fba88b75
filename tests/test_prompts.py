"""Prompts: as many as asked for, as long as asked for, sharing what they should and nothing else."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from harness.data import dataset, generator, prompts
from harness.data.prompts import Shape
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def rows_of(shape: Shape, words: pa.Array, parts: int = 8) -> pa.Table:
    return pa.Table.from_batches(list(prompts.sample(shape, words, parts)))


@pytest.fixture(scope="module")
def words(tokenizer: Any) -> pa.Array:
    return prompts.words(tokenizer)


@pytest.fixture(scope="module")
def four_hundred(words: pa.Array) -> pa.Table:
    return rows_of(Shape(400, 16, 256, 256), words)


@pytest.mark.parametrize(("rows", "prefixes"), [(10, 3), (200_000, 512)])
def test_no_row_is_dropped_when_rows_do_not_divide_by_prefixes(words: pa.Array, rows: int, prefixes: int) -> None:
    table = rows_of(Shape(rows, prefixes, prefix_len=4, suffix_len=16), words)
    group_sizes = Counter(table.column("prefix_id").to_pylist())
    assert table.column("id").to_pylist() == list(range(rows))
    assert set(group_sizes) == set(range(prefixes))
    assert max(group_sizes.values()) - min(group_sizes.values()) <= 1


def test_every_text_encodes_to_exactly_the_stored_length(four_hundred: pa.Table, tokenizer: Any) -> None:
    lengths = prompts.encoded_lengths(tokenizer, four_hundred.column("prompt").to_pylist())
    assert lengths == [512] * 400 == four_hundred.column("prompt_len").to_pylist()


def test_prompts_of_one_prefix_share_its_tokens_and_nothing_more(four_hundred: pa.Table, tokenizer: Any) -> None:
    groups: dict[int, list[list[int]]] = {}
    for row in four_hundred.to_pylist():
        groups.setdefault(row["prefix_id"], []).append(tokenizer.encode(row["prompt"]))
    assert all(len({tuple(ids[:256]) for ids in group}) == 1 for group in groups.values())
    assert len({tuple(ids[256:272]) for group in groups.values() for ids in group}) == 400
    assert len({tuple(group[0][:16]) for group in groups.values()}) == 16


def test_arrival_order_interleaves_prefixes(four_hundred: pa.Table) -> None:
    groups = four_hundred.column("prefix_id").to_pylist()
    assert len(set(groups[:50])) > 8
    assert groups != sorted(groups)


def test_prompts_without_prefixes_have_no_prefix_id(words: pa.Array) -> None:
    table = rows_of(Shape(20, 0, 0, 512), words)
    assert table.column("prefix_id").null_count == 20
    assert len({text[:60] for text in table.column("prompt").to_pylist()}) == 20


def test_the_number_of_files_does_not_change_the_prompts(words: pa.Array) -> None:
    shape = Shape(50, 3, 30, 17)
    assert rows_of(shape, words, parts=1).combine_chunks() == rows_of(shape, words, parts=7).combine_chunks()


def test_another_seed_or_number_of_prefixes_gives_other_prompts(words: pa.Array) -> None:
    shapes = [Shape(20, 2, 16, 16, seed=1), Shape(20, 2, 16, 16, seed=2), Shape(20, 4, 16, 16, seed=1)]
    texts = [text for shape in shapes for text in rows_of(shape, words).column("prompt").to_pylist()]
    assert len({text[:60] for text in texts}) == 2 + 2 + 4


def test_one_seed_gives_these_prompts_on_every_machine(four_hundred: pa.Table) -> None:
    assert dataset.fingerprint(four_hundred.to_batches()) == "363d626c86cb26a5917a072ae40b5b43"


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (0, 0, 0, 4), (5, 0, 4, 4), (5, 2, 0, 4), (5, 2, 4, 0), (5, -1, 4, 4)])
def test_an_impossible_shape_is_refused(shape: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Shape(*shape)


def test_suffixes_too_short_to_differ_are_refused(words: pa.Array) -> None:
    with pytest.raises(ValueError, match=r"start with the same .* expected none"):
        rows_of(Shape(10_000, 1, 16, suffix_len=1), words)


def test_a_prompt_that_misses_its_length_is_refused(four_hundred: pa.Table, tokenizer: Any) -> None:
    batch = four_hundred.slice(0, 3).to_batches()[0]
    longer = [text + " é" for text in batch.column("prompt").to_pylist()]
    tampered = batch.set_column(1, "prompt", pa.array(longer))
    assert generator.check_lengths(batch, tokenizer, 8) == 3
    with pytest.raises(ValueError, match=r"prompt 0: expected 512 tokens, the text encodes to"):
        generator.check_lengths(tampered, tokenizer, 8)


def byte_tokenizer(extra: list[str], merges: list[tuple[str, str]], split: bool = True) -> PreTrainedTokenizerFast:
    """Single characters, plus the tokens `extra`, reached only through `merges`."""
    vocab = {token: i for i, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *extra])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_words_that_the_tokenizer_itself_never_produces_are_left_out() -> None:
    merges = [("Ġ", "a"), ("Ġ", "b"), ("Ġ", "c"), ("Ġ", "d")]
    unreachable = byte_tokenizer(["Ġa", "Ġb", "Ġnever", "Ġc", "Ġd"], merges)
    assert prompts.words(unreachable).to_pylist() == [" a", " b", " c", " d"]


def test_a_tokenizer_that_joins_words_is_refused() -> None:
    merges = [("Ġ", "a"), ("Ġ", "b"), ("Ġa", "Ġb")]
    joining = byte_tokenizer(["Ġa", "Ġb", "ĠaĠb"], merges, split=False)
    with pytest.raises(ValueError, match="found none"):
        prompts.words(joining)


def test_a_tokenizer_without_such_words_is_refused() -> None:
    with pytest.raises(ValueError, match="found none"):
        prompts.words(byte_tokenizer([], []))
