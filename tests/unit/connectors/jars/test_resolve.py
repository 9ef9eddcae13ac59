"""Verification of the jars without a network: Ivy is replaced by a function that writes files."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.jars import resolve as jars

CONTENT = {"spark/a-1.jar": b"a", "spark/b-1.jar": b"b", "kafka/a-2.jar": b"other a"}
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


def write(target: Path, content: dict[str, bytes]) -> None:
    for name, data in content.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run-time directory, with lock files of its own."""
    place = tmp_path / "place"
    place.mkdir()
    sums = place / "sha256.txt"
    sums.write_text("# a comment\n" + "".join(f"{digest}  {name}\n" for name, digest in SUMS.items()), encoding="ascii")
    (place / "ivy.xml").write_text("<ivy-module/>", encoding="ascii")
    monkeypatch.setattr(jars, "JOB", jars.JarSet(place, "jars", "make setup"))
    monkeypatch.setattr(jars, "_SECONDS_BEFORE_RETRY", 0)
    monkeypatch.delenv("POPSTREAM_JARS", raising=False)
    return tmp_path / "var"


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Replaces the download: each call writes the next of the given contents, or fails for a text."""

    def plan(*answers: dict[str, bytes] | str) -> list[int]:
        calls: list[int] = []

        def download(_var: Path, _jars: jars.JarSet, target: Path, _expected_count: int) -> str | None:
            answer = answers[len(calls)]
            calls.append(1)
            if isinstance(answer, str):
                return answer
            write(target, answer)
            return None

        monkeypatch.setattr(jars, "_download", download)
        return calls

    return plan


def test_resolved_jars_are_listed_by_configuration(var: Path, downloads: Callable[..., list[int]]) -> None:
    downloads(CONTENT)
    jars.resolve(var, jars.JOB)
    assert jars.spark_jars(var) == [var / "jars/spark/a-1.jar", var / "jars/spark/b-1.jar"]
    assert jars.kafka_jars(var) == [var / "jars/kafka/a-2.jar"]


def test_second_resolve_downloads_and_hashes_nothing(
    var: Path, downloads: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = downloads(CONTENT)
    jars.resolve(var, jars.JOB)
    monkeypatch.setattr(jars, "sha256_of", lambda _: pytest.fail("hashed again"))
    jars.resolve(var, jars.JOB)
    assert len(calls) == 1


def test_changed_lock_verifies_again_but_keeps_valid_jars(var: Path, downloads: Callable[..., list[int]]) -> None:
    calls = downloads(CONTENT)
    jars.resolve(var, jars.JOB)
    jars.JOB.ivy_file.write_text("<ivy-module><!-- --></ivy-module>", encoding="ascii")
    jars.resolve(var, jars.JOB)
    assert len(calls) == 1
    assert (var / "jars/resolved").read_text(encoding="ascii") == jars.lock_digest(
        jars.JOB.ivy_file, jars.JOB.sums_file
    )


def test_removed_jar_is_downloaded_again_despite_the_stamp(var: Path, downloads: Callable[..., list[int]]) -> None:
    calls = downloads(CONTENT, CONTENT)
    jars.resolve(var, jars.JOB)
    (var / "jars/spark/a-1.jar").unlink()
    jars.resolve(var, jars.JOB)
    assert len(calls) == 2
    assert (var / "jars/spark/a-1.jar").read_bytes() == b"a"


def test_wrong_bytes_are_removed_here_and_from_the_cache(var: Path, downloads: Callable[..., list[int]]) -> None:
    downloads(CONTENT | {"spark/b-1.jar": b"tampered"})
    cached = var / "ivy/cache/org/b/jars/b-1.jar"
    write(var, {"ivy/cache/org/b/jars/b-1.jar": b"tampered"})
    with pytest.raises(jars.JarError, match=r"spark/b-1\.jar: SHA-256 is .*, locked is") as error:
        jars.resolve(var, jars.JOB)
    assert SUMS["spark/b-1.jar"] in str(error.value)
    assert not (var / "jars/spark/b-1.jar").exists()
    assert not cached.exists()
    assert (var / "jars/spark/a-1.jar").exists()
    assert not (var / "jars/resolved").exists()


def test_unknown_jar_is_refused_and_removed(var: Path, downloads: Callable[..., list[int]]) -> None:
    downloads(CONTENT | {"spark/c-1.jar": b"c"})
    with pytest.raises(jars.JarError, match=r"spark/c-1\.jar: not in sha256\.txt"):
        jars.resolve(var, jars.JOB)
    assert not (var / "jars/spark/c-1.jar").exists()


def test_missing_jar_is_named(var: Path, downloads: Callable[..., list[int]]) -> None:
    downloads({name: data for name, data in CONTENT.items() if name != "kafka/a-2.jar"})
    with pytest.raises(jars.JarError, match=r"1 jar missing[\s\S]*kafka/a-2\.jar"):
        jars.resolve(var, jars.JOB)
    assert not (var / "jars/resolved").exists()


def test_failed_download_is_retried(var: Path, downloads: Callable[..., list[int]]) -> None:
    calls = downloads("timed out", "timed out", CONTENT)
    jars.resolve(var, jars.JOB)
    assert len(calls) == 3


def test_permanent_failure_shows_the_output_of_ivy(var: Path, downloads: Callable[..., list[int]]) -> None:
    downloads(*["unresolved dependency: org#x;1"] * 4)
    with pytest.raises(jars.JarError, match=r"online\?[\s\S]*org#x;1"):
        jars.resolve(var, jars.JOB)


def test_without_jars_the_error_names_the_command(var: Path) -> None:
    with pytest.raises(jars.JarError, match="run `make setup`"):
        jars.spark_jars(var)


def test_an_image_can_have_its_jars_elsewhere(
    var: Path, tmp_path: Path, downloads: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPSTREAM_JARS", str(tmp_path / "baked"))
    downloads(CONTENT)
    jars.resolve(var, jars.JOB)
    assert jars.kafka_jars(var) == [tmp_path / "baked/kafka/a-2.jar"]


def test_interrupt_says_how_to_continue(
    var: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jars, "_download", interrupt)
    assert jars.main(["--var", str(var)]) == 130
    assert "run `make setup` again" in capsys.readouterr().err


def test_the_other_jars_of_an_image_are_beside_those_of_the_job(
    var: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jars.S3.target(var) == var / "jars-s3"
    monkeypatch.setenv("POPSTREAM_JARS", str(tmp_path / "baked" / "jars"))
    assert jars.S3.target(var) == tmp_path / "baked" / "jars-s3"
    with pytest.raises(jars.JarError, match=r"jars-s3 lacks .* run `make s3-jars`"):
        jars.s3_jars(var)


@pytest.mark.parametrize(("chosen", "confs"), [(jars.JOB, {"spark", "kafka"}), (jars.S3, {"s3"})])
def test_committed_sums_cover_each_configuration(chosen: jars.JarSet, confs: set[str]) -> None:
    sums = jars.read_sums(chosen.sums_file)
    assert {name.split("/")[0] for name in sums} == confs
    assert all(len(digest) == 64 for digest in sums.values())


def test_no_jar_for_s3_is_one_that_spark_has() -> None:
    """A second copy of a library on the class path breaks the first one."""
    own = {re.sub(r"-\d[\w.-]*\.jar$", "", jar.name) for jar in jars.pyspark_jars().iterdir()}
    ours = {re.sub(r"-\d[\w.-]*\.jar$", "", name.split("/")[1]) for name in jars.read_sums(jars.S3.sums_file)}
    assert own & ours == set()
