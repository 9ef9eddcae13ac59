"""Claim: systemd and Kubernetes accept the files of deploy/, which agree with the image and with the job's settings."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pipelines.cli.exits import Exit
from pipelines.job_settings import JobSettings
from pipelines.process.host import STOP_S_MAX

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "popstream.service"
KUBERNETES = ROOT / "deploy" / "kubernetes"
KUBERNETES_OLDEST = "1.29"
"""The first release with the access mode ReadWriteOncePod."""
NEEDS_A_PERSON = {Exit.INVALID, Exit.CORRUPT}
# docs/settings.md has them.
NOT_SETTINGS = {"POPSTREAM_JARS", "POPSTREAM_VAR"}


class Unit(configparser.RawConfigParser):
    """A unit of systemd, whose names have capital letters and may repeat."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    unit = Unit(strict=False, delimiters=["="])
    unit.read(UNIT, encoding="utf-8")
    return unit["Service"]


def resource(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((KUBERNETES / name).read_text(encoding="utf-8"))
    return loaded


def pod_of(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = resource(name)["spec"]["template"]["spec"]
    return pod


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def test_every_variable_is_a_setting(compose: dict[str, Any], dockerfile: str) -> None:
    """The job refuses others, so these must be right; and so must those that are there as comments."""
    settings = (KUBERNETES / "settings.yaml").read_text(encoding="utf-8")
    named = {
        *re.findall(r"POPSTREAM_\w+(?==)", UNIT.read_text(encoding="utf-8")),
        *re.findall(r"POPSTREAM_\w+(?==)", dockerfile),
        *compose["services"]["job"]["environment"],
        *re.findall(r"POPSTREAM_\w+(?=:)", settings),
    }
    assert "POPSTREAM_KAFKA_CONFIG" in named
    assert named - NOT_SETTINGS <= {f"POPSTREAM_{field.upper()}" for field in JobSettings.model_fields}


def test_images_have_the_version_of_the_project(compose: dict[str, Any]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert metadata.version("popstream") == version
    assert compose["services"]["job"]["image"] == f"popstream:{version}"
    assert pod_of("restore.yaml")["containers"][0]["image"] == f"popstream:{version}"
    (image,) = resource("kustomization.yaml")["images"]
    assert (image["name"], image["newTag"]) == ("popstream", version)


def test_a_restore_gets_the_image_of_the_job() -> None:
    """By the command that its header has: the kustomization does not know it."""
    text = (KUBERNETES / "restore.yaml").read_text(encoding="utf-8")
    (command,) = re.findall(r"sed \"(.*?)\"", text)
    image = "registry.example.com/team/popstream:9.9.9"
    done = subprocess.run(
        ["sed", command.replace("$IMAGE", image), KUBERNETES / "restore.yaml"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    (container,) = yaml.safe_load(done.stdout)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == image
    assert "get statefulset/popstream -o jsonpath='{.spec.template.spec.containers[0].image}'" in text


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    # It also looks for the program, which is not installed here.
    text, replaced = re.subn(r"ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(encoding="utf-8"))
    assert replaced == 1
    copy = tmp_path / UNIT.name
    copy.write_text(text, encoding="utf-8")
    verified = subprocess.run([analyze, "verify", copy], capture_output=True, text=True, check=False, timeout=60)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def test_systemd_restarts_what_a_restart_may_help(service: configparser.SectionProxy) -> None:
    assert service["Restart"] == "on-failure"
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == NEEDS_A_PERSON


def test_every_supervisor_waits_until_the_job_has_stopped(
    service: configparser.SectionProxy, compose: dict[str, Any]
) -> None:
    graces_s = {
        int(service["TimeoutStopSec"]),
        int(compose["services"]["job"]["stop_grace_period"].removesuffix("s")),
        pod_of("statefulset.yaml")["terminationGracePeriodSeconds"],
    }
    assert min(graces_s) > STOP_S_MAX
    # The JVM must not get the signal: the job needs it to finish the micro-batch.
    assert service["KillMode"] == "mixed"


@pytest.mark.parametrize("name", ["settings.yaml", "service.yaml", "statefulset.yaml", "restore.yaml"])
@pytest.mark.parametrize("release", [KUBERNETES_OLDEST, kubernetes_validate.latest_version()])
def test_resources_fit_the_schema_of_kubernetes(name: str, release: str) -> None:
    kubernetes_validate.validate(resource(name), release, strict=True)


def test_a_mistyped_field_does_not_fit_the_schema() -> None:
    statefulset = resource("statefulset.yaml")
    statefulset["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(statefulset, KUBERNETES_OLDEST, strict=True)


def test_kustomize_has_every_resource_but_the_restore() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    command = [kubectl, "kustomize", str(KUBERNETES)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    kinds = {one["kind"]: one for one in yaml.safe_load_all(rendered)}
    assert sorted(kinds) == ["ConfigMap", "Service", "StatefulSet"]
    template = kinds["StatefulSet"]["spec"]["template"]
    assert template["spec"]["containers"][0]["image"] == pod_of("restore.yaml")["containers"][0]["image"]
    assert kinds["Service"]["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert kinds["StatefulSet"]["spec"]["serviceName"] == kinds["Service"]["metadata"]["name"]


@pytest.mark.parametrize("name", ["statefulset.yaml", "restore.yaml"])
def test_pods_keep_to_the_restricted_security_standard_and_to_the_image(name: str, dockerfile: str) -> None:
    pod = pod_of(name)
    (container,) = pod["containers"]
    user = re.search(r"useradd --uid (\d+)", dockerfile)
    assert user is not None
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert {pod["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user[1])}
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    # With the links of services that of a Service popstream-kafka would be the setting POPSTREAM_KAFKA_PORT.
    assert pod["enableServiceLinks"] is False
    (volumes,) = re.findall(r"^VOLUME (.+)$", dockerfile, re.MULTILINE)
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(json.loads(volumes)) <= mounts.keys()
    temporary = next(volume for volume in pod["volumes"] if volume["name"] == mounts["/tmp"])  # noqa: S108 - the pod's
    assert "medium" not in temporary["emptyDir"]


def test_probes_ask_the_port_of_the_image(dockerfile: str) -> None:
    (container,) = pod_of("statefulset.yaml")["containers"]
    port, api = container["ports"]
    settings = (KUBERNETES / "settings.yaml").read_text(encoding="utf-8")
    assert f'# POPSTREAM_API_PORT: "{api["containerPort"]}"' in settings, "as one gets it by removing the sign"
    assert [one["targetPort"] for one in resource("service.yaml")["spec"]["ports"]] == [port["name"], api["name"]]
    assert f"EXPOSE {port['containerPort']}\n" in dockerfile
    assert f"POPSTREAM_METRICS_PORT={port['containerPort']}" in dockerfile
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/live",
        "readinessProbe": "/ready",
        "livenessProbe": "/live",
    }
    assert {probe["port"] for probe in probes.values()} == {port["name"]}


def test_the_restore_has_the_volume_and_the_settings_of_the_job() -> None:
    statefulset = resource("statefulset.yaml")
    job, restore = pod_of("statefulset.yaml"), pod_of("restore.yaml")
    (claim,) = statefulset["spec"]["volumeClaimTemplates"]
    claimed = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in restore["volumes"]
        if "persistentVolumeClaim" in volume
    }
    name = claim["metadata"]["name"]
    assert claimed == {name: f"{name}-{statefulset['metadata']['name']}-0"}
    assert [volume for volume in restore["volumes"] if volume["name"] != name] == job["volumes"]
    for field in ("envFrom", "volumeMounts", "securityContext", "resources"):
        assert restore["containers"][0][field] == job["containers"][0][field], field
    assert restore["restartPolicy"] == "Never"
