"""What can be said of the image and the compose file without a Docker engine."""

import json
import os
import re
import shutil
import subprocess
import venv
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import broker_state.compiled_form
from broker_state.compiled_form import build_folder

DOCKER = Path(__file__).parents[2] / "docker"
INSTRUCTION = re.compile(r"^(?P<name>[A-Z]+)\s+(?P<rest>.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [(found["name"], found["rest"]) for found in INSTRUCTION.finditer(text)]


def rests(instructions: list[tuple[str, str]], wanted: str) -> list[str]:
    return [rest for name, rest in instructions if name == wanted]


def is_sent(path: Path, ignored: str) -> bool:
    """Tell whether `docker build` sends a file, by the lines of .dockerignore: the last one that matches counts.

    >>> lines = "# all but\\n*\\n!code\\n**/__pycache__"
    >>> [is_sent(Path(path), lines) for path in ("secret", "code/a.py", "code/b/__pycache__/a.pyc")]
    [False, True, False]
    """
    sent = True
    for line in ignored.splitlines():
        pattern = line.removeprefix("!")
        if pattern and not pattern.startswith("#") and _matches(path, pattern):
            sent = line.startswith("!")
    return sent


def _matches(path: Path, pattern: str) -> bool:
    """Tell whether a pattern is that of the path, or of a folder that it is in."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    regex = "".join(parts.get(token) or re.escape(token) for token in tokens)
    return re.fullmatch(f"{regex}(?:/.*)?", str(path)) is not None


def test_compose_file_fits_the_published_schema(compose: dict[str, Any]) -> None:
    # check-jsonschema carries the Compose Specification's schema, so this needs no network and no copy of our own.
    schema = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(compose, json.loads(schema.read_text(encoding="utf-8")))


@pytest.mark.parametrize("service", ["kafka", "job"])
def test_services_have_no_privileges_and_a_healthcheck(compose: dict[str, Any], service: str) -> None:
    settings = compose["services"][service]
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert not settings.get("privileged", False)


def test_the_job_starts_when_kafka_is_healthy(compose: dict[str, Any]) -> None:
    assert compose["services"]["job"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    assert compose["services"]["kafka"]["healthcheck"]["test"][0] == "CMD"


def test_job_has_a_read_only_root_and_writes_to_disks(
    compose: dict[str, Any], instructions: list[tuple[str, str]]
) -> None:
    """A tmpfs would count as memory of the container, and Spark may spill more than that."""
    job = compose["services"]["job"]
    assert job["read_only"] is True
    assert "tmpfs" not in job
    (volumes,) = rests(instructions, "VOLUME")
    assert json.loads(volumes) == [mount.split(":")[1] for mount in job["volumes"]]


def test_a_client_on_the_host_reaches_kafka_where_the_readme_says(compose: dict[str, Any]) -> None:
    """A client connects to the address that the listener of its first connection advertises."""
    kafka = compose["services"]["kafka"]
    (published,) = kafka["ports"]
    interface, host_port, container_port = published.split(":")
    assert interface == "127.0.0.1"
    listens, advertises = (
        dict(one.split("://") for one in kafka["environment"][name].split(","))
        for name in ("KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS")
    )
    listener = {address: name for name, address in listens.items()}
    assert advertises[listener[f":{container_port}"]] == f"localhost:{host_port}"
    readme = (DOCKER.parent / "README.md").read_text(encoding="utf-8")
    assert f'Producer("localhost:{host_port}")' in readme
    # The job is in a container: its listener is another, and advertises the name of the service.
    host, job_port = compose["services"]["job"]["environment"]["POPSTREAM_BOOTSTRAP_SERVERS"].split(":")
    assert host == "kafka"
    assert advertises[listener[f":{job_port}"]] == f"kafka:{job_port}"


def test_all_that_is_copied_is_sent_to_the_build(instructions: list[tuple[str, str]]) -> None:
    """.dockerignore leaves out what it does not name."""
    root = DOCKER.parent
    ignored = (root / ".dockerignore").read_text(encoding="utf-8")
    copied = [
        Path(source) for rest in rests(instructions, "COPY") if "--from" not in rest for source in rest.split()[:-1]
    ]
    assert len(copied) > 10
    files = [source / "__init__.py" if (root / source).is_dir() else source for source in copied]
    assert [file for file in files if not is_sent(file, ignored)] == []
    assert [file for file in files if not (root / file).is_file()] == []


def test_the_health_check_starts_no_python(instructions: list[tuple[str, str]]) -> None:
    (check,) = rests(instructions, "HEALTHCHECK")
    (program,) = json.loads(check.partition("CMD ")[2])
    copied = next(rest.split() for rest in rests(instructions, "COPY") if Path(program).name in rest)
    script = DOCKER.parent / copied[0]
    assert program == copied[1] + script.name
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").startswith("#!/bin/bash\n")


def test_named_volumes_are_declared(compose: dict[str, Any]) -> None:
    used = {mount.split(":")[0] for service in compose["services"].values() for mount in service["volumes"]}
    assert used == set(compose["volumes"])


def test_images_are_of_a_fixed_version(compose: dict[str, Any], instructions: list[tuple[str, str]]) -> None:
    (argument,) = rests(instructions, "ARG")
    images = [argument.split("=")[1], *(service["image"] for service in compose["services"].values())]
    for image in images:
        assert re.search(r":\d+\.\d+\.\d+", image), image
    # Every stage starts from the argument above, or from an earlier stage.
    stages = [rest.split() for rest in rests(instructions, "FROM")]
    for number, (image, *_) in enumerate(stages):
        assert image == "${PYTHON_IMAGE}" or image in {stage[-1] for stage in stages[:number]}


def test_the_compiled_kernel_lies_beside_the_packages(instructions: list[tuple[str, str]], tmp_path: Path) -> None:
    """Its folder is found from that of the sources."""
    made, root = build_folder(), Path(broker_state.compiled_form.__file__).parents[1]
    assert made.relative_to(root).parent == Path("var", "kernel")
    place = tmp_path / "popstream"
    venv.create(place / "venv", symlinks=True)
    (packages,) = (place / "venv").glob("lib/python*/site-packages")
    (packages / "broker_state.py").write_text(
        "from pathlib import Path\nKERNEL_FORM = (Path(__file__).parent / 'var' / 'kernel' / 'form').read_text()\n"
    )
    (place / "kernel").mkdir()
    (place / "kernel" / "form").write_text("compiled")
    (target,) = [rest.split()[-1] for rest in rests(instructions, "COPY") if "--from=kernel" in rest]
    assert target == "/opt/popstream/kernel"
    (script,) = [rest for rest in rests(instructions, "RUN") if target in rest]
    done = subprocess.run(
        ["/bin/sh", "-c", script.replace("/opt/popstream", str(place))],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_another_python_changes_nothing_but_the_first_line(instructions: list[tuple[str, str]]) -> None:
    """docs/scale.md builds the image with `--build-arg PYTHON_IMAGE=...`."""
    (argument,) = rests(instructions, "ARG")
    version = re.search(r"python:(\d+\.\d+)\.", argument)
    assert version is not None
    assert [rest for name, rest in instructions if name != "ARG" and version[1] in rest] == []


def test_image_runs_as_a_user_with_a_passwd_entry(instructions: list[tuple[str, str]]) -> None:
    assert rests(instructions, "USER") == ["popstream"]
    names = [name for name, _ in instructions]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert any("useradd" in rest and rest.rstrip().find(" popstream") > 0 for rest in rests(instructions, "RUN"))


def test_image_adds_nothing_from_the_network_but_by_the_locks(instructions: list[tuple[str, str]]) -> None:
    assert rests(instructions, "ADD") == []
    runs = " ".join(rests(instructions, "RUN"))
    assert "curl" not in runs
    assert "wget" not in runs
    assert "--require-hashes" in runs


def test_entrypoint_sets_the_umask_and_leaves_popstream_as_process_one(instructions: list[tuple[str, str]]) -> None:
    (entrypoint,) = rests(instructions, "ENTRYPOINT")
    shell, option, script, _ = json.loads(entrypoint)
    assert (shell, option) == ("/bin/sh", "-c")
    assert script == 'umask 077 && exec popstream "$@"'


def test_only_the_metrics_port_is_exposed(instructions: list[tuple[str, str]]) -> None:
    assert rests(instructions, "EXPOSE") == ["9464"]


def test_copied_paths_exist(instructions: list[tuple[str, str]]) -> None:
    for rest in rests(instructions, "COPY"):
        if rest.startswith("--from"):
            continue
        for source in rest.split()[:-1]:
            assert (DOCKER.parent / source).exists(), source


def test_docker_itself_accepts_the_compose_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker with the compose plugin is not installed")
    command = [docker, "compose", "-f", str(DOCKER / "compose.yaml"), "config", "--quiet"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
