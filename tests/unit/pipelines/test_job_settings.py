"""Claim: settings that would show the job to others are refused before anything starts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from checkpoints.layout import JobFolder
from pipelines.cli.app import app
from pipelines.cli.options import StoryOptions, load_settings
from pipelines.cli.target import JobApi, place_of
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "0123456789abcdef"  # noqa: S105 - of no other use


def refusal(tmp_path: Path, **settings: Any) -> str:
    """What a start says; it ends before it has touched the folder."""
    folder = tmp_path / "job"
    with pytest.raises(Invalid) as raised, Host(JobSettings(folder=folder, **settings), var=tmp_path):
        pytest.fail("it started")
    assert not folder.exists()
    return raised.value.message


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "job.example"])  # noqa: S104 - refused
def test_an_api_for_other_machines_takes_a_token(tmp_path: Path, host: str) -> None:
    assert refusal(tmp_path, api_port=1, api_host=host) == (
        f"api_host {host} can be reached from other machines, which requires a token: set api_token_file or api_token"
    )


def test_ports_and_tables_that_cannot_be_as_asked(tmp_path: Path) -> None:
    assert "api_port and metrics_port are both 9464" in refusal(tmp_path, api_port=9464, metrics_port=9464)
    assert "tables_group_readable needs `tables`" in refusal(tmp_path, tables_group_readable=True)


def test_the_token_is_in_a_file_or_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {SECRET}\n")
    assert JobSettings(api_token_file=file).api_secret == SECRET
    assert JobSettings(api_token=SECRET).api_secret == SECRET  # type: ignore[arg-type] # pydantic makes a secret of it
    assert JobSettings().api_secret == ""
    assert SECRET not in repr(JobSettings(api_token=SECRET))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"api_token": "short"}, "16 or more visible ASCII characters"),
        ({"api_token": "with a blank in it"}, "16 or more visible ASCII characters"),
        ({"api_token": SECRET, "api_token_file": "token"}, "both given"),
        ({"api_token_file": "nowhere"}, "api_token_file nowhere cannot be read: No such file"),
        ({"api_token_file": "empty"}, "16 or more"),
        ({"api_token_file": "binary"}, "it is not UTF-8 text"),
    ],
)
def test_a_token_that_cannot_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff" * 40)
    with pytest.raises(Invalid) as raised:
        _ = JobSettings(**settings).api_secret
    assert why in raised.value.message
    assert SECRET not in raised.value.message


def test_a_job_is_found_by_its_api_or_in_its_folder(tmp_path: Path) -> None:
    settings = JobSettings(folder=tmp_path, tables=tmp_path / "tables", api_token=SECRET)  # type: ignore[arg-type]
    assert place_of(settings, None) == JobFolder(tmp_path, tmp_path / "tables")
    assert place_of(settings, "http://job:9465/") == JobApi("http://job:9465", SECRET)
    options = StoryOptions(folder=tmp_path, tables=str(tmp_path / "elsewhere"), api="http://job:9465")
    assert isinstance(options.place(), JobApi)
    assert options.load().job_folder.delta == tmp_path / "elsewhere"


def test_the_variable_of_the_api_is_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPSTREAM_API", "http://127.0.0.1:1")
    result = CliRunner().invoke(app, ["status"])
    assert (result.exit_code, "the API does not answer at http://127.0.0.1:1" in result.stderr) == (3, True)


def test_replaced_tables_stay_on_the_disk_of_the_tables(tmp_path: Path) -> None:
    assert JobFolder(tmp_path).replaced_tables == tmp_path / "replaced"
    assert JobFolder(tmp_path, tmp_path / "tables").replaced_tables == tmp_path / "tables" / "replaced"


def test_a_job_writes_its_tables_to_no_url() -> None:
    with pytest.raises(Invalid) as raised:
        load_settings(None, tables="s3://bucket/tables")
    assert "tables: Value error, must be a folder, not a URL" in str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        "fs.azure.account.key.store.dfs.core.windows.net",
        "fs.s3a.encryption.key",
        "fs.gs.auth.service.account.private.key",
        "fs.s3a.secret.key",
        "fs.s3a.endpoint",
    ],
)
def test_spark_shows_no_setting_of_hadoop_under_either_name(name: str) -> None:
    conf = JobSettings(hadoop_conf={name: SECRET, "fs.defaultFS": "x"}).session_conf  # type: ignore[dict-item]
    assert conf[f"spark.hadoop.{name}"] == SECRET
    rule = re.compile(conf["spark.redaction.regex"])
    assert rule.search(name)
    assert rule.search(f"spark.hadoop.{name}")
    assert not rule.search("spark.hadoop.fs.s3a.encryption.keys")
    # What Spark does not show by itself is not shown with ours, either.
    assert rule.search("spark.ssl.keyPassword")


def test_the_rule_of_an_operator_for_what_spark_shows_stays() -> None:
    conf = JobSettings(
        hadoop_conf={"fs.s3a.endpoint": SECRET},  # type: ignore[dict-item]
        spark_conf={"spark.redaction.regex": "(?i)salary"},
    ).session_conf
    rule = re.compile(conf["spark.redaction.regex"])
    shown = [name for name in ("spark.hadoop.fs.s3a.endpoint", "Salary", "secret") if not rule.search(name)]
    assert shown == ["secret"]
    assert JobSettings(spark_conf={"spark.redaction.regex": "salary"}).session_conf == {}
