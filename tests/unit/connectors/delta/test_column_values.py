"""The documented values are those that the code can write, and no others."""

from __future__ import annotations

import ast
from pathlib import Path

from broker_state.audit import ERA_ENDING_KINDS, DeliveryStep, StepCause
from connectors.delta.column_values import CAUSES, KINDS, REASONS, REJECT_REASONS, STEPS
from connectors.delta.tables import TABLES
from popstream.wire.command import COMMAND_TYPES
from popstream.wire.reason import Reason

KERNEL = Path(__file__).parents[4] / "broker_state" / "kernel"
STEPS_BY = ("step", "release", "end_lease", "release_members")
"""What writes a step, directly or for somebody, with a cause."""


def causes_in_code() -> set[str]:
    """Return the texts that the kernel passes as the cause of a step, or chooses one from."""
    found = set()
    for file in KERNEL.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and _name(node.func) in STEPS_BY:
                given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "cause")]
                found |= {
                    each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)
                }
            if isinstance(node, ast.BoolOp) and "cause" in ast.unparse(node):
                found |= {str(each.value) for each in node.values if isinstance(each, ast.Constant)}
    return found


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_every_cause_of_the_kernel_is_known_and_none_is_left_over() -> None:
    by_client = {StepCause.HANDLER, StepCause.CHANGE_INVISIBLE}  # release_cause
    assert causes_in_code() | by_client | set(ERA_ENDING_KINDS) == set(StepCause)


def test_every_value_is_described_once() -> None:
    assert set(STEPS) == set(DeliveryStep)
    assert set(CAUSES) == set(StepCause)
    assert set(KINDS) == set(COMMAND_TYPES)
    assert set(REASONS) == set(Reason) - {Reason.EXPIRED_LOCALLY}


def test_the_comment_of_a_column_lists_its_values() -> None:
    of = {(name, column.name): column for name, table in TABLES.items() for column in table.columns}
    listed = {place for place, column in of.items() if column.values}
    assert listed == {
        ("operations", "kind"),
        ("operations", "reason"),
        ("deliveries", "step"),
        ("deliveries", "cause"),
        ("rejected", "reason"),
        ("consume_queue", "queue_type"),
    }
    assert of["rejected", "reason"].comment == f"Why it is rejected. Values: {', '.join(REJECT_REASONS)}."
