"""Each divergence of docs/testing.md that a start can see: healed, or refused with a command.

Rows of that table that need the real thing are elsewhere: see docs/testing.md, which names the test of each row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from checkpoints.applied import Applied
from checkpoints.reconcile import LogFound, TableFound, reconcile
from checkpoints.replay import Replay
from checkpoints.spark_progress import fresh_checkpoint, planned_end
from popstream.wire.base_errors import Corrupt, Unavailable

TOPIC = "popstream.ops"
STATE = Applied(state_epoch="b", ops_topic=TOPIC, ops_topic_id="id-1", apply_seq=30, next_offset={0: 500, 1: 700})
LOG = LogFound(topic=TOPIC, topic_id="id-1", first_offset={0: 0, 1: 0}, end_offset={0: 600, 1: 700})


def table(name: str = "operations", *, restored: bool = False, **delivered: int) -> TableFound:
    return TableFound(name=name, delivered=delivered, was_restored=restored)


def log(**changed: Any) -> LogFound:
    return msgspec.structs.replace(LOG, **changed)


def refusal(
    state: Applied | None = STATE, noted: dict[str, int] | None = None, found: LogFound = LOG, *tables: TableFound
) -> str:
    """What a start says."""
    with pytest.raises(Corrupt) as caught:
        reconcile(state, noted or {}, found, tables)
    return str(caught.value)


def test_a_state_that_agrees_with_log_and_tables_starts() -> None:
    reconcile(STATE, {"operations": 30}, LOG, [table(b=30), table("rejected")])


def test_a_job_starts_where_nothing_is_yet() -> None:
    reconcile(None, {}, log(first_offset={0: 0, 1: 0}), [table(), table("rejected")])


@pytest.mark.parametrize("behind", [1, 2, 20])
def test_delta_behind_rocksdb_by_k_commits_is_healed_from_the_outbox(behind: int) -> None:
    reconcile(STATE, {"operations": 30 - behind}, LOG, [table(b=30 - behind)])


@pytest.mark.parametrize("behind", [1, 2, 20])
def test_delta_lost_k_commits_that_the_outbox_has_forgotten(behind: int) -> None:
    """As after a power loss, if nobody had synced them; or when somebody removed files."""
    said = refusal(STATE, {"operations": 30}, LOG, table(b=30 - behind), table("rejected"))
    assert "Delta has lost commits" in said
    assert f"operations ends at {30 - behind}, and had rows up to 30" in said
    assert "`popstream restore`" in said


def test_a_table_that_is_empty_and_always_was_is_no_loss() -> None:
    reconcile(STATE, {"operations": 30}, LOG, [table(b=30), table("rejected")])


def test_rocksdb_restored_from_an_older_backup_is_behind_delta() -> None:
    said = refusal(STATE, {}, LOG, table(b=31), table("deliveries", b=33))
    assert "later decisions than the state, which ends at apply_seq 30" in said
    assert "deliveries ends at 33" in said
    assert "`popstream restore`" in said


def test_rocksdb_older_than_the_checkpoint_but_not_than_delta_is_decided_again() -> None:
    """A damaged WAL took decisions that had reached nobody but clients: they come out the same again."""
    reconcile(STATE, {}, LOG, [table(b=30)])


def test_rows_that_a_former_state_wrote_after_the_restore_are_refused() -> None:
    """Its job ran on, and the restored state would write rows of the same records again."""
    state = msgspec.structs.replace(STATE, former_epochs=["a"])
    found = [msgspec.structs.replace(table(a=34, b=30), written_since={"a"}), table("rejected", a=20)]
    said = refusal(state, {}, LOG, *found)
    assert "decisions of another state" in said
    assert said.endswith("`popstream restore`\n  operations: a, after the restore")


def test_rocksdb_lost() -> None:
    said = refusal(None, {}, LOG, table(b=31), table("rejected"))
    assert "there is no state, but the audit tables have decisions" in said
    assert "operations: b up to 31" in said
    assert "`popstream restore`" in said


def test_a_table_that_was_put_back_to_an_older_version_is_refused() -> None:
    said = refusal(STATE, {"operations": 30}, LOG, table(b=30, restored=True))
    assert "operations was RESTOREd" in said
    assert "`popstream restore`" in said


def test_two_hosts_with_a_state_each_write_to_the_same_tables() -> None:
    said = refusal(STATE, {}, LOG, table(b=30, z=4))
    assert "decisions of another state" in said
    assert "operations: z" in said


def test_a_restored_state_knows_the_epochs_that_it_continues() -> None:
    state = msgspec.structs.replace(STATE, state_epoch="c", former_epochs=["a", "b"])
    reconcile(state, {}, LOG, [table(a=12, b=99, c=30)])


def test_a_restored_state_counts_on_the_rows_of_those_before_it() -> None:
    """The table was moved away before the new state wrote to it: nothing else says that it had been there."""
    replay = Replay(restored_from="", whole={"operations": {"a": 12}})
    state = msgspec.structs.replace(STATE, former_epochs=["a"])
    reconcile(state, {}, LOG, [table(a=12), table("rejected")], replay)
    with pytest.raises(Corrupt, match="operations ends at -1, and had rows up to 12"):
        reconcile(state, {}, LOG, [table(), table("rejected")], replay)


def test_topic_recreated() -> None:
    """With more records than were decided, so that offsets alone would not tell."""
    said = refusal(STATE, {}, log(topic_id="id-2", end_offset={0: 5000, 1: 7000}))
    assert "was deleted and made again" in said
    assert "`popstream restore --lossy`" in said


def test_topic_truncated() -> None:
    said = refusal(STATE, {}, log(end_offset={0: 499, 1: 700}))
    assert "partition 0 ends at 499, but is decided up to 500" in said
    assert "has lost its end" in said
    assert "delete the topic, let `popstream up` make it again" in said
    assert "`popstream restore --lossy`" in said


def test_retention_passed_what_is_to_be_decided() -> None:
    said = refusal(STATE, {}, log(first_offset={0: 0, 1: 701}, end_offset={0: 600, 1: 900}))
    assert "partition 1 starts at 701, but is decided only up to 700" in said
    assert "`popstream restore --lossy`" in said


def test_retention_that_took_only_what_is_decided_is_no_loss() -> None:
    reconcile(STATE, {}, log(first_offset={0: 500, 1: 700}), [table(b=30)])


def test_a_new_state_does_not_begin_in_the_middle_of_a_log() -> None:
    assert "partition 0 starts at 3, but is decided only up to 0" in refusal(None, {}, log(first_offset={0: 3, 1: 0}))


def test_partition_added() -> None:
    grown = log(first_offset={0: 0, 1: 0, 2: 0}, end_offset={0: 600, 1: 700, 2: 9})
    said = refusal(STATE, {}, grown)
    assert "has 3 partitions and had 2" in said
    assert "`popstream up --prefix NAME --folder FOLDER --ops-partitions 3`" in said


def test_a_log_that_lacks_a_partition_is_refused() -> None:
    said = refusal(STATE, {}, log(first_offset={0: 0}, end_offset={0: 600}))
    assert "partition 1 ends at 0, but is decided up to 700" in said


def damaged(checkpoint: Path, how: str) -> None:
    """A checkpoint as Spark leaves it, and then damaged."""
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
        for number in range(3):
            text = f'v1\n{{}}\n{{"{TOPIC}":{{"0":{number}}}}}' if folder == "offsets" else "v1\n{}"
            (checkpoint / folder / str(number)).write_text(text)
    (checkpoint / "metadata").write_text('{"id":"1"}')
    victim = {"metadata": "metadata", "offsets": "offsets/2", "commits": "commits/2"}[how.split(maxsplit=1)[0]]
    if how.endswith("missing"):
        (checkpoint / victim).unlink()
    else:
        (checkpoint / victim).write_text("" if how.endswith("empty") else "v9\ngarbage")


@pytest.mark.parametrize(
    "how", [f"{file} {damage}" for file in ("metadata", "offsets", "commits") for damage in ("missing", "empty", "odd")]
)
def test_spark_checkpoint_damaged(tmp_path: Path, how: str) -> None:
    """It is not even looked at: the next start has one of its own."""
    damaged(tmp_path / "spark" / "4", how)
    assert fresh_checkpoint(tmp_path / "spark") == tmp_path / "spark" / "5"
    assert list((tmp_path / "spark").iterdir()) == []


def test_checkpoint_deleted(tmp_path: Path) -> None:
    assert fresh_checkpoint(tmp_path / "spark") == tmp_path / "spark" / "1"


def test_a_plan_of_a_running_query_that_cannot_be_read_says_which(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="micro-batch 7"):
        planned_end(tmp_path, 7, TOPIC)
