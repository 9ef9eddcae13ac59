"""The fuzz targets by hypothesis and by the random engine, a little of each; and that the harness sees what is planted.

`python -m tests.fuzz.fuzz_target` does as much of it as one likes.
"""

import logging
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import fuzz_target
from tests.fuzz.byte_reader import ByteReader
from tests.fuzz.fuzz_target import Findings, fuzz_at_random, main
from tests.fuzz.histories import History
from tests.fuzz.seeds import SEEDS, seeds_of
from tests.fuzz.targets import CODECS, TARGETS
from tests.model.generator import COMMANDS, PARTITIONS
from tests.model.reference_model import ReferenceModel

MAGIC = b"magic"
EXAMPLES = {
    "record_decoder": 200,
    "handle_parser": 200,
    "value_codecs": 400,
    "settings_loader": 60,
    "kernel": 60,
}
INPUTS = {
    "record_decoder": 1_500,
    "handle_parser": 1_500,
    "value_codecs": 2_500,
    "settings_loader": 250,
    "kernel": 100,
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Clients warn of what they cannot read."""
    before = logging.root.manager.disable
    logging.disable()
    yield
    logging.disable(before)


def near(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """A seed of which one part is replaced."""

    def changed(seed: bytes, at: int, gone: int, instead: bytes) -> bytes:
        start = at % (len(seed) + 1)
        return seed[:start] + instead + seed[start + gone :]

    return st.builds(
        changed, st.sampled_from(seeds), st.integers(0, 10_000), st.integers(0, 8), st.binary(min_size=0, max_size=8)
    )


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_that_hypothesis_finds_fails(target: str) -> None:
    @settings(
        max_examples=EXAMPLES[target],
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.one_of(st.binary(max_size=300), near(seeds_of(target))))
    def check(data: bytes) -> None:
        TARGETS[target](data)

    check()


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_made_at_random_fails_or_is_slow(target: str, tmp_path: Path) -> None:
    findings = Findings(target, TARGETS[target], tmp_path)
    fuzz_at_random(findings, seeds_of(target), INPUTS[target], seed=1)
    assert findings.inputs == INPUTS[target]
    assert not findings.files, findings.summary()


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_has_a_seed_that_it_can_read(codec: str) -> None:
    place = list(CODECS).index(codec)
    values = [seed[1:] for seed in seeds_of("value_codecs") if seed and seed[0] == place]
    read = 0
    for value in values:
        try:
            CODECS[codec](value)
        except Exception:  # noqa: BLE001, S112 - broken ones are among the seeds
            continue
        read += 1
    assert read


def test_histories_of_bytes_reach_what_matters() -> None:
    model = ReferenceModel(PARTITIONS)
    chance = random.Random(5)
    for _ in range(1_200):
        model.queues.clear()
        history = History(bytes(chance.randrange(chance.choice((0x20, 0x80, 0x100))) for _ in range(400)), model)
        while (record := history.next_record()) is not None:
            history.learn(model.apply(record))
    counts = model.counts
    assert not [kind for kind in COMMANDS if not counts["answer", kind, "OK"]]
    wanted: list[tuple[str, ...]] = [("run", kind, "OK") for kind in ("ack", "change_invisible", "reject")]
    wanted += [
        ("run", "change_invisible", "SUPERSEDED"),
        ("run", "ack", "DUPLICATE_ENTRY"),
        ("run", "ack", "STALE_HANDLE"),
    ]
    wanted += [("orderly pop", "served at once"), ("orderly pop", "blocked"), ("dead letter", "attempt_limit")]
    wanted += [("skip", "late"), ("answer", "dispatch", "AHEAD_OF_WINDOW"), ("parked", "served later")]
    assert not [what for what in wanted if not counts[what]]


def test_a_reader_gives_zeros_beyond_the_end() -> None:
    reader = ByteReader(b"\x05")
    assert (reader.byte(), reader.byte(), reader.number(), reader.text(), reader.rest()) == (5, 0, 0, "", b"")
    assert reader.is_dry


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> str:
    """A target that raises for what has the magic word in it, and burns CPU for what begins with Slow."""

    def target(data: bytes) -> None:
        assert MAGIC not in data, "the planted defect"
        end = time.process_time() + 0.15 * data.startswith(b"Slow")
        while time.process_time() < end:
            pass

    def seeds() -> Iterator[bytes]:
        yield b"some magi-c and more"
        yield b""

    monkeypatch.setitem(TARGETS, "planted", target)
    monkeypatch.setitem(SEEDS, "planted", seeds)
    return "planted"


def replayed(told: str) -> list[str]:
    """The arguments of the commands that a run has printed."""
    return re.findall(r"-m tests\.fuzz\.fuzz_target (\S+ --replay \S+)", told)


def test_an_input_that_raises_is_kept_and_can_be_replayed(
    planted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = Findings(planted, TARGETS[planted], tmp_path)
    findings.feed(b"harmless")
    assert not findings.files
    findings.feed(b"a long input with magic in it")
    findings.feed(b"with magic")
    findings.feed(b"with more magic")
    assert [file.read_bytes() for file in findings.files] == [b"with magic"]
    assert "1 failures" in findings.summary()
    (command,) = replayed(capsys.readouterr().out)
    assert main(command.split()) == 1
    assert "the planted defect" in capsys.readouterr().err


def test_an_input_that_burns_cpu_is_kept(planted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings = Findings(planted, TARGETS[planted], tmp_path)
    findings.feed(b"Slow")
    assert [file.read_bytes() for file in findings.files] == [b"Slow"]
    assert findings.slowest_ms > fuzz_target.CPU_MS_MAX
    told = capsys.readouterr().out
    assert "failed at slow" in told
    assert main(replayed(told)[0].split()) == 1


def test_an_input_that_was_slow_only_once_is_no_finding(tmp_path: Path) -> None:
    ran: list[bytes] = []

    def target(data: bytes) -> None:
        ran.append(data)
        end = time.process_time() + 0.15 * (len(ran) == 1)
        while time.process_time() < end:
            pass

    findings = Findings("slow_once", target, tmp_path)
    findings.feed(b"x")
    assert not findings.files
    assert len(ran) == 1 + fuzz_target.TRIES


def test_the_random_engine_finds_what_is_planted_and_ends_with_a_failure(
    planted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [planted, "--engine=random", "--inputs=20000", f"--folder={tmp_path}"]
    assert main(arguments) == 1
    told = capsys.readouterr().out
    assert "20,000 inputs" in told
    assert any(MAGIC in file.read_bytes() for file in (tmp_path / planted).iterdir())
    assert all(main(command.split()) == 1 for command in replayed(told))


def test_the_same_seed_gives_the_same_inputs(tmp_path: Path) -> None:
    def inputs(seed: int) -> list[bytes]:
        seen: list[bytes] = []
        fuzz_at_random(Findings("seen", seen.append, tmp_path), [b"first seed", b"second"], 200, seed)
        return seen

    assert inputs(3) == inputs(3) != inputs(4)
    assert max(map(len, inputs(3))) <= fuzz_target.INPUT_BYTES_MAX


def test_an_unknown_target_is_told() -> None:
    with pytest.raises(SystemExit, match=r"no target nothing, but .*kernel"):
        main(["nothing", "--engine=random"])


def test_libfuzzer_runs_in_a_process_of_its_own_and_its_status_is_right(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    assert main(["handle_parser", "--inputs=300", f"--folder={tmp_path}"]) in {0, 1}
    assert (tmp_path / "handle_parser" / "corpus").is_dir()
