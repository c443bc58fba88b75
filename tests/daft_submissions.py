"""What the installed Daft submits to its executor, without an engine: `python daft_submissions.py < options.json`.

A process of its own, since Daft's runner can be set once. Prints a JSON list of [prefix or null, prompts].
"""

import json
import sys
from typing import Any

import daft
from daft.execution import vllm as executors
from daft.functions import prompt

submissions: list[tuple[str | None, list[str]]] = []


class Recorder(executors.DummyVLLMExecutor):
    def submit(self, prefix: str | None, prompts: list[str], rows: Any) -> None:
        submissions.append((prefix, list(prompts)))
        super().submit(prefix, prompts, rows)


def main() -> None:
    executors.LocalVLLMExecutor = Recorder
    daft.set_runner_native()
    given = json.load(sys.stdin)
    runs = []
    for texts in given["datasets"]:
        submissions.clear()
        df = daft.from_pydict({"prompt": texts})
        output = prompt(df["prompt"], provider="vllm-prefix-caching", model="none", **given["options"])
        assert len(df.with_column("output", output).collect()) == len(texts)
        runs.append(list(submissions))
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
