"""Claim: what was refused is counted by reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pipelines.decide_ops.ops_decider import Decided
from popstream.wire.reason import Reason, code_of


def row_of(reason: Reason) -> Any:
    return SimpleNamespace(reason=reason, code=code_of(reason))


def test_refused_runs_are_counted_by_reason_and_a_pop_without_a_message_is_none() -> None:
    decided = Decided()
    reasons = [Reason.OK, Reason.NO_MESSAGE, Reason.NO_PERMISSION, Reason.QUOTA_EXCEEDED, Reason.NO_PERMISSION]
    for reason in reasons:
        decided.decision.operations.append(row_of(reason), [(None, None, None)])
    assert decided.refused == {"NO_PERMISSION": 2, "QUOTA_EXCEEDED": 1}
