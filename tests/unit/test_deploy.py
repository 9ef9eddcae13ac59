"""Claim: systemd and Kubernetes accept the files of deploy/, which agree with the image and with the job's settings."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from connectors.spark_cluster.spark_home import packaged_spark_home
from pipelines.cli.app import app
from pipelines.cli.exits import Exit
from pipelines.cli.options import load_settings
from pipelines.cluster import kept_query
from pipelines.cluster.checkpoint_layout import AUDIT, BUILD_UNITS, DECIDE_OPS
from pipelines.job_settings import JobSettings
from pipelines.process.host import STOP_S_MAX

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "popstream.service"
KUBERNETES = ROOT / "deploy" / "kubernetes"
CLUSTER = ROOT / "deploy" / "kubernetes-cluster"
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


def of_cluster(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def driver() -> dict[str, Any]:
    (statefulset,) = of_cluster("driver.yaml")
    pod: dict[str, Any] = statefulset["spec"]["template"]["spec"]
    return pod


@pytest.fixture
def settings_of_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in the Secret, and no variables of this machine."""
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)
    (secret,) = of_cluster("settings.yaml")
    file = tmp_path / "job.toml"
    file.write_text(secret["stringData"][file.name])
    return file


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
    for kustomization in (resource("kustomization.yaml"), *of_cluster("kustomization.yaml")):
        (image,) = kustomization["images"]
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


@pytest.mark.parametrize("name", ["settings.yaml", "rbac.yaml", "service.yaml", "driver.yaml", "executor.yaml"])
@pytest.mark.parametrize("release", [KUBERNETES_OLDEST, kubernetes_validate.latest_version()])
def test_resources_of_a_cluster_fit_the_schema_of_kubernetes(name: str, release: str) -> None:
    for one in of_cluster(name):
        kubernetes_validate.validate(one, release, strict=True)


def test_the_driver_of_a_cluster_is_submitted_as_its_manifest_says(
    driver: dict[str, Any], settings_of_cluster: Path
) -> None:
    """By `popstream submit --print`, with the settings of the Secret."""
    (container,) = driver["containers"]
    values = {one["name"]: one["value"] for one in container["env"]}
    args = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in container["args"]]
    args = [word.replace("/etc/popstream/settings", str(settings_of_cluster.parent)) for word in args]
    done = CliRunner().invoke(app, [*args, "--print", "--var", str(ROOT / "var")])
    assert done.exit_code == 0, done.stderr
    assert done.stderr == "", "every setting has an effect"
    words = shlex.split(done.stdout)
    assert words[words.index("--master") + 1] == "k8s://https://kubernetes.default.svc:443", "Spark wants the port, too"
    assert words[words.index("--deploy-mode") + 1] == "client"
    for line in ("spark.executor.instances=4", "spark.pyspark.python=python3.11", "spark.driver.port=7078"):
        assert line in words
    assert words[words.index("--checkpoint") + 1] == values["CHECKPOINT"]
    assert words[words.index("--tables") + 1] == values["TABLES"]


def test_the_settings_of_a_cluster_name_what_its_manifests_have(
    driver: dict[str, Any], settings_of_cluster: Path, dockerfile: str
) -> None:
    conf = load_settings(settings_of_cluster).spark_conf
    (statefulset,), (service,) = of_cluster("driver.yaml"), of_cluster("service.yaml")
    (container,) = driver["containers"]
    name, headless = statefulset["metadata"]["name"], service["metadata"]["name"]
    assert (statefulset["spec"]["replicas"], statefulset["spec"]["serviceName"]) == (1, headless)
    assert service["spec"]["selector"] == statefulset["spec"]["template"]["metadata"]["labels"]
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert conf["spark.kubernetes.driver.pod.name"] == f"{name}-0"
    assert conf["spark.driver.host"] == f"{name}-0.{headless}"
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert conf["spark.driver.port"] == str(ports["driver"])
    assert conf["spark.driver.blockManager.port"] == str(ports["blocks"])
    assert f"POPSTREAM_METRICS_PORT={ports['metrics']}" in dockerfile
    assert {one["port"]: one["targetPort"] for one in service["spec"]["ports"]} == {
        at: port for port, at in ports.items()
    }
    mounts = {
        volume["name"]: mount["mountPath"]
        for volume in driver["volumes"]
        for mount in container["volumeMounts"]
        if mount["name"] == volume["name"]
    }
    assert conf["spark.kubernetes.executor.podTemplateFile"] == f"{mounts['executor']}/executor.yaml"
    (settings,) = of_cluster("settings.yaml")
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in driver["volumes"] if "secret" in volume}
    assert secrets == {"settings": settings["metadata"]["name"]}
    (kustomization,) = of_cluster("kustomization.yaml")
    (generated,) = kustomization["configMapGenerator"]
    configs = {volume["name"]: volume["configMap"]["name"] for volume in driver["volumes"] if "configMap" in volume}
    assert (configs, generated["files"]) == ({"executor": generated["name"]}, ["executor.yaml"])
    python = re.search(r"PYTHON_IMAGE=python:(3\.\d+)", dockerfile)
    assert python is not None
    assert f"--python=python{python[1]}" in container["args"], "the driver's version"
    # Spark's own names: one that is mistyped would have no effect.
    jars = packaged_spark_home() / "jars"
    known = b"".join(
        archive.read(name)
        for jar in (*jars.glob("spark-kubernetes_*.jar"), *jars.glob("spark-core_*.jar"))
        for archive in [zipfile.ZipFile(jar)]
        for name in ("org/apache/spark/deploy/k8s/Config$.class", "org/apache/spark/internal/config/package$.class")
        if name in archive.namelist()
    )
    assert [key for key in conf if key.encode() not in known] == []


def test_the_driver_of_a_cluster_may_do_what_spark_does_and_no_more(driver: dict[str, Any]) -> None:
    account, role, binding = of_cluster("rbac.yaml")
    assert driver["serviceAccountName"] == account["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == [account["metadata"]["name"]]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    allowed = {name: set(rule["verbs"]) for rule in role["rules"] for name in rule["resources"]}
    assert set(allowed) == {"pods", "configmaps"}
    assert all({"get", "list", "create", "delete", "deletecollection"} <= verbs for verbs in allowed.values())
    assert {"watch", "patch"} <= allowed["pods"]


def test_pods_of_a_cluster_keep_to_the_restricted_security_standard(driver: dict[str, Any], dockerfile: str) -> None:
    (executor,) = of_cluster("executor.yaml")
    user = re.search(r"useradd --uid (\d+)", dockerfile)
    assert user is not None
    assert {driver["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user[1])}
    for pod in (driver, executor["spec"]):
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert pod["enableServiceLinks"] is False
    assert executor["spec"]["automountServiceAccountToken"] is False
    (container,) = driver["containers"]
    (volumes,) = re.findall(r"^VOLUME (.+)$", dockerfile, re.MULTILINE)
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {*json.loads(volumes), container["workingDir"]} <= mounts


def test_the_pod_of_a_driver_waits_until_its_queries_have_stopped(driver: dict[str, Any]) -> None:
    assert driver["terminationGracePeriodSeconds"] > len({AUDIT, BUILD_UNITS, DECIDE_OPS}) * kept_query.STOP_S


def test_a_mistyped_field_does_not_fit_the_schema() -> None:
    statefulset = resource("statefulset.yaml")
    statefulset["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(statefulset, KUBERNETES_OLDEST, strict=True)


def kustomized(folder: Path) -> dict[str, dict[str, Any]]:
    """What kustomize makes of a folder, by kind."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    command = [kubectl, "kustomize", str(folder)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return {one["kind"]: one for one in yaml.safe_load_all(rendered)}


def test_kustomize_has_every_resource_of_a_cluster() -> None:
    kinds = kustomized(CLUSTER)
    assert sorted(kinds) == ["ConfigMap", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount", "StatefulSet"]
    pod = kinds["StatefulSet"]["spec"]["template"]["spec"]
    names = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
    assert names == [kinds["ConfigMap"]["metadata"]["name"]]
    assert yaml.safe_load(kinds["ConfigMap"]["data"]["executor.yaml"]) == of_cluster("executor.yaml")[0]
    assert pod["containers"][0]["image"] == pod_of("restore.yaml")["containers"][0]["image"]


def test_kustomize_has_every_resource_but_the_restore() -> None:
    kinds = kustomized(KUBERNETES)
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
