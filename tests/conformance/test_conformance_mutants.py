"""Claim: vectors and histories notice a kernel with a mistake in it, by themselves, without any other test.

Method: a copy of broker_state with the mistake comes first on the path of a process that compares the verdicts with
those that were looked at. A verdict must become another one. `make mutants` plays all of them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS, Mutant
from tests.mutants.mutated_copy import ROOT, copy_of_package

NOTICED = [
    # Leases of a concurrent lane.
    "expired_message_not_offered_again",
    "lease_expires_a_moment_late",
    "fresh_before_what_expired",
    "attempt_not_increased",
    "suspend_ignored",
    "suspended_counts_as_an_attempt",
    "epoch_not_increased",
    "ack_judged_by_revision",
    "superseded_change_accepted",
    "stale_handle_acks_a_newer_lease",
    "stale_ack_is_reported_as_applied",
    "late_ack_refused",
    "message_lost_by_an_equal_deadline",
    "change_prolongs_the_old_deadline",
    "commit_offset_not_contiguous",
    "old_handles_live_after_a_reset",
    "reset_backwards_only_moves_the_commit_offset",
    "init_max_is_min",
    "tags_ignored",
    "ack_beyond_the_queue_taken",
    # Pops that wait.
    "parked_pop_never_served",
    "new_pop_overtakes_a_parked_one",
    # The batch of an orderly lane.
    "batch_settled_a_moment_late",
    "epoch_not_increased_in_order",
    "commit_offset_jumps_in_order",
    "commit_offset_is_the_end_of_the_batch",
    "invisible_unacked_member_ignored",
    "acked_member_blocks",
    "lane_free_with_the_first_member",
    "same_attempt_blocked",
    "acked_member_not_counted",
    "suspend_ignored_in_order",
    "suspended_counts_in_order",
    "older_batch_is_current",
    "release_keeps_the_lane_blocked",
]


def compare(folder: Path) -> subprocess.CompletedProcess[str]:
    """Compare the verdicts, with the package in `folder`."""
    path = os.pathsep.join((str(folder), str(ROOT)))
    return subprocess.run(
        # -P: the folder that this is run in must not come before the path.
        [sys.executable, "-P", "-m", "tests.conformance.golden"],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_unchanged_copy_has_the_same_verdicts(tmp_path: Path) -> None:
    done = compare(copy_of_package(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"broker_state is {tmp_path}/broker_state/__init__.py" in done.stdout


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if place % 7 == 0 else pytest.mark.long) for place, name in enumerate(NOTICED)]
)
def test_a_mutant_changes_a_verdict(name: str, tmp_path: Path) -> None:
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == name]
    done = compare(copy_of_package(tmp_path, mutant))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "was: " in done.stdout, done.stdout + done.stderr


def test_every_mutant_is_known_once() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(NOTICED)) == len(NOTICED)
    assert set(NOTICED) <= set(names)
    assert all(isinstance(mutant, Mutant) for mutant in MUTANTS)
