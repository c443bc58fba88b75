"""The parts of vLLM's v1 engine that prefix-planned uses."""
