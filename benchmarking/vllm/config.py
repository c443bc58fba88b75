"""Every knob of the suite. Edit this file, or override a knob for one command:

    BENCH_CONCURRENCY=2 python benchmarking/vllm/naive-batch.py
    BENCH_PROFILE=local-cpu python benchmarking/vllm/naive-batch.py

An override is `BENCH_` + the knob's name and is parsed by the knob's type (`none` clears an optional one).
`BENCH_PROFILE` names a file in `profiles/` that sets many knobs at once: it wins over what is edited here, and single
overrides win over it.
An unknown or unreadable override stops the run and names what was expected.
"""

from typing import Any

from harness import overrides, quiet, requirements, results_block

# --- Model and data -----------------------------------------------------------------------------------------

# A hub id or a local folder; a relative folder is looked up from this file, then from where the script was started.
MODEL_NAME: str = "Qwen/Qwen3-8B"
# vLLM's load format. "auto" reads real weights; "dummy" draws random ones: same arithmetic, no download.
LOAD_FORMAT: str = "auto"
# One Parquet file or a folder of them, local (relative: as above) or S3, with the columns `id` and `prompt`.
INPUT_PATH: str = "s3://my-bucket/vllm-prefix-caching-partitioned/200k_0-5_512.parquet"
# Where generate_data.ipynb writes its datasets: a local folder or an S3 prefix.
DATASETS_PATH: str = "s3://my-bucket/vllm-prefix-caching-partitioned"
# Prompts a dataset; published: 200,000.
DATASET_ROWS: int = 200_000
# Parquet files a dataset; published: 8. No batch of Daft 0.7.26 crosses files, so a static batch is no larger than one.
DATASET_FILES: int = 8
# One seed gives the same files on every machine; published: 42.
DATASET_SEED: int = 42
# "words": exactly as many prompts, of exactly the length, as asked for. "published": vLLM's sampler, which drops the
# remainder and misses some lengths, to make the published data again.
DATASET_SAMPLER: str = "words"
# Endpoint of an S3-compatible store; none means AWS. Credentials come from the environment, never from here.
S3_ENDPOINT_URL: str | None = None

# --- Output length ------------------------------------------------------------------------------------------

# Tokens generated for every prompt while OUTPUT_LEN_DISTRIBUTION is "fixed" (the published setting).
OUTPUT_LEN: int = 128
# "fixed", or "uniform" / "log-uniform": each prompt gets its own length between the two bounds, in tokens, drawn
# from a hash of the prompt and so the same in every run and strategy. Only then do requests end at different times.
OUTPUT_LEN_DISTRIBUTION: str = "fixed"
OUTPUT_LEN_MIN: int = 16
OUTPUT_LEN_MAX: int = 512

# --- Engines: the same limits reach every strategy ----------------------------------------------------------

# Engines (data-parallel copies of the model), each on GPUS_PER_ENGINE GPUs. The published runs used 128.
CONCURRENCY: int = 128
# GPUs an engine; above 1 the model is split by tensor parallelism. 0 runs on CPU.
GPUS_PER_ENGINE: int = 1
# GPUs that Ray only counts, of nodes started with `--num-gpus` on a machine without any: vLLM's CPU engine runs and
# touches none. For trying a cluster of many nodes on one machine; no number of such a run says anything about GPUs.
LOGICAL_GPUS: bool = False
# Longest prompt + output in tokens; the published 4,096.
MAX_MODEL_LEN: int = 4096
# Sequences in one engine step. Unset, vLLM takes 1,024 for LLM but 128 for AsyncLLM on an H200, so strategies would
# run under different limits; pinned, they are comparable. 1,024 is the higher of the two defaults.
MAX_NUM_SEQS: int = 1024
# Tokens in one engine step (prefill chunk + decodes). Unset: 16,384 for LLM, 2,048 for AsyncLLM on an H200.
MAX_NUM_BATCHED_TOKENS: int = 16384
# Share of GPU memory for weights, activations and KV cache, 0 to 1 (vLLM's default).
GPU_MEMORY_UTILIZATION: float = 0.9
# KV-cache size in bytes; none lets GPU_MEMORY_UTILIZATION decide. Cut it to see what happens when the shared
# prefixes no longer fit.
KV_CACHE_MEMORY_BYTES: int | None = None
# Tokens a KV block. 16 is CUDA's default; pinned so that CPU runs (default 128) see the same prefix sharing.
BLOCK_SIZE: int = 16
# Skips compilation and CUDA graphs: faster start, slower steps.
ENFORCE_EAGER: bool = False
ENABLE_PREFIX_CACHING: bool = True
# Logits processors ("module:Class") added to every engine, comma separated; none for a plain run.
LOGITS_PROCESSORS: str | None = None

# --- How each strategy feeds its engines --------------------------------------------------------------------

# Prompts a call of LLM.generate (the static batch); published.
NAIVE_BATCH_SIZE: int = 512
# Daft partitions of the static strategies; published. More than engines, so that all of them get work.
NAIVE_PARTITIONS: int = 32
# Prompts that Daft's provider submits at a time; published.
CONTINUOUS_BATCH_SIZE: int = 512
# Daft partitions of the provider's strategies. Published: 8. Daft 0.7.26 loses rows with more than one: the engines
# are told that submission is over as soon as the first partition ends (README, "Differences").
CONTINUOUS_PARTITIONS: int = 1
# Rows a Ray Data batch, and blocks an engine is given at a time. Ray 2.59 runs 4 batches of a block side by side, so
# 16 blocks of 64 rows or more keep 1,024 requests in flight.
RAY_BATCH_SIZE: int = 16
RAY_MAX_CONCURRENT_BATCHES: int = 16
# Blocks of the input: 16 for each of 128 engines. No engine is given more than its share at a time; otherwise the
# first to be ready takes a small dataset whole.
RAY_BLOCKS: int = 2048
# Daft's prefix router. Rows buffered before the first submission:
ROUTER_MAX_BUFFER_SIZE: int = 5000
# Rows that a bucket needs to be submitted as one;
ROUTER_MIN_BUCKET_SIZE: int = 16
# share of a prompt, 0 to 1, that neighbours must have in common to fall in one bucket;
ROUTER_PREFIX_MATCH_THRESHOLD: float = 0.33
# rows by which an engine may lead the least loaded one before a prefix is sent elsewhere.
ROUTER_LOAD_BALANCE_THRESHOLD: int = 256

# prefix-planned: most requests in flight in an engine. 512 is the largest batch for which vLLM keeps CUDA graphs by
# default; decode steps of more run without.
PLANNED_MAX_IN_FLIGHT: int = 512
# Requests admitted in a step, as a multiple of the rate at which a full engine ends them: 1 mixes prompts evenly with
# decodes, 0 admits whatever fits at once, in waves.
PLANNED_PACE: float = 1.0
# Prompt tokens (to compute, not cached) that are let add up before requests enter, together; 0 lets each enter alone,
# at most a 16th of a full engine's requests. vLLM launches the kernels of a step of more than 512 tokens one by one: a
# step of few prompts waits for that, one of many does not, and the pure decodes between them run as CUDA graphs.
PLANNED_BURST_TOKENS: int = 16384
# Tokens of the prompts that are planned together, in memory on the driver (4 bytes each, and twice for a while). A
# prefix is computed once an engine in each such window. The first window has a 16th of it, each next one twice as
# much, so that engines start early.
PLANNED_WINDOW_TOKENS: int = 128_000_000
# Engines that are replaced when they die, over the whole run. A row that kills every engine it runs in is found out
# with four.
PLANNED_RESTARTS: int = 4
# Where OUTPUT_PATH is set, seconds between files of finished rows: what a kill can cost beside the rows in flight.
PLANNED_PART_S: float = 2.0

# --- The machine and the harness ----------------------------------------------------------------------------

# Logical CPUs of a Ray that the script starts itself; none counts the cores. Ray Data's stages need about 8 and wait
# for them silently, so a small machine sets more than it has. Ignored on an existing cluster.
RAY_NUM_CPUS: int | None = None
# Records are appended here; a relative folder is looked up from this file. Not `results`, which holds the records that
# the READMEs quote: a run of yours does not change them. On S3, for a Ray job or a pod, each run is an object of its
# own; `python -m harness.remote_records` fetches them.
RESULTS_PATH: str = "../../.local/results"
# Folder for the answers (`id`, `output`), one Parquet file a run, named by its run_id; local (a relative one beside
# this file) or S3. None discards them once they are checked.
OUTPUT_PATH: str | None = None
# The suite's commit, for records of a copy that has no git repository; none asks git.
COMMIT: str | None = None
# Free-text label of a run, stored in its record.
RUN_LABEL: str | None = None
# Engine counters are read this often, in seconds; 0 switches the probe off (phases and counters are then null).
PROBE_INTERVAL_S: float = 1.0
# Seconds between a run's progress lines on stderr.
PROGRESS_INTERVAL_S: float = 10.0
# The run is stopped as failed when no engine generates a token for this long, in seconds, once they are up;
WATCHDOG_STALL_S: float = 120.0
# or when the engines are not up after this long. A first start of Qwen3-8B on an H200 takes 80 to 216 s.
WATCHDOG_START_S: float = 900.0

# --- Comparisons (compare.py) -------------------------------------------------------------------------------

# US dollars for one GPU for one hour, from your provider's bill; none leaves cost out of the report.
GPU_PRICE_PER_HOUR: float | None = None
# A strategy's process is stopped, and its trial recorded as failed, after this many seconds. The watchdog ends a stall
# much earlier; this bounds what it cannot see, such as a Ray that never comes up.
TRIAL_TIMEOUT_S: float = 7200.0
# Set by compare.py for each run it starts, so that records say which comparison, trial (block), place in the trial's
# random order and label they belong to. Leave them at none.
COMPARISON_ID: str | None = None
COMPARISON_TRIAL: int | None = None
COMPARISON_PLACE: int | None = None
COMPARISON_ARM: str | None = None

# --- Serving (serving-scorecard.py) -------------------------------------------------------------------------

# Server configurations: `baseline`, or one control changed: max_num_batched_tokens, max_num_seqs, kv_cache_memory_bytes
# (bytes), gpu_memory_utilization, chunked_prefill (on, off), admission_limit (requests inside; more are refused: 429).
SERVING_CONFIGURATIONS: str = "baseline,max_num_seqs=128,max_num_batched_tokens=2048"
# Admission limit of the configurations that do not change it; none queues without bound, as vLLM does.
SERVING_ADMISSION_LIMIT: int | None = None
# The service's targets. 95 % of requests have their first token within this many seconds of their arrival;
SERVING_TTFT_TARGET_S: float = 0.5
# 95 % of the gaps between tokens are at most this, in seconds;
SERVING_ITL_TARGET_S: float = 0.05
# 95 % of requests are over within this, in seconds; none sets no such target;
SERVING_E2E_TARGET_S: float | None = None
# and at most this share of the requests that their callers did not cancel fails or is refused, 0 to 1.
SERVING_ERROR_TARGET: float = 0.01
# A trace of your own, JSON Lines or Parquet (harness/serving/trace.py); none draws the mix below.
SERVING_TRACE: str | None = None
# Shares of the requests by family.
SERVING_MIX: str = "chat=0.6,long=0.15,agents=0.25"
# Tokens of each family: means, from which lengths spread evenly by half to both sides.
SERVING_CHAT_PROMPT_LEN: int = 256
SERVING_CHAT_OUTPUT_LEN: int = 128
SERVING_LONG_PROMPT_LEN: int = 2400
SERVING_LONG_OUTPUT_LEN: int = 192
# An agent's call: one of the shared prefixes, then a part of its own; SERVING_AGENT_BURST calls arrive at once.
SERVING_AGENT_PREFIX_LEN: int = 1024
SERVING_AGENT_PREFIXES: int = 32
SERVING_AGENT_PROMPT_LEN: int = 128
SERVING_AGENT_OUTPUT_LEN: int = 64
SERVING_AGENT_BURST: int = 4
# Share of the agents' calls that are cancelled in mid-stream, 0 to 1.
SERVING_AGENT_CANCELLED: float = 0.1
# "poisson", "gamma" (SERVING_BURSTINESS below 1: bursts), or "replay" (the trace's own times).
SERVING_ARRIVALS: str = "poisson"
SERVING_BURSTINESS: float = 0.5
# One seed gives the same requests and arrivals in every configuration.
SERVING_SEED: int = 42
# Rates a configuration: from a quarter of what the warm-up reached, doubled until the targets fail, then closer to the
# edge. Five show a curve.
SERVING_RATES: int = 5
# Seconds of arrivals at each rate, and seconds after them until the row ends whatever is still open.
SERVING_SECONDS_PER_RATE: float = 30.0
SERVING_DRAIN_S: float = 30.0
# Seconds that a caller waits for a whole answer.
SERVING_REQUEST_TIMEOUT_S: float = 60.0
# How often a refused caller comes back, after the server's Retry-After.
SERVING_RETRIES: int = 1
# Callers that wait for each other: requests in flight at most; none offers every request at its time.
SERVING_MAX_IN_FLIGHT: int | None = None
# Requests that warm each server up, and tell about what it can do; with another seed, so nothing of a row is cached.
SERVING_WARMUP_REQUESTS: int = 128

overrides.apply_or_exit(globals())
quiet.silence_libraries()
quiet.escape_the_unprintable()
requirements.name_missing_packages()

# --- Derived; nothing below is a knob -----------------------------------------------------------------------

# The published parameters: exactly OUTPUT_LEN tokens. With varying lengths the engine's scheduler sets both to each
# prompt's own (harness/output_length.py).
SAMPLING_PARAMS: dict[str, Any] = (
    {"min_tokens": OUTPUT_LEN, "max_tokens": OUTPUT_LEN}
    if OUTPUT_LEN_DISTRIBUTION == "fixed"
    else {"min_tokens": OUTPUT_LEN_MIN, "max_tokens": OUTPUT_LEN_MAX}
)


def print_benchmark_results(record: dict[str, Any]) -> None:
    """Prints a run's results and, as the last line, its record as JSON."""
    results_block.show(record)
