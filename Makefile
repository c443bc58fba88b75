# Targets set up what they need: a virtual environment, packages, the local model and datasets.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
SUITE := benchmarking/vllm
GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c GPU)
REQUIREMENTS := $(SUITE)/$(if $(filter-out 0,$(GPU)),requirements.txt,requirements-cpu.txt)
# Jupyter brings rfc3987-syntax along: whoever imports Ray imports it, and for a second it does nothing but compile
# grammars, in each of Ray's eight processes. Without it jsonschema leaves one check of URLs out.
UNWANTED := rfc3987-syntax $(if $(findstring cpu,$(REQUIREMENTS)),torchvision torchaudio torchcodec)
PROFILE := $(if $(filter-out 0,$(GPU)),local-gpu,local-cpu)
LOCAL := .local
MODEL := $(LOCAL)/model/config.json
DATASET := $(LOCAL)/datasets/512_0-5_16.manifest.json
# A Ray of their own, and no hub: local runs are the same wherever they run.
LOCALLY := RAY_ADDRESS=local HF_HUB_OFFLINE=1 BENCH_PROFILE=$(PROFILE)

# The published six take a minute each; others: make bench STRATEGIES="naive-batch prefix-planned".
STRATEGIES := naive-batch naive-batch-sorted continuous-batch continuous-batch-sorted prefix-bucketing ray-data

.DEFAULT_GOAL := help
.PHONY: help setup bench serving report test test-cluster test-slow lint chromium clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/installed $(MODEL) $(DATASET)  ## .venv with the pinned packages, the local model, its dataset

bench: setup  ## the published six, one after another, on this machine; one table
	$(LOCALLY) $(BIN)/python $(SUITE)/compare.py --trials 1 --twin none --new --strategies $(STRATEGIES)

serving: setup  ## live traffic on a vLLM server: baseline and two controls; table and page, 6 minutes on 2 cores
	$(LOCALLY) $(BIN)/python $(SUITE)/serving-scorecard.py

report: setup  ## the committed records as a page: benchmarking/vllm/results/report.html
	BENCH_RESULTS_PATH=results $(BIN)/python $(SUITE)/compare.py --report

test: setup $(VENV)/installed-dev lint chromium  ## lint, types, then the tests but those of the next two
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-cluster: setup $(VENV)/installed-dev  ## strategies on several Ray nodes, nodes and engines killed; half an hour
	$(BIN)/python -m pytest -m cluster

test-slow: setup $(VENV)/installed-dev  ## tests that take minutes and a quiet machine
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/installed-dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

chromium:
	command -v chromium > /dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium)

clean:  ## removes what the other targets made
	rm -rf $(VENV) $(LOCAL)

$(VENV)/installed: $(REQUIREMENTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r $<
	$(BIN)/pip uninstall --quiet --yes $(UNWANTED)
	touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

$(MODEL): $(VENV)/installed $(SUITE)/harness/data/local_model.py
	cd $(SUITE) && $(BIN)/python -m harness.data.local_model $(CURDIR)/$(LOCAL)/model
	touch $@

$(DATASET): $(MODEL) $(SUITE)/harness/data/generator.py $(SUITE)/harness/data/prompts.py
	cd $(SUITE) && $(LOCALLY) $(BIN)/python -m harness.data.generator --rows 512 --prefixes 16 > /dev/null
	touch $@
