"""Model sizes, rates and floors against values worked out by hand."""

from typing import Any

import pytest
from harness.prediction import feeding, forecast, gpus, model_shape, prefix_tree, roofline
from harness.prediction.engine_state import Limits
from harness.prediction.model_shape import ModelShape
from harness.prediction.roofline import Totals
from prompt_sets import KNOBS, dataset

QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA_31_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LLAMA_32_1B = LLAMA_31_8B | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
QWEN25_05B = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
ROOMY = Limits(1_000_000, 1024, 16384, 128)


def qwen3_8b() -> ModelShape:
    return model_shape.from_config(QWEN3_8B)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # As published: untied and tied embeddings, norms of queries and keys, biases.
        (QWEN3_8B, 8_190_735_360),
        (LLAMA_31_8B, 8_030_261_248),
        (LLAMA_32_1B, 1_235_814_400),
        (QWEN25_05B, 494_032_768),
    ],
)
def test_parameters_are_those_that_the_models_have(config: dict[str, Any], parameters: int) -> None:
    assert model_shape.from_config(config).parameters == parameters


def test_qwen3_8b_by_hand() -> None:
    model = qwen3_8b()
    # Query and output 4096 x 4096, key and value 4096 x 1024, gate, up and down 4096 x 12288; 36 layers.
    assert model.layer_matrix_parameters == 36 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288)
    # Keys and values of 8 heads of 128 numbers of 2 bytes in 36 layers.
    assert model.kv_token_bytes == 147_456
    cost = roofline.step_cost(model, gpus.find("H200"))
    # 13.89 GFLOP a token at 790 TFLOP/s.
    assert cost.token_s == pytest.approx(2 * 6_945_767_424 / 790e12)
    # Scores and weighted values: 2 x 2 x 32 x 128 operations in each of 36 layers.
    assert cost.pair_s == pytest.approx(589_824 / 790e12)
    # 4096 x 151936 output projection.
    assert cost.sample_s == pytest.approx(2 * 622_329_856 / 790e12)
    # All but the input embedding, 2 bytes each, at 4.3 TB/s: 3.5 ms.
    assert cost.weights_s == pytest.approx((8_190_735_360 - 622_329_856) * 2 / 4.3e12)
    assert cost.context_s == pytest.approx(147_456 / 4.3e12)


def test_llama_3_1_8b_by_hand() -> None:
    model = model_shape.from_config(LLAMA_31_8B)
    assert model.kv_token_bytes == 2 * 32 * 8 * 128 * 2 == 131_072
    assert model.layer_matrix_parameters == 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert model.step_weight_bytes == (8_030_261_248 - 128256 * 4096) * 2


def test_tied_embeddings_are_stored_once_and_read_by_every_step() -> None:
    tied = model_shape.from_config(LLAMA_32_1B)
    untied = model_shape.from_config(LLAMA_32_1B | {"tie_word_embeddings": False})
    assert untied.weight_bytes - tied.weight_bytes == 128256 * 2048 * 2
    assert untied.step_weight_bytes == tied.step_weight_bytes == tied.weight_bytes


def test_the_kv_cache_of_an_h200_is_what_vllm_finds_there() -> None:
    # 735,000 tokens measured with Qwen3-8B at 0.9 utilisation.
    assert roofline.kv_tokens(qwen3_8b(), gpus.find("H200")) == pytest.approx(735_000, rel=0.01)
    with pytest.raises(ValueError, match=r"weights of 16\.4 GB to fit in 1 \S+, found room for"):
        roofline.kv_tokens(qwen3_8b(), gpus.find("L4")._replace(memory_bytes=16 * 10**9))


def test_floor_of_a_small_job_by_hand() -> None:
    # 100 prompts of 512 tokens of which 256 are found, 128 tokens out, on one H200.
    totals = Totals(rows=100, prompt_tokens=51_200, possible_hits=25_600, prefill_pairs=9_000_000)
    floor = roofline.floor(totals, 12_800, roofline.step_cost(qwen3_8b(), gpus.find("H200")), ROOMY, 1, 16)
    prefill_flop = 25_600 * 13.891534848e9 + 9e6 * 589_824 + 100 * 1.244659712e9
    assert floor.prefill_s == pytest.approx(prefill_flop / 790e12, rel=1e-6)
    # Each prompt's 127 later tokens see 512 prompt tokens and 1 to 127 generated ones.
    context = 100 * (127 * 512 + 127 * 128 / 2)
    decode_flop = 12_700 * (13.891534848e9 + 1.244659712e9) + context * 589_824
    assert floor.decode_compute_s == pytest.approx(decode_flop / 790e12, rel=1e-6)
    # All 100 fit in one batch: the weights are read 127 times.
    decode_bytes = 127 * 15_136_811_008 + context * 147_456
    assert floor.decode_memory_s == pytest.approx(decode_bytes / 4.3e12, rel=1e-6)
    assert floor.wall_s == max(floor.prefill_s + floor.decode_compute_s, floor.decode_memory_s)


def test_floor_of_the_h200_runs_is_below_what_they_took() -> None:
    # 4,096 prompts of 539 tokens over 512 prefixes of 256 took 55.0 to 58.7 s, and near 40 s at best.
    pairs = 4096 * (539 * 540 - 256 * 257) // 2
    totals = Totals(4096, 4096 * 539, (4096 - 512) * 256, pairs)
    cost = roofline.step_cost(qwen3_8b(), gpus.find("H200"))
    assert 28 < roofline.floor(totals, 4096 * 128, cost, ROOMY, 1, 16).wall_s < 40


@pytest.mark.parametrize("strategy", feeding.STRATEGIES)
@pytest.mark.parametrize(("engines", "kv_blocks", "outputs"), [(1, 4096, 4), (2, 64, 60), (2, 4096, 60)])
def test_no_forecast_is_faster_than_the_floor(strategy: str, engines: int, kv_blocks: int, outputs: int) -> None:
    data = dataset(outputs=outputs)
    cost = roofline.step_cost(qwen3_8b(), gpus.find("H200"))
    limits = Limits(kv_blocks, 16, 128, outputs)
    found = forecast.forecast(strategy, data, KNOBS | {"CONCURRENCY": engines}, limits, cost)
    totals = prefix_tree.totals(data.prompts)
    floor = roofline.floor(totals, int(data.prompts.outputs.sum()), cost, limits, engines, 16)
    assert 0 < floor.wall_s <= found.wall_s


def test_more_engines_and_bigger_batches_lower_the_floor_and_less_cache_raises_it() -> None:
    totals = Totals(10_000, 5_120_000, 2_560_000, 900_000_000)
    cost = roofline.step_cost(qwen3_8b(), gpus.find("H200"))
    floors = [
        roofline.floor(totals, 5_000_000, cost, limits, engines, 16).wall_s
        for limits, engines in ((ROOMY, 1), (ROOMY, 2), (ROOMY._replace(kv_blocks=500), 1))
    ]
    assert floors[1] == pytest.approx(floors[0] / 2)
    assert floors[2] > floors[0]


def test_models_and_gpus_that_are_not_understood_are_refused() -> None:
    for key, value in {"num_experts": 64, "kv_lora_rank": 512, "sliding_window": 4096}.items():
        with pytest.raises(ValueError, match=rf"full attention .* found {key}"):
            model_shape.from_config(QWEN3_8B | {key: value})
    with pytest.raises(ValueError, match=r"GPU 'GTX 1080': expected one of \['A100'"):
        gpus.find("GTX 1080")
    assert gpus.find("NVIDIA H200").name == gpus.find("h200").name == "H200"
    assert gpus.find("NVIDIA A100-SXM4-80GB").name == "A100"
