"""The cluster file, the RayJob and the container file: against Ray's own schema and code, and against each other."""

import json
import re
from pathlib import Path
from typing import Any

import config
import jsonschema
import pytest
import ray
import yaml
from harness import overrides
from packaging.requirements import Requirement

SUITE = Path(__file__).resolve().parents[1] / "benchmarking" / "vllm"
AUTOSCALER = Path(ray.__file__).parent / "autoscaler"
# KubeRay's RayJobSpec, api version ray.io/v1.
RAYJOB_FIELDS = {
    "activeDeadlineSeconds",
    "backoffLimit",
    "clusterSelector",
    "deletionStrategy",
    "entrypoint",
    "entrypointNumCpus",
    "entrypointNumGpus",
    "entrypointResources",
    "jobId",
    "managedBy",
    "metadata",
    "preRunningDeadlineSeconds",
    "rayClusterSpec",
    "runtimeEnvYAML",
    "shutdownAfterJobFinishes",
    "submissionMode",
    "submitterConfig",
    "submitterPodTemplate",
    "suspend",
    "ttlSecondsAfterFinished",
}


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    return dict(yaml.safe_load((SUITE / "ray-cluster.yaml").read_text()))


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    return dict(yaml.safe_load((SUITE / "rayjob.yaml").read_text()))


def pins(name: str) -> dict[str, Requirement]:
    lines = [line for line in (SUITE / name).read_text().splitlines() if line and not line.startswith("#")]
    return {pin.name: pin for pin in map(Requirement, lines)}


def test_the_cluster_file_fits_rays_schema_and_its_own_rules(cluster: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    jsonschema.validate(cluster, json.loads((AUTOSCALER / "ray-schema.json").read_text()))
    validate_config(prepare_config(cluster))


def test_the_schema_refuses_a_misspelt_key(cluster: dict[str, Any]) -> None:
    schema = json.loads((AUTOSCALER / "ray-schema.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**cluster, "idle_timeout": 60}, schema)


def test_the_cluster_file_brings_a_gpu_for_each_engine_of_config(cluster: dict[str, Any]) -> None:
    worker = cluster["available_node_types"]["worker"]
    # One L4 in a g6.xlarge. The file is for the published setting, which config.py holds.
    assert worker["min_workers"] == worker["max_workers"] == cluster["max_workers"]
    assert worker["max_workers"] == config.CONCURRENCY * config.GPUS_PER_ENGINE


def test_rays_own_code_for_kuberay_reads_the_rayjobs_cluster(job: dict[str, Any]) -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr as derive

    config_of_cluster = derive({"metadata": {"name": "c", "namespace": "n"}, "spec": job["spec"]["rayClusterSpec"]})
    types = config_of_cluster["available_node_types"]
    assert types["headgroup"]["resources"].get("GPU", 0) == 0
    assert types["engines"]["resources"]["GPU"] == 1
    assert types["engines"]["min_workers"] == types["engines"]["max_workers"] == 8
    jsonschema.validate(config_of_cluster, json.loads((AUTOSCALER / "ray-schema.json").read_text()))


def test_the_rayjob_has_fields_that_kuberay_knows_and_is_not_repeated(job: dict[str, Any]) -> None:
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job["spec"]) <= RAYJOB_FIELDS
    assert job["spec"]["backoffLimit"] == job["spec"]["submitterConfig"]["backoffLimit"] == 0


def test_the_rayjob_runs_a_script_of_the_image_with_settings_that_config_takes(job: dict[str, Any]) -> None:
    from ray.runtime_env import RuntimeEnv

    script = job["spec"]["entrypoint"].removeprefix("python /suite/")
    assert "run(__file__" in (SUITE / script).read_text()
    assert "COPY . /suite" in (SUITE / "Dockerfile").read_text()
    variables = RuntimeEnv(**yaml.safe_load(job["spec"]["runtimeEnvYAML"])).env_vars()
    knobs = dict(vars(config))
    overrides.apply(knobs, variables)
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert knobs["CONCURRENCY"] * knobs["GPUS_PER_ENGINE"] == group["replicas"] * gpus
    assert knobs["RESULTS_PATH"].startswith("s3://")


def test_versions_agree_with_the_pins(job: dict[str, Any]) -> None:
    ray_pin = pins("requirements.txt")["ray"]
    assert ray_pin.specifier.contains(job["spec"]["rayClusterSpec"]["rayVersion"])
    # `ray up`, `ray job submit` and the job server come with this extra.
    assert "default" in ray_pin.extras
    assert "default" in pins("requirements-cpu.txt")["ray"].extras


def test_the_container_file_installs_the_pins_and_copies_only_what_is_there() -> None:
    text = (SUITE / "Dockerfile").read_text()
    sources = re.findall(r"^COPY (\S+) \S+$", text, re.MULTILINE)
    assert sources
    assert all((SUITE / source).exists() for source in sources)
    assert "-r /tmp/requirements.txt" in text
    assert "python3.12 -m venv" in text
    assert "3.12" in (SUITE / "requirements.txt").read_text().splitlines()[0]
