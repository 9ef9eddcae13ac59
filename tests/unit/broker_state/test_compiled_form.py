"""The compiled kernel is used for the sources it was made of, on demand not at all, and decides the same bytes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker_state import compiled_form
from broker_state.compiled_form import EXTENSION, GROUP, build_folder, choose_form, compiled_sources
from scripts.compile_kernel import what_is_missing

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "broker_state"


def test_no_compiled_module_defines_a_value() -> None:
    """A compiled msgspec.Struct is silently not frozen, and equal to itself alone."""
    found = compiled_sources()
    assert Path("kernel/decide.py") in found
    for source in found:
        classes = [
            node for node in ast.walk(ast.parse((SOURCES / source).read_text())) if isinstance(node, ast.ClassDef)
        ]
        bases = {ast.unparse(base) for node in classes for base in node.bases}
        assert not {base for base in bases if "Struct" in base or base.startswith("_Stored")}, source


def _patched(path: Path) -> set[tuple[str, str]]:
    """Return the (module, name) that a test replaces by `patch.object` or `monkeypatch.setattr`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="object" | "setattr"), args=[ast.Name(module), ast.Constant(str(name)), *_]
            ):
                found.add((module, name))
    return found


def _finals(path: Path) -> set[tuple[str, str]]:
    return {
        (path.stem, node.target.id)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and ast.unparse(node.annotation).startswith("Final")
    }


def test_no_constant_that_tests_replace_is_compiled_in() -> None:
    """Compiled code has the value of a `Final` in it: a test that made it smaller would test nothing, or disagree."""
    patched = set().union(*map(_patched, (ROOT / "tests").rglob("*.py")))
    assert ("expiry", "DUE_COST_MAX") in patched
    finals = set().union(*(_finals(SOURCES / source) for source in compiled_sources()))
    assert ("expiry", "_PAGE_COST") in finals
    assert not patched & finals


@pytest.mark.parametrize("edited", ["broker_state/kernel/decide.py", "popstream/wire/command.py"])
def test_an_edit_of_any_source_leaves_the_build_unused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    """Also of a wire type: compiled code casts to the types that its fields had."""
    sources = tmp_path / "broker_state"
    for file in (sources / "kernel" / "decide.py", tmp_path / "popstream" / "wire" / "command.py"):
        file.parent.mkdir(parents=True)
        file.write_text("a = 1\n")
    monkeypatch.setattr(compiled_form, "_SOURCES", sources)
    monkeypatch.setattr(compiled_form, "_WIRE", tmp_path / "popstream" / "wire")
    before = build_folder()
    assert before == build_folder()
    (tmp_path / edited).write_text("a = 2\n")
    assert build_folder() != before
    before.mkdir(parents=True)
    (before / f"{GROUP}__mypyc{EXTENSION}").write_bytes(b"of other sources")
    path = [str(sources)]
    assert choose_form(path) == "pure"
    assert path == [str(sources)]


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("exit 0", None),
        (
            "echo 'stdio.h: No such file or directory' >&2; exit 1",
            "cc cannot compile: stdio.h: No such file or directory",
        ),
    ],
)
def test_a_compiler_that_cannot_compile_is_said_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, said: str | None
) -> None:
    (tmp_path / "cc").write_text(f"#!/bin/sh\n{compiler}\n")
    (tmp_path / "cc").chmod(0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_config_var", lambda _name: "cc -pthread")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    assert what_is_missing() == said


def test_it_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "broker_state"
    sources.mkdir()
    monkeypatch.setattr(compiled_form, "_SOURCES", sources)
    folder = build_folder()
    folder.mkdir(parents=True)
    (folder / f"{GROUP}__mypyc{EXTENSION}").write_bytes(b"no library")
    monkeypatch.setenv("POPSTREAM_PURE", "1")
    assert choose_form([]) == "pure"


@pytest.mark.skipif(not build_folder().is_dir(), reason="the kernel is not compiled here (make setup says why)")
def test_both_forms_decide_the_same_bytes() -> None:
    """Answers, rows and state of logs that lease, expire, change, park and refuse."""
    program = (
        "import broker_state\n"
        "from tests.property.test_cuts import SEEDS, fold_in_memory, one_digest\n"
        "print(broker_state.KERNEL_FORM, *[one_digest(*fold_in_memory(seed, 'random cuts')) for seed in SEEDS[:2]])\n"
    )
    said = []
    for pure in ("0", "1"):
        environment = {**os.environ, "POPSTREAM_PURE": pure, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, cwd=ROOT
        )
        form, *digests = done.stdout.split()
        said.append((form, digests))
    (one, compiled_digests), (other, pure_digests) = said
    assert (one, other) == ("compiled", "pure")
    assert len(compiled_digests) == 4
    assert compiled_digests == pure_digests
