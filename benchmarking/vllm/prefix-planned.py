"""Planned prefixes: prompts in order of their token ids, whole groups to an engine, admitted as its KV cache allows.

python benchmarking/vllm/prefix-planned.py
"""

import pyarrow as pa
from harness.planning.answers import Answers
from harness.planning.fleet import Fleet
from harness.planning.reading import windows
from harness.run import run


def prefix_planned() -> pa.Table:
    answers = Answers()
    Fleet().run(windows(without=answers.done), answers)
    return answers.table()


if __name__ == "__main__":
    run(__file__, prefix_planned)
