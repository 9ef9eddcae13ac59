"""Fuzzes one target: `python -m tests.fuzz.fuzz_target TARGET --inputs N`, and replays what it has found.

Engine *atheris* is libFuzzer, which looks for inputs that reach new code; *random* changes the seeds at random and
needs nothing. An input fails when the target raises, or takes more than 100 ms of CPU in each of three further tries.
Failing inputs stay in var/fuzz/TARGET, the smallest of each place that failed; a run goes on after them, and ends with
status 1.
"""

import argparse
import contextlib
import hashlib
import importlib
import io
import logging
import os
import random
import resource
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.fuzz.cpu import cpu_ms

__all__ = ["CPU_MS_MAX", "INPUT_BYTES_MAX", "Findings", "fuzz_at_random", "main"]

CPU_MS_MAX = 100.0
TRIES = 3
INPUT_BYTES_MAX = 8_192
_BYTES_MAX_OF = {"kernel": 512}

_FOLDER = Path("var/fuzz")
_CHILD = "TEST_FUZZ_CHILD"
# What libFuzzer is to see inside of: the code under test and not the model that it is compared with.
_INSTRUMENTED = [
    "broker_state",
    "checkpoints.applied",
    "popstream.payload.inner_batch",
    "connectors.delta.rows",
    "pipelines.cli.options",
    "pipelines.decide_ops.decode",
    "pipelines.decide_ops.entries",
    "tomllib",
]
_RSS_MB_MAX = 1_024
_TELL_EACH = 50_000
_HANG_SECONDS = 60
_INTERESTING = (0, 1, 2, 0x0A, 0x22, 0x2E, 0x30, 0x39, 0x5B, 0x5D, 0x7B, 0x7D, 0x7F, 0x80, 0xC1, 0xDF, 0xFE, 0xFF)


class Findings:
    """What became of the inputs of one target."""

    def __init__(self, target: str, function: Callable[[bytes], None], folder: Path) -> None:
        self._target = target
        self._function = function
        self._folder = folder / target
        self._files: dict[str, Path] = {}
        self.inputs = 0
        self.slowest_ms = 0.0

    @property
    def files(self) -> list[Path]:
        """The failing inputs, one for each place that failed."""
        return list(self._files.values())

    def feed(self, data: bytes) -> None:
        """One input; whatever the target raises is kept and told, and the run goes on."""
        self.inputs += 1
        took_ms = self._run(data)
        if took_ms > CPU_MS_MAX:  # it may have been a collection of garbage, or the first use of something
            took_ms = min(took_ms, *(self._run(data) for _ in range(TRIES)))
            if took_ms > CPU_MS_MAX:
                self._keep("slow", f"{took_ms:.0f} ms of CPU in the fastest of {TRIES + 1} tries", data)
        self.slowest_ms = max(self.slowest_ms, took_ms)
        if self.inputs % _TELL_EACH == 0:
            print(self.summary(), flush=True)

    def summary(self) -> str:
        """One line: how many inputs, the slowest, the memory, the failures."""
        rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return (
            f"{self._target}: {self.inputs:,} inputs, slowest {self.slowest_ms:.1f} ms CPU, peak RSS {rss_mb:.0f} MiB,"
            f" {len(self._files)} failures"
        )

    def _run(self, data: bytes) -> float:
        return cpu_ms(lambda: self._try(data))

    def _try(self, data: bytes) -> None:
        try:
            self._function(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            self._keep(_place_of(error), f"{type(error).__name__}: {str(error)[:2_000]}", data)

    def _keep(self, place: str, what: str, data: bytes) -> None:
        known = self._files.get(place)
        if known is not None and known.stat().st_size <= len(data):
            return
        file = self._folder / f"{_digest(place.encode())}.input"
        self._folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        if known is None:
            print(f"{self._target} failed at {place}\n  {what}\n  {_replay_command(self._target, file)}", flush=True)
        self._files[place] = file


def fuzz_at_random(findings: Findings, seeds: Sequence[bytes], inputs: int, seed: int) -> None:
    """The seeds as they are, then changed at random until there were `inputs`; the same seed gives the same inputs."""
    chance = random.Random(seed)
    for data in seeds[:inputs]:
        findings.feed(data)
    recent = list(seeds)
    while findings.inputs < inputs:
        data = _changed(chance.choice(recent), chance, seeds)
        # Further changes on top of changes: one replaces another, so that the pool stays small.
        recent[chance.randrange(len(recent))] = data if chance.random() < 0.5 else chance.choice(seeds)
        findings.feed(data)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing failed; 1: something did; 2: the command is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.fuzz_target", description="Fuzz one target.")
    parser.add_argument("target")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--engine", choices=["atheris", "random"], default="atheris")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="for failing inputs and the corpus")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run this input alone and show what it raises")
    options = parser.parse_args(arguments)
    before = logging.root.manager.disable
    logging.disable()  # clients warn of what they cannot read
    try:
        return _main(options)
    finally:
        logging.disable(before)


def _main(options: argparse.Namespace) -> int:
    if os.environ.get(_CHILD):
        return _be_libfuzzer(options)
    if options.replay is not None:
        return _replay(options.target, options.replay)
    if options.engine == "atheris":
        try:
            importlib.import_module("atheris")
        except ImportError as error:
            print(f"atheris cannot be imported ({error}): the engine is `random`, which does not look for new code")
        else:
            return _run_libfuzzer(options)
    findings = Findings(options.target, _target(options.target), options.folder)
    fuzz_at_random(findings, _seeds(options.target), options.inputs, options.seed)
    print(findings.summary())
    return 1 if findings.files else 0


def _target(name: str) -> Callable[[bytes], None]:
    # Imported when the engine is known: libFuzzer must see the imports.
    targets: dict[str, Callable[[bytes], None]] = importlib.import_module("tests.fuzz.targets").TARGETS
    if name not in targets:
        sys.exit(f"there is no target {name}, but {', '.join(targets)}")
    return targets[name]


def _seeds(name: str) -> list[bytes]:
    seeds: list[bytes] = importlib.import_module("tests.fuzz.seeds").seeds_of(name)
    return seeds


def _replay(target: str, file: Path) -> int:
    function, data = _target(target), file.read_bytes()
    took_ms = []
    for _ in range(TRIES):
        try:
            took_ms.append(cpu_ms(lambda: function(data)))
        except Exception:  # noqa: BLE001 - this is what it is replayed for
            traceback.print_exc()
            return 1
    print(f"{target}: {len(data)} bytes, {min(took_ms):.1f} ms of CPU, nothing raised")
    return 1 if min(took_ms) > CPU_MS_MAX else 0


def _run_libfuzzer(options: argparse.Namespace) -> int:
    """In a process of its own: libFuzzer ends the process that it runs in, and may end it by a signal."""
    command = [sys.executable, "-m", "tests.fuzz.fuzz_target", options.target, f"--inputs={options.inputs}"]
    command += [f"--seed={options.seed}", f"--folder={options.folder}"]
    _target(options.target)
    status = subprocess.run(command, env={**os.environ, _CHILD: "1"}, check=False).returncode
    if status in {0, 1}:
        return status
    folder = options.folder / options.target
    print(f"{options.target}: the process ended with {status}: crash, hang or memory; its input is in {folder}")
    newest = max(folder.glob("*-*"), key=lambda file: file.stat().st_mtime, default=None)
    if newest is not None:
        print(f"  {_replay_command(options.target, newest)}")
    return 1


def _be_libfuzzer(options: argparse.Namespace) -> int:
    import atheris  # noqa: PLC0415 - a platform may have none, and then it is never asked for

    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=_INSTRUMENTED):
        function = _target(options.target)
        seeds = _seeds(options.target)
    folder = options.folder / options.target
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for data in seeds:
        (corpus / _digest(data)).write_bytes(data)
    findings = Findings(options.target, function, options.folder)

    def feed(data: bytes) -> None:
        findings.feed(data)
        if findings.inputs >= options.inputs:
            print(findings.summary(), flush=True)
            os._exit(1 if findings.files else 0)

    flags = {
        "seed": options.seed,
        "max_len": _BYTES_MAX_OF.get(options.target, INPUT_BYTES_MAX),
        "timeout": _HANG_SECONDS,
        "rss_limit_mb": _RSS_MB_MAX,
        "artifact_prefix": f"{folder}/",
        "verbosity": 0,
    }
    atheris.Setup([sys.argv[0], *(f"-{name}={value}" for name, value in flags.items()), str(corpus)], feed)
    atheris.Fuzz()
    return 1


def _changed(data: bytes, chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        at = chance.randrange(len(out) + 1)
        end = min(len(out), at + chance.choice((1, 1, 2, 4, 8, 32)))
        match chance.randrange(8):
            case 0:
                out[at:end] = bytes(chance.choice(_INTERESTING) for _ in range(end - at))
            case 1:
                out[at:end] = chance.randbytes(end - at)
            case 2:
                out[at:at] = chance.randbytes(chance.choice((1, 2, 8)))
            case 3:
                del out[at:end]
            case 4:
                out[at:at] = out[at:end] * chance.choice((1, 1, 3, 20))
            case 5:
                other = chance.choice(seeds)
                start = chance.randrange(len(other) + 1)
                out[at:end] = other[start : start + chance.choice((1, 4, 16, 64, 256))]
            case 6:
                if at < len(out):
                    out[at] ^= 1 << chance.randrange(8)
            case _:
                if at < len(out):
                    out[at] = (out[at] + chance.choice((-1, 1))) & 0xFF
    return bytes(out[:INPUT_BYTES_MAX])


def _place_of(error: Exception) -> str:
    """Where it was raised; what a check of the target found, is told by what it says, up to its numbers."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
    if isinstance(error, AssertionError):
        words = "".join(" " if letter.isdigit() else letter for letter in str(error).split("\n", 1)[0][:60])
        place += f" ({' '.join(words.split())})" if words.strip() else ""
    return place


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _replay_command(target: str, file: Path) -> str:
    return f"{os.path.relpath(sys.executable)} -m tests.fuzz.fuzz_target {target} --replay {file}"


if __name__ == "__main__":
    sys.exit(main())
