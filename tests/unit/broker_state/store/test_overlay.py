"""The values that an overlay keeps decoded between micro-batches are bounded in bytes."""

from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from broker_state.store.state_records import OpLog
from tests.support.counting_kv import CountingKv

PAGE = OpLog([(1, "an op_id of a usual length", 1)] * 28)
PAGE_BYTES = len(PAGE.encode())


def key(number: int) -> bytes:
    return b"F%d" % number


def write_pages(overlay: Overlay, kv: MemoryKv, count: int) -> None:
    """Each in a micro-batch of its own."""
    for number in range(count):
        overlay.put(key(number), PAGE)
        kv.write(overlay)


def test_what_was_written_is_not_read_again_while_it_is_not_too_much() -> None:
    kv = CountingKv()
    overlay = Overlay(kv, cache_bytes=20 * PAGE_BYTES)
    write_pages(overlay, kv, 10)
    assert all(overlay.get(key(number), OpLog.decode) is PAGE for number in range(10))
    assert not kv.read


def test_pages_are_counted_by_their_bytes_and_not_by_their_number() -> None:
    kv = CountingKv()
    overlay = Overlay(kv, cache_bytes=20 * PAGE_BYTES)
    write_pages(overlay, kv, 1_000)
    kept = sum(overlay.get(key(number), OpLog.decode) is PAGE for number in range(1_000))
    assert kept <= 20
    assert len(kv.read) == 1_000 - kept


def test_what_is_only_read_or_not_there_counts_too() -> None:
    kv = CountingKv()
    write_pages(Overlay(kv), kv, 10)
    overlay = Overlay(kv, cache_bytes=8 * PAGE_BYTES)
    for number in range(10):
        assert overlay.get(key(number), OpLog.decode) == PAGE
        assert overlay.bits(b"H%d" % number) == 0
    assert overlay.get(key(0), OpLog.decode) is overlay.get(key(0), OpLog.decode), "within a micro-batch all stays"
    overlay.written()
    kv.read.clear()
    overlay.get(key(0), OpLog.decode)
    overlay.bits(b"H0")
    assert kv.read == [key(0), b"H0"]

    for number in range(10_000):
        overlay.delete(b"an absent key with some length %d" % number)
    kv.write(overlay)
    kv.read.clear()
    assert overlay.get(b"an absent key with some length 0", OpLog.decode) is None
    assert kv.read


def test_what_was_erased_counts_when_it_is_asked_for() -> None:
    kv = CountingKv()
    overlay = Overlay(kv, cache_bytes=1_000)
    overlay.erase(b"F", (b"",))
    for number in range(1_000):
        assert overlay.get(key(number), OpLog.decode) is None
    kv.write(overlay)
    assert not kv.read
    overlay.get(key(0), OpLog.decode)
    assert kv.read == [key(0)]


def encoded_early(value: OpLog = PAGE) -> Overlay:
    """Three keys that were changed, and encoded before the WriteBatch."""
    overlay = Overlay(MemoryKv())
    for number in range(3):
        overlay.put(key(number), value)
    overlay.encode_changed()
    return overlay


def test_a_value_that_changes_after_it_was_encoded_is_written_once_as_it_is_last() -> None:
    overlay, last = encoded_early(), OpLog([(2, "another op_id", 1)])
    overlay.put(key(0), last)
    overlay.delete(key(1))
    changes = [*overlay.changes()]
    assert sorted(changes) == [
        ("state", key(0), last.encode()),
        ("state", key(1), None),
        ("state", key(2), PAGE.encode()),
    ]
    overlay.written()
    assert [*overlay.changes()] == []
    assert overlay.get(key(0), OpLog.decode) is last
    assert overlay.get(key(1), OpLog.decode) is None


def test_what_is_erased_or_dropped_after_it_was_encoded_is_not_written() -> None:
    erased, dropped = encoded_early(), encoded_early()
    erased.erase(b"F", (b"0", b"1"))
    erased.put(key(1), PAGE)
    assert sorted(each for _, each, _ in erased.changes()) == [key(1), key(2)]
    assert [first for first, _ in erased.erasures()] == [b"F0", b"F1"]
    dropped.drop(key(2))
    assert sorted(each for _, each, _ in dropped.changes()) == [key(0), key(1)]
