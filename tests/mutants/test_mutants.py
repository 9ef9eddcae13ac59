"""Is the suite worth its time? Each mutant is a copy of broker_state with one mistake, and has to fail it.

The copy comes first on the path of a process that runs the quick part of the suite; a plug-in there sees to it that it
is the copy that is tested, for the project itself is installed too. The unchanged copy has to pass.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS, Mutant
from tests.mutants.mutated_copy import PACKAGE, ROOT, copy_of_package

# The quickest first: most mutants end with them.
SUITE = (
    "tests/unit/broker_state/kernel",
    "tests/conformance/test_conformance.py",
    "tests/unit/broker_state/store/test_marks.py",
    "tests/property/test_positions.py",
    "tests/property/test_reference_model.py::test_kernel_and_model_agree_on_every_record",
    "tests/property/test_orderly_histories.py",
    "tests/property/test_batch_is_singles.py",
    "tests/property/test_cuts.py",
)
FEW = {
    "TEST_MODEL_RECORDS": "16000",
    "TEST_MODEL_WORKERS": "1",
    "TEST_ORDERLY_HISTORIES": "20",
}

GUARD = """
import pathlib

import broker_state
import hypothesis

# A mistake is to be found, not to be made small.
hypothesis.settings.register_profile("found", phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
hypothesis.settings.load_profile("found")


def pytest_configure():
    here = pathlib.Path(__file__).parent
    assert pathlib.Path(broker_state.__file__).parent.parent == here, broker_state.__file__


def pytest_terminal_summary(terminalreporter):
    terminalreporter.line(f"broker_state is {broker_state.__file__}")
"""


def run_suite(folder: Path) -> subprocess.CompletedProcess[str]:
    """The quick part of the suite over the package in `folder`."""
    (folder / "mutant_guard.py").write_text(GUARD)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    # A mutant may loop: the limit of a test is a failure too, and not the end of this process.
    command = ["-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "mutant_guard", "--timeout=60"]
    return subprocess.run(
        # -P: the folder that this is run in must not come before the path.
        [sys.executable, "-P", *command, *SUITE],
        cwd=ROOT,
        env={**os.environ, **FEW, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1_200,
    )


def test_every_mutant_still_fits_the_code() -> None:
    assert len(MUTANTS) >= 10
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        text = (PACKAGE / mutant.file).read_text()
        assert text.count(mutant.old) == 1, f"{mutant.name}: its text is to be found once in {mutant.file}"
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
        assert mutant.old != mutant.new
        assert mutant.rule


@pytest.mark.crash
def test_the_unchanged_copy_passes(tmp_path: Path) -> None:
    done = run_suite(copy_of_package(tmp_path))
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-1_000:]
    assert f"broker_state is {tmp_path}/broker_state/__init__.py" in done.stdout


@pytest.mark.crash
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_suite_catches(mutant: Mutant, tmp_path: Path) -> None:
    done = run_suite(copy_of_package(tmp_path, mutant))
    # 1: tests failed; a package that cannot be imported, or a command that is wrong, is another status.
    assert done.returncode == 1, f"status {done.returncode}\n" + done.stdout[-3_000:] + done.stderr[-1_000:]
    assert "FAILED" in done.stdout, done.stdout[-3_000:]
