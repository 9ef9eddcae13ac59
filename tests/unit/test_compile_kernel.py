"""The kernel is compiled when its sources or what compiles them have changed, and not otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_state.compiled_form import EXTENSION, GROUP
from scripts import compile_kernel

LIBRARY = f"{GROUP}__mypyc{EXTENSION}"


class Workshop:
    """A folder of builds, and a compiler that writes how often it ran."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels = root / "kernel"
        self.lock = root / "kernel.txt"
        self.lock.write_text("mypy==2.4.0\n")
        self.script = root / "compile_kernel.py"
        self.script.write_text("a = 1\n")
        self.sources = "first"
        self.missing: str | None = None
        self.runs = 0
        monkeypatch.delenv("POPSTREAM_PURE", raising=False)
        monkeypatch.setattr(compile_kernel, "LOCK", self.lock)
        monkeypatch.setattr(compile_kernel, "__file__", str(self.script))
        monkeypatch.setattr(compile_kernel, "build_folder", lambda: self.kernels / self.sources)
        monkeypatch.setattr(compile_kernel, "what_is_missing", lambda: self.missing)
        monkeypatch.setattr(compile_kernel, "compile_in", self._compile_in)

    def built(self) -> str:
        """Set up; return what the build in place is."""
        compile_kernel.main()
        (build,) = self.kernels.iterdir()
        return f"{build.name} {(build / LIBRARY).read_text()}"

    def _compile_in(self, place: Path) -> Path:
        self.runs += 1
        made = place / "made"
        made.mkdir()
        (made / LIBRARY).write_text(str(self.runs))
        return made


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path, monkeypatch)


def test_a_second_set_up_compiles_nothing(workshop: Workshop) -> None:
    assert [workshop.built(), workshop.built()] == ["first 1", "first 1"]


def test_other_sources_another_compiler_and_another_script_make_another_build(workshop: Workshop) -> None:
    found = [workshop.built()]
    workshop.sources = "second"
    found.append(workshop.built())
    workshop.lock.write_text("mypy==2.5.0\n")
    found.append(workshop.built())
    workshop.script.write_text("a = 2\n")
    found.append(workshop.built())
    assert found == ["first 1", "second 2", "second 3", "second 4"]


def test_a_build_from_before_there_were_stamps_is_made_anew(workshop: Workshop) -> None:
    (workshop.kernels / "first").mkdir(parents=True)
    (workshop.kernels / "first" / LIBRARY).write_text("of an older version")
    assert workshop.built() == "first 1"


def test_where_nothing_can_be_compiled_it_is_said_what_runs(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    workshop.missing = "there is no C compiler (cc)"
    compile_kernel.main()
    workshop.missing = None
    workshop.built()
    workshop.lock.write_text("mypy==2.5.0\n")
    workshop.missing = "there is no C compiler (cc)"
    assert workshop.built() == "first 1"
    assert capsys.readouterr().out.splitlines() == [
        "      the kernel is not compiled, its Python sources are used: there is no C compiler (cc)",
        "      the kernel is not compiled anew, an older build is used: there is no C compiler (cc)",
    ]
