# ruff: noqa: ARG002, C901, FBT001, PLR0911, PLR0912, PLR0915  (called alike, in one piece)
"""The kernel's rules once more, as plainly as they can be written: one small dict for each message.

Written from docs/semantics.md and the design alone, without a look at the kernel. Nothing here is fast, packed or
ranged on purpose; where the document leaves a choice, the choice is a constant or carries a "CHOICE" comment.

A queue is a dict (`new_queue`), a lane is a dict (`new_lane`), a message that was handed out and is not acked is
a dict in `lane["messages"]` (`state`, `epoch`, `revision`, `pop_time`, `invisible`, `start`, `deadline`, `attempt`,
`suspended`, `client`).

An orderly lane has no messages but one dict in `lane["batch"]`, its latest pop (`epoch`, `pop_time`, `invisible`,
`attempt_id`, `client`, `free`, `due`, `counts`, `members`): `counts` has the consumed counts by offset, also of what
is no member any more, `members` a dict for each offset (`acked`, `next_visible`, `suspended`, `ended`). Its
`lane["acked"]` has only what the commit offset passed.
"""

import heapq
from collections import Counter
from typing import Any, NamedTuple

import msgspec

from popstream.wire.command import Command
from popstream.wire.handle import BROKER_NAME, REVIVE_QUEUE_ID_ORDERLY, Handle, decode_handle, encode_handle, lane_check
from popstream.wire.reason import Reason, code_of

__all__ = [
    "DEFAULT_POLICY",
    "LANE_QUOTAS",
    "QUEUE_QUOTAS",
    "ModelOutcome",
    "Record",
    "ReferenceModel",
    "Step",
    "WorkLimits",
    "partition_of",
    "queue_key",
]

MAX_OFFSET = 2**63 - 1
MAX_TIME_MS = 43_200_000
MAX_RANGE = 1_000_000
MAX_LIST = 10_000
MINUTE_MS = 60_000
WINDOW_MINUTES = 10
IDLE_MS = 86_400_000
SEARCH_PAUSE_MS = 200
TAG_CLASSES = 1_024
TIMES = -1  # the class of units with a delivery time to come
DELAY_MAX_MS = 7 * 86_400_000

LEASED = "leased"
AVAILABLE = "available"
BACKING_OFF = "backing_off"

DEFAULT_POLICY = {
    "max_attempts": 0,
    "back_off_ms": [],
    "parked_max": 1024,
    "in_flight_max": 0,
    "window_max": 4_194_304,
    "pops_per_s_max": 0,
    "client_pops_per_s_max": 0,
    "client_parked_max": 0,
    "queue_pops_per_s_max": 0,
    "queue_parked_max": 0,
    "new_lanes_per_min_max": 0,
    "resets_per_min_max": 0,
}
LANE_QUOTAS = ("pops_per_s_max", "client_pops_per_s_max", "client_parked_max")
QUEUE_QUOTAS = ("queue_pops_per_s_max", "queue_parked_max", "new_lanes_per_min_max", "resets_per_min_max")
CLIENTS_COUNTED = 64
PARKED_LOOKED_AT = 1_024

AnyCommand = Any  # one of the classes of Command, whose fields differ
Message = dict[str, Any]
Batch = dict[str, Any]
Lane = dict[str, Any]
Queue = dict[str, Any]
Unit = tuple[int, int, int]
Step = tuple[str, int, str, int, int, int, int, str | None]

PLAIN: Unit = (0, 1, 0)

_decoder = msgspec.json.Decoder(Command)


class Record(NamedTuple):
    """One record of the ops topic."""

    partition: int
    kafka_offset: int
    timestamp_ms: int
    key: bytes
    value: bytes


class WorkLimits(NamedTuple):
    """What one record may spend on the search for tags, on what is due, on dispatched ranges, named offsets, pages."""

    search_cost: int
    due_cost: int
    dispatch_cost: int
    dispatch_pieces: int
    entry_offsets: int
    available_pages: int


WORK_LIMITS = WorkLimits(32_768, 16_384, 20_000, 10_000, 131_072, 2_048)


class ModelOutcome(NamedTuple):
    """What one record led to.

    `answers` are those somebody waits for (op_id and reply_to given); `decisions` are all of them. `dead_letters` are
    (group, offset, "attempt_limit" or "rejected"); `steps` (group, offset, step, epoch, revision, attempt, at_ms,
    client): who took the step, else who held the lease, as far as it is known.
    """

    answers: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
    dead_letters: list[tuple[str, int, str]]
    steps: list[Step]
    queue: tuple[str, int]
    repeated: bool


def queue_key(topic: str, queue_id: int) -> bytes:
    """Key bytes of the records of a queue."""
    return f"{topic}\0{queue_id}".encode()


def partition_of(key: bytes, partitions: int) -> int:
    """Partition of `key`: Java's murmur2 of it, made positive, modulo the count.

    >>> partition_of(b"21", 2**31) == -973932308 & 0x7FFFFFFF, partition_of(b"foobar", 2**31) == -790332482 & 0x7FFFFFFF
    (True, True)
    """
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if key[whole:]:
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions


def new_queue(topic: str, queue_id: int) -> Queue:
    """A queue nobody has declared yet."""
    return {
        "topic": topic,
        "queue_id": queue_id,
        "declared": False,
        "topic_id": None,
        "queue_type": None,
        "now": 0,
        "min_offset": 0,
        "commit_position": 0,
        "written": {},  # offset -> (tag, count, time before which no pop is given it)
        "has_facts": False,  # a dispatch gave a tag, a count or a time to come
        "fact_runs": Counter(),  # offset // 64 -> runs of offsets to which a dispatch gave a tag or a count
        "fact_classes": {},  # offset // 64 -> classes of the tags that a dispatch gave there, TIMES if a time to come
        "holes": set(),
        "policy": None,
        "lanes": {},  # group -> lane
        "lane_count": 0,  # lanes that were made, and eras of lanes that began with a reset
        "has_overdue": False,  # something that is due was left to the next record
        "epochs": {},  # group -> last epoch of the lanes that had this name
        "ops": {},  # op_id -> what is remembered of it
        "minute": 0,
        "counted": {},  # what the quotas of the queue count: (what, second or minute) -> operations
    }


def new_lane(group: str, at: int, epoch: int) -> Lane:
    """A lane that starts at offset `at`."""
    return {
        "group": group,
        "no": 0,  # its number in the queue
        "era_no": 0,  # another one since each reset
        "start": at,
        "commit": at,
        "next": at,
        "epoch": epoch,
        "reset_epoch": epoch,
        "orderly": None,  # its mode, once it is fixed
        "messages": {},  # offset -> message, handed out (or reset) and not acked; of a concurrent lane
        "batch": None,  # of an orderly lane
        "search_due": None,  # when its search for tags goes on, while that pauses
        "touched": None,  # when the last operation was that reached the lane
        "acked": set(),
        "holes": 0,
        "policy": None,
        "declared": {},  # `max_attempts` and `back_off_ms` of the last pop that gave one of them
        "named": set(),  # clients that have popped since they returned their leases, if they named themselves
        "counted": {},  # pops that its quotas count: ("pops", second), ("client", second, client) -> pops
        "parked": [],
        "behind": False,  # a dispatch moved it; a lazy implementation may not have noticed yet
        "dead_lettered": 0,
        "expired_from_log": 0,
        "passed_over": 0,
        "skipped_by_reset": 0,
        "was_orderly": False,
        "went_back": False,
        "recounted": False,
        "became_holes": 0,
    }


class ReferenceModel:
    """All queues of an ops topic with `partitions` partitions; `apply` decides one record.

    `counts` tells how often each outcome and transition came up, so that a test can see that it tested something.
    """

    def __init__(self, partitions: int, limits: WorkLimits = WORK_LIMITS) -> None:
        self.partitions = partitions
        self._limits = limits
        self._search_left = limits.search_cost
        self.queues: dict[tuple[str, int], Queue] = {}
        self.counts: Counter[tuple[str, ...]] = Counter()
        self._keys: dict[bytes, int] = {}
        # Of the record being decided:
        self._decisions: list[dict[str, Any]] = []
        self._answers: list[dict[str, Any]] = []
        self._dead: list[tuple[str, int, str]] = []
        self._steps: list[Step] = []

    # ------------------------------------------------------------------------------------------- one record

    def apply(self, record: Record) -> ModelOutcome:
        """Decide `record`."""
        partition, _, timestamp_ms, key, value = record
        command = _decoder.decode(value)
        kind = type(command).__struct_config__.tag
        name = (command.topic, command.queue_id)
        self._decisions, self._answers, self._dead, self._steps = [], [], [], []
        self._by: str | None = getattr(command, "client_id", None)
        self._search_left = self._limits.search_cost
        repeated = False
        queue = self.queues.get(name)
        if key not in self._keys:
            self._keys[key] = partition_of(key, self.partitions)
        if self._keys[key] != partition or key != queue_key(*name):
            self._refuse_early(command, kind, Reason.MISROUTED, timestamp_ms)
        elif queue is None and kind != "declare":
            self._refuse_early(command, kind, Reason.TOPIC_NOT_EXIST, timestamp_ms)
        elif queue is None and (_is_wrong_op_id(command.op_id) or _what_is_invalid(command, kind)):
            self.counts["declare", "refused before a first one"] += 1
            self._refuse_early(command, kind, Reason.INVALID_PARAMETER, timestamp_ms)
        else:
            if queue is None:
                queue = self.queues[name] = new_queue(*name)
            queue["now"] = max(queue["now"], timestamp_ms)
            self._forget_old_op_ids(queue)
            self._due(queue)
            repeated = self._command(queue, command, kind, value)
            for group in sorted(queue["lanes"]):
                self._grant(queue, queue["lanes"][group])
        for decision in self._decisions:
            self.counts["answer", decision["type"], decision["reason"]] += 1
        return ModelOutcome(self._answers, self._decisions, self._dead, self._steps, name, repeated)

    def _refuse_early(self, command: AnyCommand, kind: str, reason: Reason, timestamp_ms: int) -> None:
        answer = self._new_answer(command.op_id, kind, reason, False, timestamp_ms)
        self._say(command.op_id, command.reply_to, answer)

    def _new_answer(self, op_id: str | None, kind: str, reason: Reason, applied: bool, now: int) -> dict[str, Any]:
        return {
            "op_id": op_id,
            "type": kind,
            "code": code_of(reason),
            "reason": reason.value,
            "applied": applied,
            "now_ms": now,
            "messages": [],
            "handle": None,
            "pop_time_ms": None,
            "invisible_time_ms": None,
            "revive_queue_id": None,
            "runs": [],
            "released": [],
            "commit_offsets": {},
            "commit_offset": None,
            "commit_position": None,
        }

    def _say(self, op_id: str | None, reply_to: int | None, answer: dict[str, Any]) -> None:
        self._decisions.append(answer)
        if op_id is not None and reply_to is not None:
            self._answers.append(answer)

    def _forget_old_op_ids(self, queue: Queue) -> None:
        minute = queue["now"] // MINUTE_MS
        if minute != queue["minute"]:
            queue["minute"] = minute
            answered = [(op_id, op) for op_id, op in queue["ops"].items() if op["answer"] is not None]
            old = [op_id for op_id, op in answered if op["minute"] + WINDOW_MINUTES <= minute]
            for op_id in old:
                self.counts["op_id", "forgotten"] += 1
                del queue["ops"][op_id]

    # ------------------------------------------------------------------------------------------- step 1: due

    def _due(self, queue: Queue) -> None:
        now = queue["now"]
        due: list[tuple[int, str, int, int]] = []  # deadline, group, offset, place among the parked
        parked: list[tuple[Lane, dict[str, Any]]] = []
        for (deadline, _, _, _), lane, what in self._due_now(queue):
            if isinstance(what, list):
                due += [(lane["messages"][offset]["deadline"], lane["group"], offset, -1) for offset in what]
            elif what == "batch":
                due.append((deadline, lane["group"], 0, -1))
            elif what == "search":
                lane["search_due"] = None  # nothing else that is due depends on it
                lane["behind"] = False
                self.counts["search", "goes on"] += 1
            else:
                due.append((deadline, lane["group"], MAX_OFFSET, len(parked)))
                parked.append((lane, what))
        heapq.heapify(due)
        while due:
            deadline, group, offset, place = heapq.heappop(due)
            lane = queue["lanes"][group]
            lane["behind"] = False
            if place >= 0:
                parked[place][0]["parked"].remove(parked[place][1])
                self.counts["parked", "timeout"] += 1
                self._answer_pop(queue, parked[place][1], Reason.POLLING_TIMEOUT)
                continue
            if lane["batch"] is not None:
                self.counts["batch", "freed by its deadline"] += 1
                self._free_batch(queue, lane, deadline)
                self._settle(queue, lane)
                continue
            message = lane["messages"][offset]
            if message["state"] == BACKING_OFF:
                message["state"], message["deadline"] = AVAILABLE, None
                self.counts["step", "back_off_ended"] += 1
                continue
            self._step(lane, offset, "expired", deadline)
            self._end_lease(queue, lane, offset, deadline)
            if message["deadline"] is not None and message["deadline"] <= now:
                self.counts["step", "back_off_ended_at_once"] += 1
                heapq.heappush(due, (message["deadline"], group, offset, -1))
            self._settle(queue, lane)

    def _due_now(self, queue: Queue) -> list[tuple[tuple[int, int, int, int], Lane, Any]]:
        """Leases and back-offs (offsets of one page) and parked pops that are due, as far as one record takes them."""
        now = queue["now"]
        found: list[tuple[tuple[int, int, int, int], Lane, Any]] = []
        for lane in queue["lanes"].values():
            pages: dict[int, list[int]] = {}
            for offset, message in sorted(lane["messages"].items()):
                if message["deadline"] is not None and message["deadline"] <= now:
                    pages.setdefault(offset // 64, []).append(offset)
            for page, offsets in pages.items():
                first = min(lane["messages"][offset]["deadline"] for offset in offsets)
                found.append(((first, lane["era_no"], 0, page), lane, offsets))
            for number, pop in enumerate(lane["parked"]):
                if pop["deadline"] <= now:
                    found.append(((pop["deadline"], lane["no"], 1, number), lane, pop))
            if lane["batch"] is not None and lane["batch"]["due"] is not None and lane["batch"]["due"] <= now:
                found.append(((lane["batch"]["due"], lane["era_no"], 2, 0), lane, "batch"))
            if lane["search_due"] is not None and lane["search_due"] <= now:
                found.append(((lane["search_due"], lane["era_no"], 3, 0), lane, "search"))
        found.sort(key=lambda each: each[0])
        left, taken = self._limits.due_cost, 0
        for _, lane, what in found:
            if left <= 0:
                break
            taken += 1
            left -= 5 if isinstance(what, list) else 6
            if what == "batch":
                left -= 6 * len(lane["batch"]["members"])
            elif isinstance(what, list):
                before: tuple[int, Any] = (-2, None)
                for offset in what:
                    message = lane["messages"][offset]
                    left -= before != (offset - 1, message)
                    before = (offset, message)
        for _, lane, what in found[taken:]:
            if what == "batch":
                lane["batch"]["overdue"] = True
                self.counts["due", "batch left to the next record"] += 1
        queue["has_overdue"] = taken < len(found)
        self.counts["due", "left to the next record"] += queue["has_overdue"]
        return found[:taken]

    # ------------------------------------------------------------------------------------------- step 2: command

    def _command(self, queue: Queue, command: AnyCommand, kind: str, value: bytes) -> bool:
        op_id, now = command.op_id, queue["now"]
        if _is_wrong_op_id(op_id):
            self._say(op_id, command.reply_to, self._new_answer(op_id, kind, Reason.INVALID_PARAMETER, False, now))
            self.counts["invalid", kind, "op_id"] += 1
            return False
        known = queue["ops"].get(op_id)
        if known is not None:
            if known["value"] != value:
                self._say(op_id, command.reply_to, self._new_answer(op_id, kind, Reason.OP_ID_REUSED, False, now))
                return False
            if known["answer"] is None:
                self.counts["repeated", "still parked"] += 1
            else:
                self.counts["repeated", kind] += 1
                self._say(op_id, command.reply_to, known["answer"])
            return True
        op = {"value": value, "kind": kind, "minute": now // MINUTE_MS, "answer": None, "group": None, "epoch": None}
        invalid = _what_is_invalid(command, kind)
        if invalid is not None:
            self.counts["invalid", kind, invalid] += 1
            answer = self._new_answer(op_id, kind, Reason.INVALID_PARAMETER, False, now)
        else:
            answer = getattr(self, "_" + kind)(queue, command, op)
        if op_id is not None:
            queue["ops"][op_id] = op
        if answer is not None:  # a pop is answered by the grant step
            op["answer"] = answer
            self._say(op_id, command.reply_to, answer)
        return False

    def _declare(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        reason, applied = Reason.OK, False
        if not queue["declared"]:
            self._start_queue(queue, command)
            applied = True
        elif command.topic_id == queue["topic_id"]:
            if command.queue_type != queue["queue_type"]:
                reason = Reason.INVALID_PARAMETER
                self.counts["declare", "other type"] += 1
            else:
                self.counts["declare", "again"] += 1
        else:  # CHOICE: of whatever type
            for group in sorted(queue["lanes"]):
                lane = queue["lanes"][group]
                queue["epochs"][group] = lane["epoch"]
                for pop in lane["parked"]:
                    self.counts["parked", "topic recreated"] += 1
                    self._answer_pop(queue, pop, Reason.TOPIC_NOT_EXIST)
            self.counts["declare", "other topic id"] += 1
            self._start_queue(queue, command)  # CHOICE: op_ids and the clock stay, policies go
            applied = True
        answer = self._new_answer(command.op_id, "declare", reason, applied, queue["now"])
        if reason is Reason.OK:
            answer["commit_position"] = queue["commit_position"]
        return answer

    def _start_queue(self, queue: Queue, command: AnyCommand) -> None:
        queue["declared"] = True
        queue["topic_id"] = command.topic_id
        queue["queue_type"] = command.queue_type
        queue["min_offset"] = queue["commit_position"] = command.min_offset
        queue["written"] = {}
        queue["has_facts"] = False
        queue["fact_runs"] = Counter()
        queue["fact_classes"] = {}
        queue["has_overdue"] = False
        queue["holes"] = set()
        queue["lanes"] = {}
        queue["policy"] = None
        queue["counted"] = {}

    def _policy(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        policy = {name: getattr(command, name) for name in DEFAULT_POLICY}
        if command.group is None:
            queue["policy"] = policy
            if not any(policy[name] for name in (*LANE_QUOTAS, *QUEUE_QUOTAS)):
                queue["counted"] = {}
            self.counts["policy", "queue"] += 1
        else:
            lane = queue["lanes"].get(command.group)
            if lane is None and self._exceeds(queue, "new_lanes_per_min_max"):
                return self._new_answer(command.op_id, "policy", Reason.QUOTA_EXCEEDED, False, queue["now"])
            if lane is None:
                self._count(queue, "new_lanes_per_min_max")
            if lane is not None and command.orderly is not None and not self._may_become(lane, command.orderly):
                # CHOICE: a refused operation does not reach the lane: it is no end of its idle time.
                return self._new_answer(command.op_id, "policy", Reason.WRONG_MODE, False, queue["now"])
            lane = self._lane_for(queue, command.group, queue["min_offset"])
            lane["policy"] = policy
            if not any(policy[name] for name in LANE_QUOTAS):
                lane["counted"] = {}
            if command.orderly is not None and lane["orderly"] is not command.orderly:
                self.counts["mode", "fixed by a policy" if lane["orderly"] is None else "changed by a policy"] += 1
                lane["was_orderly"] = lane["was_orderly"] or bool(lane["orderly"])
                lane["orderly"], lane["batch"], lane["search_due"] = command.orderly, None, None
                self._begin_era(queue, lane)
            self._settle(queue, lane)
            self.counts["policy", "lane"] += 1
        return self._new_answer(command.op_id, "policy", Reason.OK, True, queue["now"])

    def _may_become(self, lane: Lane, orderly: bool) -> bool:
        if lane["orderly"] is None or lane["orderly"] is orderly:
            return True
        if lane["commit"] < lane["next"]:
            self.counts["mode", "kept: something is handed out"] += 1
            return False
        if lane["parked"]:
            self.counts["mode", "kept: a pop waits"] += 1
            return False
        return True

    def _policy_of(self, queue: Queue, lane: Lane | None) -> dict[str, Any]:
        own: dict[str, Any] | None = lane["policy"] if lane is not None else None
        policy: dict[str, Any] = own or queue["policy"] or DEFAULT_POLICY
        if lane is None or own is not None:
            return policy
        for name in [name for name, value in lane["declared"].items() if value and not policy[name]]:
            policy = {**policy, name: lane["declared"][name]}
            self.counts["declared by pops", name] += 1
        return policy

    def _lane_for(self, queue: Queue, group: str, at: int) -> Lane:
        lane: Lane | None = queue["lanes"].get(group)
        if lane is None:
            lane = queue["lanes"][group] = new_lane(group, at, self._last_epoch(queue))
            queue["lane_count"] += 1
            lane["no"] = lane["era_no"] = queue["lane_count"]
            self.counts["lane", "made again" if lane["epoch"] else "made"] += 1
            self._settle(queue, lane)
        self._touch(queue, lane)
        return lane

    def _touch(self, queue: Queue, lane: Lane) -> None:
        """An operation reaches the lane."""
        lane["behind"] = False
        batch, before, now = lane["batch"], lane["touched"], queue["now"]
        if batch is not None and before is not None and now - before > IDLE_MS:
            self.counts["batch", "counts dropped" if batch["counts"] else "idle without counts"] += 1
            batch["counts"] = {}
        lane["touched"] = now

    def _begin_era(self, queue: Queue, lane: Lane) -> None:
        queue["lane_count"] += 1
        lane["era_no"] = queue["lane_count"]

    def _last_epoch(self, queue: Queue) -> int:
        epochs: dict[str, int] = queue["epochs"]
        return max(epochs.values(), default=0)

    def _dispatch(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        # CHOICE, settled by what the kernel answers: one run for each range, numbered through ranges and skip.
        runs = []
        parts: list[tuple[int, int, Unit | None]] = [(r.first, r.last, self._unit(queue, r)) for r in command.ranges]
        parts += [(first, last, None) for first, last in command.skip]
        left = self._limits.dispatch_cost
        pieces_left = self._limits.dispatch_pieces
        touched: int | None = None
        for index, (first, last, unit) in enumerate(parts):
            reason, applied = self._judge_dispatch(queue, first, last, unit), False
            if reason is Reason.OK:
                size = 4096 if unit in (None, PLAIN) else 64
                blocks = {*range(first // size, last // size + 1)}
                cost = 1 + 3 * len(blocks - {touched}) if unit is None else 1 + (unit != PLAIN) + len(blocks)
                if cost > left or pieces_left <= 0:
                    reason = Reason.AHEAD_OF_WINDOW
                    self.counts["dispatch", "too much for one record"] += 1
                else:
                    left -= cost
                    if unit is None:  # a skip
                        self.counts["dispatch", "skip where the one before ended"] += touched in blocks
                        touched = last // size
            self.counts["dispatch range" if unit else "skip range", reason.value] += 1
            if reason is Reason.OK:
                stop = last + 1
                if unit != PLAIN:
                    stop, pieces = self._reach(queue, first, last + 1, pieces_left, is_skip=unit is None)
                    pieces_left -= pieces
                applied = (
                    self._skip(queue, first, stop - 1) if unit is None else self._write(queue, first, stop - 1, unit)
                )
                if stop <= last:
                    self.counts["dispatch", "a part of a range"] += 1
                    reason = Reason.AHEAD_OF_WINDOW
            runs.append(_run("dispatch", index, first, last, (reason, applied, None, None, None, None)))
        for lane in queue["lanes"].values():
            before = lane["commit"], lane["next"]
            self._settle(queue, lane)
            if before != (lane["commit"], lane["next"]):
                lane["behind"] = True
        answer = self._answer_of_runs(queue, command, "dispatch", runs)
        answer["commit_position"] = queue["commit_position"]
        return answer

    def _reach(self, queue: Queue, first: int, end: int, pieces_left: int, *, is_skip: bool) -> tuple[int, int]:
        """How far a range is marked that consists of too many runs of offsets not known before, and of how many."""
        moves_min = is_skip and first <= queue["min_offset"]
        runs: list[list[int]] = []
        for offset in range(max(first, queue["commit_position"]), end):
            if offset in queue["written"] or offset in queue["holes"]:
                continue
            if runs and runs[-1][1] == offset:
                runs[-1][1] = offset + 1
            else:
                runs.append([offset, offset + 1])
        if len(runs) <= pieces_left:
            return end, len(runs)
        is_up_to_next = moves_min or not is_skip  # what is known before the next run makes no difference to a skip
        return runs[pieces_left][0] if is_up_to_next else runs[pieces_left - 1][1], pieces_left

    def _unit(self, queue: Queue, written: AnyCommand) -> Unit:
        """What is known of each offset of a range: a delivery time that has come is none, one too far ahead is cut."""
        due = written.deliver_at_ms
        self.counts["delivery time", "too far ahead"] += due > queue["now"] + DELAY_MAX_MS
        if 0 <= due <= queue["now"]:
            self.counts["delivery time", "past"] += due > 0
            due = 0
        return written.tag, written.count, due if due > MAX_OFFSET else min(due, queue["now"] + DELAY_MAX_MS)

    def _judge_dispatch(self, queue: Queue, first: int, last: int, unit: Unit | None) -> Reason:
        if not 0 <= first <= last <= MAX_OFFSET or last - first + 1 > MAX_RANGE:
            return Reason.INVALID_PARAMETER
        # CHOICE: bounds of count
        if unit is not None and not (0 <= unit[0] < 2**64 and 1 <= unit[1] < 2**31 and 0 <= unit[2] <= MAX_OFFSET):
            return Reason.INVALID_PARAMETER
        # CHOICE: a written range must not begin below the min offset; a skip may lie below it as a whole.
        if unit is not None and first < queue["min_offset"]:
            return Reason.BELOW_MIN
        if last >= queue["commit_position"] + self._policy_of(queue, None)["window_max"]:
            return Reason.AHEAD_OF_WINDOW
        return Reason.OK

    def _write(self, queue: Queue, first: int, last: int, unit: Unit) -> bool:
        before, changed = -1, False
        queue["has_facts"] |= unit != PLAIN
        for offset in range(first, last + 1):
            if offset not in queue["written"] and offset not in queue["holes"]:  # CHOICE: what is known stays as it was
                queue["written"][offset] = unit
                changed = True
                if unit != PLAIN and (offset != before + 1 or not offset % 64):
                    queue["fact_runs"][offset // 64] += 1
                queue["fact_classes"].setdefault(offset // 64, set()).update(_classes_of(unit))
                before = offset
        self.counts["dispatch", "new" if changed else "known"] += 1
        if first > queue["commit_position"]:
            self.counts["dispatch", "out of order"] += 1
        self._move_commit_position(queue)
        return changed

    def _move_commit_position(self, queue: Queue) -> None:
        written, holes = queue["written"], queue["holes"]
        while queue["commit_position"] in written or queue["commit_position"] in holes:
            queue["commit_position"] += 1

    def _skip(self, queue: Queue, first: int, last: int) -> bool:
        low = max(first, queue["min_offset"])
        late = [offset for offset in range(low, last + 1) if offset in queue["written"]]
        new = [o for o in range(low, last + 1) if o not in queue["written"] and o not in queue["holes"]]
        queue["holes"].update(new)
        if first <= queue["min_offset"] <= last:
            self.counts["skip", "retention"] += 1
            end = last + 1
            for lane in queue["lanes"].values():
                if lane["orderly"]:
                    self._look_again(queue, lane)
                    self._take_from_log(queue, lane, end)
                    continue
                for offset in range(lane["commit"], end):
                    if offset in lane["acked"]:
                        continue
                    if offset not in queue["holes"]:
                        self._expire_from_log(queue, lane, offset)
                    elif offset >= lane["next"]:
                        lane["holes"] += 1
                if lane["next"] < end or lane["commit"] < end:
                    lane["behind"] = True
                lane["next"] = max(lane["next"], end)
                lane["commit"] = max(lane["commit"], end)
            for offset in late:
                del queue["written"][offset]
            queue["min_offset"] = end
            late = [low]
            queue["commit_position"] = max(queue["commit_position"], end)
        elif late:
            self.counts["skip", "late"] += 1
            for offset in late:
                for lane in queue["lanes"].values():
                    if lane["orderly"]:
                        continue
                    # CHOICE: what a lane had not reached is a hole for it, not expired.
                    if offset < lane["next"] and offset >= lane["commit"] and offset not in lane["acked"]:
                        self._expire_from_log(queue, lane, offset)
                        lane["behind"] = True
                del queue["written"][offset]
            queue["holes"].update(late)
            for lane in queue["lanes"].values():
                if lane["orderly"]:
                    self._look_again(queue, lane)
                    self._skip_members(queue, lane, late)
        elif new:
            self.counts["skip", "holes"] += 1
        else:
            self.counts["skip", "known"] += 1
        self._move_commit_position(queue)
        return bool(late or new)

    def _expire_from_log(self, queue: Queue, lane: Lane, offset: int) -> None:
        if offset in lane["messages"] and lane["messages"][offset]["attempt"]:
            self._step(lane, offset, "expired_from_log", queue["now"])
        lane["messages"].pop(offset, None)
        lane["acked"].add(offset)
        lane["expired_from_log"] += 1
        self.counts["step", "expired_from_log"] += 1

    def _pop(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any] | None:
        known = queue["lanes"].get(command.group)
        if known is not None and known["orderly"] is (not command.order):
            self.counts["mode", "pop of the other mode"] += 1
            return self._new_answer(command.op_id, "pop", Reason.WRONG_MODE, False, queue["now"])
        is_too_many_lanes = known is None and self._exceeds(queue, "new_lanes_per_min_max")
        if is_too_many_lanes or self._exceeds_pops(queue, known, command.client_id):
            return self._new_answer(command.op_id, "pop", Reason.QUOTA_EXCEEDED, False, queue["now"])
        if known is None:
            self._count(queue, "new_lanes_per_min_max")
        at = queue["min_offset"] if command.init == "min" else queue["commit_position"]
        lane = self._lane_for(queue, command.group, at)
        if lane["orderly"] is None:
            self.counts["mode", "fixed by a pop"] += 1
            lane["orderly"] = command.order
        if command.max_attempts is not None or command.back_off_ms is not None:
            lane["declared"] = {"max_attempts": command.max_attempts or 0, "back_off_ms": command.back_off_ms or []}
        self._settle(queue, lane)
        self._count_pop(queue, lane, command.client_id)
        op["group"] = command.group
        lane["parked"].append(
            {"op": op, "command": command, "deadline": queue["now"] + command.poll_time_ms, "new": True}
        )
        return None

    def _exceeds(self, queue: Queue, quota: str) -> bool:
        """Whether one more of what the quota counts in a minute is too many."""
        policy: dict[str, Any] = queue["policy"] or DEFAULT_POLICY
        exceeds: bool = 0 < policy[quota] <= queue["counted"].get((quota, queue["now"] // MINUTE_MS), 0)
        self.counts["quota", quota] += exceeds
        return exceeds

    def _count(self, queue: Queue, quota: str) -> None:
        policy = queue["policy"] or DEFAULT_POLICY
        if any(policy[name] for name in (*LANE_QUOTAS, *QUEUE_QUOTAS)):
            key = (quota, queue["now"] // MINUTE_MS)
            queue["counted"][key] = queue["counted"].get(key, 0) + 1

    def _exceeds_pops(self, queue: Queue, lane: Lane | None, client: str | None) -> bool:
        for counts, quota, policy, counted, key in self._pop_quotas(queue, lane, client):
            if counts and 0 < policy[quota] <= counted.get(key, 0):
                self.counts["quota", quota] += 1
                return True
        return False

    def _count_pop(self, queue: Queue, lane: Lane, client: str | None) -> None:
        for counts, quota, policy, counted, key in self._pop_quotas(queue, lane, client):
            if counts and quota == "client_pops_per_s_max" and not policy[quota]:
                for each in [each for each in counted if each[0] == "client"]:
                    del counted[each]
            elif counts:
                counted[key] = counted.get(key, 0) + 1

    def _pop_quotas(
        self, queue: Queue, lane: Lane | None, client: str | None
    ) -> list[tuple[bool, str, dict[str, Any], dict[Any, int], tuple[Any, ...]]]:
        """Of each quota of pops: whether it counts, its name, the policy with it, where and under what it counts."""
        second = queue["now"] // 1000
        of_queue: dict[str, Any] = queue["policy"] or DEFAULT_POLICY
        of_lane: dict[str, Any] = (lane["policy"] if lane is not None else None) or of_queue
        counts_queue = any(of_queue[name] for name in (*LANE_QUOTAS, *QUEUE_QUOTAS))
        counts_lane = any(of_lane[name] for name in LANE_QUOTAS)
        by_queue, by_lane = queue["counted"], lane["counted"] if lane is not None else {}
        known = {key[2] for key in by_lane if key[0] == "client" and key[1] == second}
        if client not in known and len(known) >= CLIENTS_COUNTED:
            client = None
        return [
            (counts_queue, "queue_pops_per_s_max", of_queue, by_queue, ("pops", second)),
            (counts_lane, "pops_per_s_max", of_lane, by_lane, ("pops", second)),
            (counts_lane, "client_pops_per_s_max", of_lane, by_lane, ("client", second, client)),
        ]

    def _exceeds_parked(self, queue: Queue, lane: Lane, client: str | None, waiting: list[dict[str, Any]]) -> str:
        """The quota that one more parked pop exceeds; "" if there is none."""
        of_queue: dict[str, Any] = queue["policy"] or DEFAULT_POLICY
        of_lane = self._policy_of(queue, lane)
        everywhere = len(waiting) + sum(len(other["parked"]) for other in queue["lanes"].values() if other is not lane)
        if 0 < of_queue["queue_parked_max"] <= everywhere:
            return "queue_parked_max"
        own = [pop for pop in waiting[-PARKED_LOOKED_AT:] if pop["command"].client_id == client]
        return "client_parked_max" if client is not None and 0 < of_lane["client_parked_max"] <= len(own) else ""

    def _ack(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        return self._judge_entries(queue, command, "ack")

    def _reject(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        return self._judge_entries(queue, command, "reject")

    def _change_invisible(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        return self._judge_entries(queue, command, "change_invisible")

    def _cancel(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        # CHOICE: a pop that is still parked is found even when its op_id is forgotten.
        answer = self._new_answer(command.op_id, "cancel", Reason.OK, False, queue["now"])
        for group in sorted(queue["lanes"]):
            lane = queue["lanes"][group]
            for pop in lane["parked"]:
                if pop["command"].op_id == command.target_op_id:
                    lane["parked"].remove(pop)
                    self._touch(queue, lane)
                    self._settle(queue, lane)
                    remembered = queue["ops"].get(command.target_op_id) is pop["op"]
                    self.counts["parked", "cancelled" if remembered else "cancelled though forgotten"] += 1
                    self._answer_pop(queue, pop, Reason.CANCELLED)
                    answer["applied"] = True
                    return answer
        target = queue["ops"].get(command.target_op_id)
        if target is None:
            return self._new_answer(command.op_id, "cancel", Reason.UNKNOWN_HANDLE, False, queue["now"])
        if target["kind"] != "pop":
            return self._new_answer(command.op_id, "cancel", Reason.INVALID_PARAMETER, False, queue["now"])
        if target["epoch"] is None:
            self.counts["cancel", "answered without messages"] += 1
            # CHOICE: it reaches the lane of the pop, also of one that was refused.
            named = queue["lanes"].get(_decoder.decode(target["value"]).group)
            if named is not None:
                self._touch(queue, named)
                self._settle(queue, named)
            return answer
        lane = queue["lanes"].get(target["group"])
        if lane is not None:
            self._touch(queue, lane)
            if lane["batch"] is not None and lane["batch"]["epoch"] == target["epoch"]:
                answer["released"] = self._release_members(queue, lane, suspend=True)
                self.counts["orderly cancel", "released" if answer["released"] else "nothing left to release"] += 1
            for offset, message in sorted(lane["messages"].items()):
                if message["state"] == LEASED and message["epoch"] == target["epoch"]:
                    message["suspended"] = True
                    self._step(lane, offset, "released", queue["now"])
                    self._end_lease(queue, lane, offset, queue["now"])
                    answer["released"].append(offset)
            self._settle(queue, lane)
        answer["applied"] = bool(answer["released"])
        self.counts["cancel", "released" if answer["applied"] else "nothing left to release"] += 1
        return answer

    def _return_client(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        answer = self._new_answer(command.op_id, "return_client", Reason.OK, False, queue["now"])
        lane = queue["lanes"].get(command.group)
        if lane is None:
            self.counts["return_client", "no lane"] += 1
            return answer
        self._touch(queue, lane)
        if lane["batch"] is not None and lane["batch"]["client"] == command.client_id:
            answer["released"] = self._release_members(queue, lane, suspend=False)
            self.counts["orderly return_client", "released" if answer["released"] else "nothing"] += 1
        for offset, message in sorted(lane["messages"].items()):
            if message["state"] == LEASED and message["client"] == command.client_id:
                self._step(lane, offset, "released", queue["now"])
                self._end_lease(queue, lane, offset, queue["now"])
                answer["released"].append(offset)  # CHOICE: also when that was its last attempt
        lane["named"].discard(command.client_id)
        self.counts["return_client", "released" if answer["released"] else "nothing"] += 1
        cancelled = [pop for pop in lane["parked"] if pop["command"].client_id == command.client_id]
        for pop in cancelled:
            lane["parked"].remove(pop)
            self.counts["parked", "returned"] += 1
            self._answer_pop(queue, pop, Reason.CANCELLED)
        self._settle(queue, lane)
        answer["applied"] = bool(answer["released"] or cancelled)
        return answer

    def _reset_offset(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        target = command.queue_offset
        for reason, refused in (
            (Reason.BELOW_MIN, target < queue["min_offset"]),
            (Reason.ABOVE_MAX, target > queue["commit_position"]),
        ):
            if refused:
                return self._new_answer(command.op_id, "reset_offset", reason, False, queue["now"])
        is_new = command.group not in queue["lanes"]
        if self._exceeds(queue, "resets_per_min_max") or (is_new and self._exceeds(queue, "new_lanes_per_min_max")):
            return self._new_answer(command.op_id, "reset_offset", Reason.QUOTA_EXCEEDED, False, queue["now"])
        self._count(queue, "resets_per_min_max")
        if is_new:
            self._count(queue, "new_lanes_per_min_max")
        lane = self._lane_for(queue, command.group, queue["min_offset"])
        lane["reset_epoch"] = lane["epoch"]
        lane["search_due"] = None
        self._begin_era(queue, lane)
        self.counts["reset", "of a lease"] += len([m for m in lane["messages"].values() if m["state"] == LEASED])
        done = set(lane["acked"])
        if lane["batch"] is not None:
            self.counts["reset", "of a free batch" if lane["batch"]["free"] else "of a batch that blocks"] += 1
            # CHOICE: a member acked out of order had been acked, and was not skipped.
            done |= {offset for offset, member in lane["batch"]["members"].items() if member["acked"]}
            lane["batch"] = None
        if target >= lane["commit"]:  # CHOICE: forwards and backwards are told from the commit offset
            self.counts["reset", "forwards" if target > lane["commit"] else "in place"] += 1
            for offset in range(lane["commit"], target):
                if offset in queue["holes"] and offset not in lane["acked"]:
                    lane["holes"] += offset >= lane["next"]
                elif offset in done:
                    lane["acked"].add(offset)
                else:
                    lane["acked"].add(offset)
                    lane["messages"].pop(offset, None)
                    lane["skipped_by_reset"] += 1
                    self.counts["step", "skipped_by_reset"] += 1
            lane["next"] = max(lane["next"], target)
            lane["commit"] = target
            lane["next"] = target
            lane["messages"] = {}
            self._recount(queue, lane, target)
        else:
            self.counts["reset", "backwards"] += 1
            lane["went_back"] = True
            lane["messages"] = {}
            lane["start"] = min(lane["start"], target)
            self._recount(queue, lane, target)
            lane["next"] = lane["commit"] = target
        self._settle(queue, lane)
        answer = self._new_answer(command.op_id, "reset_offset", Reason.OK, True, queue["now"])
        answer["commit_offset"] = lane["commit"]
        return answer

    def _recount(self, queue: Queue, lane: Lane, target: int) -> None:
        # CHOICE: what was skipped after it had been acked counts as a hole from now on.
        lane["recounted"] = True
        lane["became_holes"] += len([o for o in lane["acked"] if o < target and o in queue["holes"]])
        lane["acked"] = {offset for offset in lane["acked"] if offset < target and offset not in queue["holes"]}
        lane["holes"] = target - lane["start"] - len(lane["acked"])

    def _forget_lane(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        if command.group in queue["lanes"] and self._exceeds(queue, "resets_per_min_max"):
            return self._new_answer(command.op_id, "forget_lane", Reason.QUOTA_EXCEEDED, False, queue["now"])
        if command.group in queue["lanes"]:
            self._count(queue, "resets_per_min_max")
        lane = queue["lanes"].pop(command.group, None)
        if lane is not None:
            queue["epochs"][command.group] = lane["epoch"]
            for pop in lane["parked"]:
                self.counts["parked", "lane forgotten"] += 1
                self._answer_pop(queue, pop, Reason.CANCELLED)
        self.counts["forget_lane", "gone" if lane is not None else "no lane"] += 1
        return self._new_answer(command.op_id, "forget_lane", Reason.OK, lane is not None, queue["now"])

    def _redrive(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        return self._new_answer(command.op_id, "redrive", Reason.OK, False, queue["now"])

    def _tick(self, queue: Queue, command: AnyCommand, op: dict[str, Any]) -> dict[str, Any]:
        return self._new_answer(command.op_id, "tick", Reason.OK, False, queue["now"])

    # ------------------------------------------------------------------------------------------- entries

    def _judge_entries(self, queue: Queue, command: AnyCommand, kind: str) -> dict[str, Any]:
        runs: list[tuple[Any, ...]] = []
        named: dict[str, set[int]] = {}
        touched: dict[str, Lane] = {}
        low, high = queue["min_offset"], queue["commit_position"]
        left = self._limits.entry_offsets
        for index, entry in enumerate(command.entries):
            refusal, lane, handle = self._judge_whole_entry(queue, command, entry, kind)
            if refusal is not None:
                for first, last in entry.offsets or [(-1, -1)]:
                    runs.append(_run(kind, index, first, last, (refusal, False, None, None, None, None)))
                continue
            group = lane["group"]
            self._touch(queue, lane)
            touched[group] = lane
            orderly = bool(lane["orderly"])
            seen = named.setdefault(group, set())
            for first, last in entry.offsets:
                left -= max(0, min(last + 1, high) - max(first, low))
                if left < 0:
                    self.counts["entries", "name too many offsets"] += 1
                    runs.append(
                        _run(kind, index, first, last, (Reason.INVALID_PARAMETER, False, None, None, None, None))
                    )
                    continue
                if first < low:
                    below = (Reason.BELOW_MIN, False, None, None, None, None)
                    runs.append(_run(kind, index, first, min(last, low - 1), below))
                outcomes = []
                for offset in range(max(first, low), min(last, high - 1) + 1):
                    outcomes.append((offset, self._judge_offset(queue, lane, handle, entry, kind, offset, seen)))
                    seen.add(offset)
                    if orderly:
                        self._settle(queue, lane)
                while outcomes:
                    same = 1
                    while same < len(outcomes) and outcomes[same][1] == outcomes[0][1]:
                        same += 1
                    runs.append(
                        _run(kind, index, outcomes[0][0], outcomes[same - 1][0], outcomes[0][1], orderly=orderly)
                    )
                    del outcomes[:same]
                if last >= high:
                    above = (Reason.ABOVE_MAX, False, None, None, None, None)
                    runs.append(_run(kind, index, max(first, high), last, above))
        for lane in touched.values():
            self._settle(queue, lane)
        for run in runs:
            self.counts["run", kind, run[4]] += 1
        answer = self._answer_of_runs(queue, command, kind, runs)
        answer["commit_offsets"] = {
            group: lane["commit"] for group, lane in touched.items()
        }  # CHOICE: before the grant step
        return answer

    def _answer_of_runs(
        self, queue: Queue, command: AnyCommand, kind: str, runs: list[tuple[Any, ...]]
    ) -> dict[str, Any]:
        # CHOICE, settled by what the kernel answers: the code and reason of the first run whose code is not 0, else OK.
        answer = self._new_answer(command.op_id, kind, Reason.OK, any(run[5] for run in runs), queue["now"])
        refused = [run for run in runs if run[3] != 0]
        if refused:
            answer["code"], answer["reason"] = refused[0][3:5]
        answer["runs"] = runs
        return answer

    def _judge_whole_entry(
        self, queue: Queue, command: AnyCommand, entry: AnyCommand, kind: str
    ) -> tuple[Reason | None, Any, Any]:
        if not 0 <= entry.handle < len(command.handles) or not entry.offsets:
            return Reason.INVALID_PARAMETER, None, None
        if any(not 0 <= first <= last <= MAX_OFFSET for first, last in entry.offsets):
            return Reason.INVALID_PARAMETER, None, None
        if kind == "change_invisible" and not 0 <= entry.invisible_time_ms <= MAX_TIME_MS:
            return Reason.INVALID_PARAMETER, None, None
        if kind == "change_invisible" and len(entry.cause or "") > 512:
            return Reason.INVALID_PARAMETER, None, None
        if kind == "change_invisible" and entry.lite_topic is not None and entry.lite_topic.strip():
            named = command.topic.endswith("$" + entry.lite_topic)
            self.counts["lite_topic", "that of the queue" if named else "another"] += 1
            if not named:
                return Reason.MISROUTED, None, None
        ref = command.handles[entry.handle]
        handle = decode_handle(ref.handle)
        lane = queue["lanes"].get(ref.group)
        if (
            handle is None
            or lane is None
            or handle.lane_check != lane_check(queue["topic"], queue["queue_id"], ref.group)
            or handle.queue_id != queue["queue_id"]
            or handle.broker_name != BROKER_NAME
            or not (0 if lane["orderly"] else 1) <= handle.epoch <= lane["epoch"]
        ):
            return Reason.UNKNOWN_HANDLE, None, None
        if (handle.revive_queue_id == REVIVE_QUEUE_ID_ORDERLY) is not bool(lane["orderly"]):
            how = {None: "lane without mode", False: "concurrent lane", True: "orderly lane"}[lane["orderly"]]
            self.counts["handle of the other mode", how] += 1
            return Reason.WRONG_MODE, None, None
        return None, lane, handle

    def _judge_offset(
        self, queue: Queue, lane: Lane, handle: Handle, entry: AnyCommand, kind: str, offset: int, seen: set[int]
    ) -> tuple[Reason, bool, int | None, int | None, int | None, str | None]:
        if lane["orderly"]:
            return self._judge_in_order(queue, lane, handle, entry, kind, offset, seen)
        reason = None
        message = lane["messages"].get(offset)
        if offset in seen:
            reason = Reason.DUPLICATE_ENTRY
        elif offset < lane["commit"] or offset in lane["acked"] or offset in queue["holes"]:
            reason = Reason.ALREADY_ACKED
        elif handle.epoch <= lane["reset_epoch"]:
            reason = Reason.STALE_HANDLE
            self.counts["judged", "older than the reset"] += 1
        elif message is None or message["epoch"] == 0:
            reason = Reason.OUTSIDE_POP
            self.counts["judged", "never handed out"] += 1
        elif message["epoch"] > handle.epoch:
            reason = Reason.STALE_HANDLE
            self.counts["judged", "handed out again"] += 1
        elif message["epoch"] < handle.epoch:
            reason = Reason.OUTSIDE_POP
            self.counts["judged", "of an older pop"] += 1
        elif kind == "change_invisible" and message["revision"] != handle.revision:
            # CHOICE: the current handle keeps the start offset of the one presented, as a new one does.
            current = self._handle_text(queue, lane, {**message, "start": handle.start_offset})
            return Reason.SUPERSEDED, False, None, None, None, current
        if reason is not None:
            return reason, False, None, None, None, None
        now = queue["now"]
        before = message["state"]
        self.counts["late" if before != LEASED else "in time", kind, before] += 1
        if kind == "ack":
            self._step(lane, offset, "acked", now, self._by, held=before == LEASED)
            self._done(lane, offset)
            return Reason.OK, True, None, None, None, None
        if kind == "reject":
            self._dead_letter(lane, offset, "rejected", now, self._by, held=before == LEASED)
            return Reason.OK, True, None, None, None, None
        wait = self._wait_of(queue, lane, entry, message["attempt"])
        message["revision"] += 1
        message["pop_time"] = now
        message["invisible"] = wait
        message["start"] = handle.start_offset
        message["suspended"] = entry.suspend
        text = self._handle_text(queue, lane, message)
        if entry.release is None and wait > 0:
            message["state"] = LEASED
            message["deadline"] = now + wait
            self._step(lane, offset, "changed", now, self._by)
        else:
            self._step(lane, offset, "released", now, self._by)
            self._end_lease(queue, lane, offset, now, None if entry.release is None else wait)
        if before != LEASED and offset in lane["messages"] and message["client"] == self._by is not None:
            self.counts["holder", "named again" if self._by not in lane["named"] else "known"] += 1
            lane["named"].add(self._by)
        return Reason.OK, True, now, wait, 0, text

    def _wait_of(self, queue: Queue, lane: Lane, entry: AnyCommand, attempt: int) -> int:
        """When a change makes a message visible, from now."""
        back_offs = self._policy_of(queue, lane)["back_off_ms"]
        if entry.release is not None:
            self.counts["given back", entry.release, "with a policy's back-off" if back_offs else "without"] += 1
        if entry.release == "back_off" and back_offs:
            return int(back_offs[min(attempt, len(back_offs)) - 1])
        return int(entry.invisible_time_ms)

    def _handle_text(self, queue: Queue, lane: Lane, message: Message, revive_queue_id: int = 0) -> str:
        return encode_handle(
            Handle(
                start_offset=message["start"],
                pop_time_ms=message["pop_time"],
                invisible_time_ms=message["invisible"],
                revive_queue_id=revive_queue_id,
                queue_id=queue["queue_id"],
                epoch=message["epoch"],
                revision=message["revision"],
                lane_check=lane_check(queue["topic"], queue["queue_id"], lane["group"]),
            )
        )

    # ------------------------------------------------------------------------------------------- leases

    def _step(
        self, lane: Lane, offset: int, step: str, at_ms: int, client: str | None = None, *, held: bool = True
    ) -> None:
        """A message has come to a step; `client` took it, else the row names who held the lease, if anybody did."""
        message = lane["messages"][offset]
        if client is None and held and step != "leased":
            client = message["client"] if message["client"] in lane["named"] else None
            self.counts["holder", "named" if client else "not named" if message["client"] is None else "forgotten"] += 1
        epoch, revision, attempt = message["epoch"], message["revision"], message["attempt"]
        self._steps.append((lane["group"], offset, step, epoch, revision, attempt, at_ms, client))
        self.counts["step", step] += 1

    def _member_step(self, lane: Lane, offset: int, step: str, at_ms: int, client: str | None = None) -> None:
        batch = lane["batch"]
        attempt = batch["counts"].get(offset, 0) + 1
        if client is None and step != "leased":
            client = batch["client"]
        self._steps.append((lane["group"], offset, step, batch["epoch"], 0, attempt, at_ms, client))
        self.counts["orderly step", step] += 1

    def _done(self, lane: Lane, offset: int) -> None:
        del lane["messages"][offset]
        lane["acked"].add(offset)

    def _dead_letter(
        self, lane: Lane, offset: int, why: str, at_ms: int, client: str | None = None, *, held: bool = True
    ) -> None:
        self._step(lane, offset, "dead_lettered", at_ms, client, held=held)
        self._dead.append((lane["group"], offset, why))
        self._done(lane, offset)
        lane["dead_lettered"] += 1
        self.counts["dead letter", why] += 1

    def _end_lease(self, queue: Queue, lane: Lane, offset: int, at_ms: int, given_wait: int | None = None) -> None:
        message = lane["messages"][offset]
        policy = self._policy_of(queue, lane)
        message["state"], message["deadline"] = AVAILABLE, None
        self.counts["lease ended", "suspended"] += message["suspended"]
        if 0 < policy["max_attempts"] <= message["attempt"] and not message["suspended"]:
            self._dead_letter(lane, offset, "attempt_limit", at_ms)
            return
        back_offs = policy["back_off_ms"]
        wait = given_wait or 0
        if given_wait is None and back_offs and not message["suspended"]:
            wait = back_offs[min(message["attempt"], len(back_offs)) - 1]
        if wait > 0:
            message["state"], message["deadline"] = BACKING_OFF, at_ms + wait
            self.counts["lease ended", "backing off"] += 1
            return
        self.counts["lease ended", "available"] += not message["suspended"]

    def _settle(self, queue: Queue, lane: Lane) -> None:
        """Move the commit offset over what is done, and with it `next` over holes that follow."""
        if lane["orderly"]:
            self._settle_in_order(queue, lane)
            return
        holes, acked = queue["holes"], lane["acked"]
        commit = lane["commit"]
        while commit < lane["next"] and (commit in acked or commit in holes):
            commit += 1
        at = lane["next"]
        while at < queue["commit_position"] and at in holes:
            at += 1
            lane["holes"] += 1
        if commit == lane["next"]:
            commit = at
        lane["next"] = at
        lane["commit"] = commit

    # ------------------------------------------------------------------------------------------- step 3: grant

    def _grant(self, queue: Queue, lane: Lane) -> None:
        if not lane["parked"]:
            return
        lane["behind"] = False
        self._settle(queue, lane)
        waiting: list[dict[str, Any]] = []
        for pop in lane["parked"]:
            command = pop["command"]
            new, pop["new"] = pop["new"], False
            if lane["search_due"] is not None:
                given = []
            elif lane["orderly"]:
                given = self._take_in_order(queue, lane, command, new)
            else:
                given = self._take(queue, lane, command)
            if given:
                self.counts["parked", "served at once" if new else "served later"] += 1
                if lane["orderly"]:
                    self.counts["orderly pop", "served at once" if new else "served later"] += 1
                    self._lease_in_order(queue, lane, pop, given)
                else:
                    self._lease(queue, lane, pop, given)
            elif command.poll_time_ms == 0:
                self._answer_pop(queue, pop, Reason.NO_MESSAGE)
            elif new and len(waiting) >= self._policy_of(queue, lane)["parked_max"]:
                self._answer_pop(queue, pop, Reason.POLLING_FULL)
            elif new and (quota := self._exceeds_parked(queue, lane, command.client_id, waiting)):
                self.counts["quota", quota] += 1
                self._answer_pop(queue, pop, Reason.POLLING_FULL)
            else:
                waiting.append(pop)
            self._settle(queue, lane)
        lane["parked"] = waiting

    def _take(self, queue: Queue, lane: Lane, command: AnyCommand) -> list[int]:
        """Offsets for one pop; what its tags pass over is done afterwards."""
        limit = self._policy_of(queue, lane)["in_flight_max"]
        room = MAX_OFFSET
        if limit:  # CHOICE: counted in units, not in their inner messages
            room = limit - len([m for m in lane["messages"].values() if m["state"] == LEASED])
            if room <= 0:
                self.counts["pop", "at in_flight_max"] += 1
                return []
        offered = sorted(offset for offset, m in lane["messages"].items() if m["state"] == AVAILABLE)
        fresh_from = lane["next"]
        offered += [o for o in range(fresh_from, queue["commit_position"]) if o not in queue["holes"]]
        given: list[int] = []
        total = 0
        page = -1
        available_pages: set[int] = set()
        for offset in offered:
            if offset < fresh_from and offset // 64 not in available_pages:
                if given and len(available_pages) >= self._limits.available_pages:
                    self.counts["pop", "ends at its last page"] += 1
                    break
                available_pages.add(offset // 64)
            if offset // 64 != page and self._is_searched(queue, command, offset // 64):
                if not self._may_search(queue, offset // 64):
                    if not given:
                        lane["search_due"] = queue["now"] + SEARCH_PAUSE_MS
                    break
                page = offset // 64
            tag, count, due = queue["written"][offset]
            early = due > queue["now"]
            passed = not early and command.tags is not None and tag not in command.tags
            if not passed and not early and given and total + count > command.max_messages:
                self.counts["pop", "unit does not fit"] += 1
                break
            if offset >= lane["next"]:
                lane["holes"] += len([o for o in range(lane["next"], offset) if o in queue["holes"]])
                lane["next"] = offset + 1
            if early:
                lane["messages"][offset] = _put_off(due)
                self.counts["pop", "puts off"] += 1
                continue
            if passed:
                lane["messages"].pop(offset, None)
                lane["acked"].add(offset)
                lane["passed_over"] += 1
                self.counts["pop", "passed over fresh" if offset >= fresh_from else "passed over available"] += 1
                continue
            given.append(offset)
            total += count
            if len(given) == room:
                self.counts["pop", "up to in_flight_max"] += 1
                break
            if total >= command.max_messages:
                break
        return given

    def _is_searched(self, queue: Queue, command: AnyCommand, page: int) -> bool:
        """64 offsets without a time to come, none of whose tags is in a class of the pop's, are passed over unread."""
        if command.tags is None or not queue["has_facts"]:
            return False
        if queue["fact_classes"].get(page, set()) & ({TIMES} | {tag % TAG_CLASSES for tag in command.tags}):
            return True
        self.counts["search", "passes a page unread"] += 1
        return False

    def _may_search(self, queue: Queue, page: int) -> bool:
        """Pay for the search of 64 offsets: 1, and 1 for each run of them that a dispatch gave a tag or a count."""
        if self._search_left <= 0:
            self.counts["search", "paused"] += 1
            return False
        self._search_left -= 1 + queue["fact_runs"][page]
        return True

    def _lease(self, queue: Queue, lane: Lane, pop: dict[str, Any], given: list[int]) -> None:
        command, now = pop["command"], queue["now"]
        lane["epoch"] += 1
        pop["op"]["epoch"] = lane["epoch"]
        messages = []
        for offset in given:
            old = lane["messages"].get(offset)
            attempt = 1
            if old is not None:
                attempt = old["attempt"] if old["suspended"] else old["attempt"] + 1
                self.counts["delivery", "again, suspended" if old["suspended"] else "again"] += 1
            else:
                self.counts["delivery", "fresh"] += 1
            lane["messages"][offset] = {
                "state": LEASED,
                "epoch": lane["epoch"],
                "revision": 0,
                "pop_time": now,
                "invisible": command.invisible_time_ms,
                "start": given[0],
                "deadline": now + command.invisible_time_ms,
                "attempt": attempt,
                "suspended": False,
                "client": command.client_id,
            }
            self._step(lane, offset, "leased", now, command.client_id)
            lane["named"].add(command.client_id)
            messages.append((offset, attempt))
        answer = self._new_answer(command.op_id, "pop", Reason.OK, True, now)
        answer["messages"] = messages
        answer["handle"] = self._handle_text(queue, lane, lane["messages"][given[0]])
        answer["pop_time_ms"] = now
        answer["invisible_time_ms"] = command.invisible_time_ms
        answer["revive_queue_id"] = 0
        self._finish_pop(pop, answer)

    def _answer_pop(self, queue: Queue, pop: dict[str, Any], reason: Reason) -> None:
        self._finish_pop(pop, self._new_answer(pop["command"].op_id, "pop", reason, False, queue["now"]))

    def _finish_pop(self, pop: dict[str, Any], answer: dict[str, Any]) -> None:
        pop["op"]["answer"] = answer
        pop["op"]["minute"] = answer["now_ms"] // MINUTE_MS
        self._say(pop["command"].op_id, pop["command"].reply_to, answer)

    # ------------------------------------------------------------------------------------------- orderly lanes

    def _blocked(self, queue: Queue, batch: Batch | None) -> bool:
        now = queue["now"]
        if batch is None or batch["overdue"]:
            return batch is not None
        return any(not member["acked"] and now < member["next_visible"] for member in batch["members"].values())

    def _held(self, batch: Batch | None, offset: int) -> bool:
        """Whether a client has it: a member neither acked nor expired nor released."""
        member = batch["members"].get(offset) if batch is not None else None
        return member is not None and not member["acked"] and not member["ended"]

    def _take_in_order(self, queue: Queue, lane: Lane, command: AnyCommand, new: bool) -> list[int]:
        """Members for one pop; when its tags let nothing through the lane moves on without any."""
        batch = lane["batch"]
        same = batch is not None and command.attempt_id is not None and command.attempt_id == batch["attempt_id"]
        blocked = self._blocked(queue, batch)
        if blocked and not (new and same):
            self.counts["orderly pop", "blocked by its own attempt" if same else "blocked"] += 1
            return []
        limit = self._policy_of(queue, lane)["in_flight_max"]
        given: list[int] = []
        passed: list[int] = []
        total = 0
        page, searched_end = -1, queue["commit_position"]
        for offset in range(lane["commit"], queue["commit_position"]):
            if offset in queue["holes"]:
                continue
            if offset // 64 != page and self._is_searched(queue, command, offset // 64):
                if not self._may_search(queue, offset // 64):
                    searched_end = passed[-1] + 1 if passed else lane["commit"]
                    if not given:
                        lane["search_due"] = queue["now"] + SEARCH_PAUSE_MS
                    break
                page = offset // 64
            tag, count, due = queue["written"][offset]
            if due > queue["now"]:
                self.counts["orderly pop", "waits for a delivery time" if not given else "ends at a delivery time"] += 1
                searched_end = offset
                if not given:
                    lane["search_due"] = due
                break
            if command.tags is not None and tag not in command.tags:
                passed.append(offset)
                continue
            if given and total + count > command.max_messages:
                self.counts["orderly pop", "unit does not fit"] += 1
                break
            given.append(offset)
            total += count
            if len(given) == limit:
                self.counts["orderly pop", "up to in_flight_max"] += 1
                break
            if total >= command.max_messages:
                break
        if given and passed and passed[0] < given[-1]:
            self.counts["orderly pop", "around what its tags leave out"] += 1
        if given and blocked:
            self.counts["orderly pop", "again while it blocks"] += 1
        if passed and not given:
            self.counts["orderly pop", "nothing passes its tags" + (" while it blocks" if blocked else "")] += 1
            batch = lane["batch"]
            members = batch["members"] if batch is not None else {}
            for offset in members:
                if lane["commit"] <= offset < searched_end and self._held(batch, offset):
                    members[offset]["ended"] = True
                    self._member_step(lane, offset, "released", queue["now"])
            lane["acked"].update(passed)
            lane["passed_over"] += sum(1 for o in passed if o not in members or not members[o]["acked"])
            lane["commit"] = searched_end
            lane["next"] = max(lane["next"], searched_end)
        return given

    def _lease_in_order(self, queue: Queue, lane: Lane, pop: dict[str, Any], given: list[int]) -> None:
        command, now, old = pop["command"], queue["now"], lane["batch"]
        for offset in [offset for offset in old["members"] if self._held(old, offset)] if old is not None else []:
            self.counts["orderly pop", "takes what is held"] += 1
            self._member_step(lane, offset, "released", now)
        lane["epoch"] += 1
        pop["op"]["epoch"] = lane["epoch"]
        batch: Batch = {
            "epoch": lane["epoch"],
            "pop_time": now,
            "invisible": command.invisible_time_ms,
            "attempt_id": command.attempt_id,
            "client": command.client_id,
            "free": False,  # no unacked member is invisible, and what that means for them has been done
            "due": None,  # when it is free, unless something changes
            "overdue": False,  # that was left to the next record, and nothing has changed since
            "counts": self._consumed_counts(old, command.attempt_id, given),
            "members": {
                offset: {
                    "acked": False,
                    "next_visible": now + command.invisible_time_ms,
                    "suspended": False,
                    "ended": False,  # nobody holds it: it has had its step `expired` or `released`
                }
                for offset in given
            },
        }
        lane["batch"] = batch
        lane["next"] = given[-1] + 1
        lane["touched"] = now  # CHOICE: a pop that waited reaches the lane once more when it is served
        for offset in given:
            self._member_step(lane, offset, "leased", now, command.client_id)
        answer = self._new_answer(command.op_id, "pop", Reason.OK, True, now)
        answer["messages"] = [(offset, batch["counts"].get(offset, 0) + 1) for offset in given]
        answer["handle"] = self._batch_handle(queue, lane, given[0], command.invisible_time_ms)
        answer["pop_time_ms"] = now
        answer["invisible_time_ms"] = command.invisible_time_ms
        answer["revive_queue_id"] = REVIVE_QUEUE_ID_ORDERLY
        self._finish_pop(pop, answer)

    def _consumed_counts(self, old: Batch | None, attempt_id: str | None, given: list[int]) -> dict[int, int]:
        if old is None:
            return {}
        if attempt_id is not None and attempt_id == old["attempt_id"]:
            self.counts["delivery in order", "same attempt"] += 1
            self.counts["delivery in order", "counted though no member"] += any(o not in given for o in old["counts"])
            return dict(old["counts"])
        counts = {}
        for offset in given:
            member = old["members"].get(offset)
            if member is None:
                self.counts["delivery in order", "fresh"] += 1
                continue
            how = "again, suspended" if member["suspended"] else "again"
            self.counts["delivery in order", how] += 1
            self.counts["delivery in order", "again though acked"] += member["acked"]
            count = old["counts"].get(offset, 0) + (0 if member["suspended"] else 1)
            if count:
                counts[offset] = count
        return counts

    def _batch_handle(self, queue: Queue, lane: Lane, start: int, invisible: int) -> str:
        batch = lane["batch"]
        # CHOICE: the field has 32 bits; a batch that is changed after 49 days has the longest time there is.
        self.counts["batch", "changed after 49 days"] += invisible >= 2**32
        invisible = min(invisible, 2**32 - 1)
        fields = {"start": start, "pop_time": batch["pop_time"], "invisible": invisible}
        fields |= {"epoch": batch["epoch"], "revision": 0}
        return self._handle_text(queue, lane, fields, REVIVE_QUEUE_ID_ORDERLY)

    def _judge_in_order(
        self, queue: Queue, lane: Lane, handle: Handle, entry: AnyCommand, kind: str, offset: int, seen: set[int]
    ) -> tuple[Reason, bool, int | None, int | None, int | None, str | None]:
        now, batch = queue["now"], lane["batch"]
        change = kind == "change_invisible"
        until = now + entry.invisible_time_ms if change else 0
        nothing = (None, None, None, None)
        if offset in seen:
            return Reason.DUPLICATE_ENTRY, False, *nothing
        if offset < lane["commit"]:
            self.counts["judged in order", kind, "below the commit offset"] += 1
            return Reason.ALREADY_ACKED, False, *((0, 0, 0, None) if change else nothing)
        if batch is None or handle.epoch != batch["epoch"]:
            self.counts["judged in order", kind, "of another pop" if batch is not None else "no batch"] += 1
            of_handle = (handle.pop_time_ms, until - handle.pop_time_ms, REVIVE_QUEUE_ID_ORDERLY, None)
            return Reason.STALE_HANDLE, False, *(of_handle if change else nothing)
        if offset in queue["holes"]:
            self.counts["judged in order", kind, "a hole"] += 1
            return Reason.ALREADY_ACKED, False, *nothing
        member = batch["members"].get(offset)
        if member is None:
            self.counts["judged in order", kind, "no member"] += 1
            return Reason.OUTSIDE_POP, False, *nothing
        of_batch = (batch["pop_time"], until - batch["pop_time"], REVIVE_QUEUE_ID_ORDERLY)
        if member["acked"]:
            self.counts["judged in order", kind, "acked"] += 1
            return Reason.ALREADY_ACKED, False, *((*of_batch, None) if change else nothing)
        how = "in time" if now < member["next_visible"] else "late, free" if batch["free"] else "late, blocked"
        self.counts["judged in order", kind, how] += 1
        if kind == "ack":
            self._member_step(lane, offset, "acked", now, self._by)
            self._mark(queue, lane, offset)
            return Reason.OK, True, *nothing
        if kind == "reject":
            self._dead_letter_in_order(queue, lane, offset, "rejected", now, self._by)
            return Reason.OK, True, *nothing
        attempt = batch["counts"].get(offset, 0) + 1
        until = now + self._wait_of(queue, lane, entry, attempt)
        member["ended"] = entry.release is not None or until == now
        if member["ended"] and not entry.suspend and 0 < self._policy_of(queue, lane)["max_attempts"] <= attempt:
            self.counts["batch", "at the limit, given back for later"] += until > now
            until = now
        of_batch = (batch["pop_time"], until - batch["pop_time"], REVIVE_QUEUE_ID_ORDERLY)
        member["next_visible"], member["suspended"] = until, entry.suspend
        self.counts["batch", "changed when free" if member["ended"] else "blocked again"] += batch["free"]
        batch["free"] = batch["overdue"] = False  # a change to 0 of a free batch ends a lease too
        self._member_step(lane, offset, "released" if member["ended"] else "changed", now, self._by)
        return Reason.OK, True, *of_batch, self._batch_handle(queue, lane, handle.start_offset, of_batch[1])

    def _dead_letter_in_order(
        self, queue: Queue, lane: Lane, offset: int, why: str, at_ms: int, client: str | None = None
    ) -> None:
        self._member_step(lane, offset, "dead_lettered", at_ms, client)
        self._dead.append((lane["group"], offset, why))
        lane["dead_lettered"] += 1
        self.counts["orderly dead letter", why] += 1
        self._mark(queue, lane, offset)

    def _mark(self, queue: Queue, lane: Lane, *offsets: int) -> None:
        """Members are done: the commit offset moves to the first that is not, or behind the last."""
        members = lane["batch"]["members"]
        lane["batch"]["overdue"] = False
        for offset in offsets:
            members[offset]["acked"] = True
        left = [offset for offset, member in members.items() if not member["acked"]]
        first_left = min(left, default=max(members) + 1)
        self.counts["batch", "acked out of order"] += bool(left) and max(offsets) > first_left
        self.counts["batch", "all acked"] += not left
        for offset in range(lane["commit"], first_left):
            if offset in queue["holes"]:
                continue
            lane["acked"].add(offset)
            if offset not in members:
                lane["passed_over"] += 1
                self.counts["batch", "passed over between members"] += 1
        lane["commit"] = max(lane["commit"], first_left)
        self._take_holes_in(queue, lane)

    def _release_members(self, queue: Queue, lane: Lane, *, suspend: bool) -> list[int]:
        """Make what is unacked and invisible visible now."""
        now, released = queue["now"], []
        lane["batch"]["overdue"] = False
        for offset, member in lane["batch"]["members"].items():
            if not member["acked"] and now < member["next_visible"]:
                # CHOICE: a cancel suspends these, and not what is visible already.
                if self._held(lane["batch"], offset):
                    self._member_step(lane, offset, "released", now)
                    released.append(offset)
                member["next_visible"], member["ended"] = now, True
                member["suspended"] = member["suspended"] or suspend
        return released

    def _free_batch(self, queue: Queue, lane: Lane, at_ms: int) -> None:
        """No unacked member is invisible any more, since `at_ms`."""
        batch, limit = lane["batch"], self._policy_of(queue, lane)["max_attempts"]
        batch["free"], batch["due"], batch["overdue"] = True, None, False
        for offset, member in batch["members"].items():
            if not member["acked"] and not member["ended"]:
                member["ended"] = True
                self._member_step(lane, offset, "expired", member["next_visible"])
        # Also those whose lease ended when the batch had been free before; from the first on that is not done, while
        # they have no attempt left: what follows one that has comes again with it.
        for offset, member in sorted(batch["members"].items()):
            if member["acked"] or offset < lane["commit"]:
                continue
            exhausted = 0 < limit <= batch["counts"].get(offset, 0) + 1
            self.counts["batch", "at the limit, suspended"] += exhausted and member["suspended"]
            if not exhausted or member["suspended"]:
                break
            self._dead_letter_in_order(queue, lane, offset, "attempt_limit", at_ms)

    def _take_from_log(self, queue: Queue, lane: Lane, end: int) -> None:
        """The log begins at `end` from now on."""
        members = lane["batch"]["members"] if lane["batch"] is not None else {}
        for offset in range(lane["commit"], end):
            if offset not in queue["holes"]:
                lane["acked"].add(offset)
                lane["expired_from_log"] += not (offset in members and members[offset]["acked"])
        gone = [offset for offset, member in members.items() if offset < end and not member["acked"]]
        if gone or lane["commit"] < end:
            lane["behind"] = True
        for offset in gone:  # CHOICE: also what lies below the commit offset, where it counts as something else already
            self._member_step(lane, offset, "expired_from_log", queue["now"])
        lane["next"] = max(lane["next"], end)
        lane["commit"] = max(lane["commit"], end)
        self._mark_gone(queue, lane, gone)

    def _skip_members(self, queue: Queue, lane: Lane, late: list[int]) -> None:
        """Offsets that had been written are holes from now on."""
        # CHOICE: a hole at or after the commit offset is counted as a hole, whether it is a member or not.
        if any(lane["commit"] <= offset < lane["next"] for offset in late):
            lane["behind"] = True
        members = lane["batch"]["members"] if lane["batch"] is not None else {}
        gone = [offset for offset in late if offset in members and not members[offset]["acked"]]
        for offset in gone:
            self._member_step(lane, offset, "expired_from_log", queue["now"])
            lane["expired_from_log"] += offset >= lane["commit"]
            lane["behind"] = True
        self._mark_gone(queue, lane, gone)

    def _look_again(self, queue: Queue, lane: Lane) -> None:
        """A batch that is free, which was left to the next record, is so from now on.

        What the lane waits for may have left the log.
        """
        if lane["batch"] is not None:
            lane["batch"]["overdue"] = False
        if lane["search_due"] is not None and lane["search_due"] > queue["now"] + SEARCH_PAUSE_MS:
            self.counts["orderly pop", "waits no longer: something left the log"] += 1
            lane["search_due"] = None

    def _mark_gone(self, queue: Queue, lane: Lane, gone: list[int]) -> None:
        if gone:
            self._mark(queue, lane, *gone)
            if not lane["batch"]["free"] and not self._blocked(queue, lane["batch"]):
                self.counts["batch", "nothing invisible after a skip"] += 1

    def _take_holes_in(self, queue: Queue, lane: Lane) -> None:
        if lane["commit"] == lane["next"]:
            while lane["next"] < queue["commit_position"] and lane["next"] in queue["holes"]:
                lane["next"] += 1
            lane["commit"] = lane["next"]

    def _settle_in_order(self, queue: Queue, lane: Lane) -> None:
        """Free the batch when nothing of it is invisible; take holes in; keep the counts."""
        batch = lane["batch"]
        # Also at once when a skip has freed it: a blocked lane is looked at whenever its queue changes.
        if batch is not None and not batch["free"]:
            if self._blocked(queue, batch):
                batch["due"] = max(m["next_visible"] for m in batch["members"].values() if not m["acked"])
            else:
                self.counts["batch", "freed at once"] += 1
                self._free_batch(queue, lane, min(batch["due"] or queue["now"], queue["now"]))
        self._take_holes_in(queue, lane)
        below = lane["commit"] - lane["start"] - len(lane["acked"])
        lane["holes"] = below + len([o for o in range(lane["commit"], lane["next"]) if o in queue["holes"]])

    # ------------------------------------------------------------------------------------------- state

    def view(self, topic: str, queue_id: int) -> dict[str, Any] | None:
        """The state of a queue and its lanes, for comparison; None when it is not declared."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            return None
        return {
            "now": queue["now"],
            "min_offset": queue["min_offset"],
            "commit_position": queue["commit_position"],
            "lanes": {group: self._view_lane(queue, lane) for group, lane in queue["lanes"].items()},
        }

    def _view_lane(self, queue: Queue, lane: Lane) -> dict[str, Any]:
        messages, batch = lane["messages"], lane["batch"]
        leased = len([m for m in messages.values() if m["state"] == LEASED])
        available = len(messages) - leased
        if lane["orderly"]:
            between = [o for o in range(lane["commit"], lane["next"]) if o not in queue["holes"]]
            # CHOICE: what is held below the commit offset counts as acked already.
            leased = len([offset for offset in between if self._held(batch, offset)])
            available = len(between) - leased
        return {
            "behind": lane["behind"],
            "went_back": lane["went_back"],
            "was_orderly": lane["was_orderly"] or bool(lane["orderly"]),
            "start": lane["start"],
            "commit_offset": lane["commit"],
            "next_offset": lane["next"],
            "epoch": lane["epoch"],
            "orderly": lane["orderly"],
            "batch": _view_batch(batch) if batch is not None else None,
            "messages": {
                offset: (m["state"], m["epoch"], m["revision"], m["deadline"], m["attempt"])
                for offset, m in messages.items()
            },
            "leased": leased,
            "available": available,
            "acked": len(lane["acked"]),
            "holes": lane["holes"],
            "became_holes": lane["became_holes"],
            "dead_lettered": lane["dead_lettered"],
            "expired_from_log": lane["expired_from_log"],
            "passed_over": lane["passed_over"],
            "skipped_by_reset": lane["skipped_by_reset"],
            "parked": [pop["command"].op_id for pop in lane["parked"]],
        }

    def check(self, topic: str, queue_id: int) -> None:
        """Raise AssertionError when the queue's own state contradicts itself."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            return
        written, holes = queue["written"], queue["holes"]
        assert queue["min_offset"] <= queue["commit_position"]
        for offset in range(queue["min_offset"], queue["commit_position"]):
            assert (offset in written) != (offset in holes)
        assert queue["commit_position"] not in written
        assert queue["commit_position"] not in holes
        for group, lane in queue["lanes"].items():
            view = self._view_lane(queue, lane)
            total = view["holes"] + view["acked"] + view["leased"] + view["available"]
            assert lane["next"] - lane["start"] == total, (group, view)
            assert queue["min_offset"] <= lane["commit"] <= lane["next"] <= queue["commit_position"], (group, view)
            if lane["orderly"]:
                self._check_in_order(queue, lane)
                continue
            assert lane["batch"] is None
            if not lane["recounted"] and not lane["was_orderly"]:
                kinds = ("dead_lettered", "expired_from_log", "passed_over", "skipped_by_reset")
                assert sum(lane[kind] for kind in kinds) <= view["acked"]
            for offset in range(lane["commit"], lane["next"]):
                places = (offset in lane["messages"], offset in lane["acked"] or offset in holes)
                assert sum(places) == 1, (group, offset, view)
            if lane["commit"] < lane["next"]:
                assert lane["commit"] in lane["messages"], (group, view)
            for offset, message in lane["messages"].items():
                assert lane["commit"] <= offset < lane["next"]
                assert (message["deadline"] is None) == (message["state"] == AVAILABLE)
                assert message["deadline"] is None or message["deadline"] > queue["now"] or queue["has_overdue"]
                assert message["epoch"] <= lane["epoch"]
                assert message["epoch"] == 0 or message["epoch"] > lane["reset_epoch"]
            for pop in lane["parked"]:
                assert pop["deadline"] > queue["now"] or queue["has_overdue"]

    def _check_in_order(self, queue: Queue, lane: Lane) -> None:
        batch, commit = lane["batch"], lane["commit"]
        assert not lane["messages"]
        assert all(lane["start"] <= offset < commit for offset in lane["acked"])
        if batch is None:
            assert commit == lane["next"]
            return
        members = batch["members"]
        left = [offset for offset, member in members.items() if not member["acked"]]
        assert list(members) == sorted(members)
        assert max(members) < lane["next"]
        # A search that was paused may have passed over every member but those that were acked out of order.
        has_passed_all = bool(left) and commit > left[-1] and any(offset >= commit for offset in members)
        assert commit == lane["next"] or (left and commit <= left[-1]) or has_passed_all, lane
        if not lane["behind"]:
            assert batch["free"] != self._blocked(queue, batch), lane
            assert batch["due"] == (max(members[o]["next_visible"] for o in left) if not batch["free"] else None), lane
        for pop in lane["parked"]:
            assert pop["deadline"] > queue["now"] or queue["has_overdue"]


def _classes_of(unit: Unit) -> set[int]:
    tag, _, due = unit
    return ({tag % TAG_CLASSES} if tag else set()) | ({TIMES} if due else set())


def _put_off(due: int) -> Message:
    """A message that a pop met before its time: it waits as if it backed off from no delivery."""
    return {
        "state": BACKING_OFF,
        "epoch": 0,
        "revision": 0,
        "pop_time": 0,
        "invisible": 0,
        "start": 0,
        "deadline": due,
        "attempt": 0,
        "suspended": False,
        "client": None,
    }


def _view_batch(batch: Batch) -> dict[str, Any]:
    counts = batch["counts"]
    return {
        "epoch": batch["epoch"],
        "pop_time_ms": batch["pop_time"],
        "invisible_time_ms": batch["invisible"],
        "attempt_id": batch["attempt_id"],
        "members": {
            offset: (member["acked"], member["next_visible"], counts.get(offset, 0), member["suspended"])
            for offset, member in batch["members"].items()
        },
    }


def _run(
    kind: str, entry: int, first: int, last: int, outcome: tuple[Any, ...], *, orderly: bool = False
) -> tuple[Any, ...]:
    reason, applied, pop_time, invisible, revive, handle = outcome
    # CHOICE: a reject counts as an ack here
    code = code_of(reason, is_ack=kind in ("ack", "reject"), orderly=orderly)
    return (entry, first, last, code, reason.value, applied, pop_time, invisible, revive, handle)


def _is_wrong_op_id(op_id: str | None) -> bool:
    return op_id is not None and not 1 <= len(op_id.encode()) <= 128


def _what_is_invalid(command: AnyCommand, kind: str) -> str | None:
    """The first value of the command that is out of its range; what belongs to entries or ranges is judged there."""
    group = getattr(command, "group", None)
    if group is not None and not 1 <= len(group.encode()) <= 255:
        return "group"
    client_id = getattr(command, "client_id", None)
    if client_id is not None and not 1 <= len(client_id.encode()) <= 255:
        return "client_id"
    if kind == "pop":
        if command.attempt_id is not None and not 1 <= len(command.attempt_id.encode()) <= 255:
            return "attempt_id"
        if not 1 <= command.max_messages <= 10_000:
            return "max_messages"
        if not 1 <= command.invisible_time_ms <= MAX_TIME_MS:
            return "invisible_time_ms"
        if not 0 <= command.poll_time_ms <= MAX_TIME_MS:
            return "poll_time_ms"
        if command.tags is not None and not 1 <= len(command.tags) <= 64:
            return "tags"
        if command.tags is not None and not all(1 <= tag < 2**64 for tag in command.tags):
            return "a tag"
        if not 0 <= (command.max_attempts or 0) <= 65_535:
            return "max_attempts"
        waits = command.back_off_ms or []
        if len(waits) > 32 or not all(0 <= wait <= MAX_TIME_MS for wait in waits):
            return "back_off_ms"
    elif kind in ("ack", "change_invisible", "reject"):
        if not command.entries:
            return "no entries"  # CHOICE
        if len(command.entries) > MAX_LIST:
            return "entries"
        if len(command.handles) > MAX_LIST:
            return "handles"
        if sum(len(entry.offsets) for entry in command.entries) > MAX_LIST:
            return "offset ranges"
    elif kind == "dispatch":
        if len(command.ranges) + len(command.skip) > MAX_LIST:
            return "offset ranges"
    elif kind == "policy":
        if not 0 <= command.max_attempts <= 65_535:
            return "max_attempts"
        if not 0 <= command.parked_max <= 8_192:
            return "parked_max"
        if not 0 <= command.in_flight_max < 2**31:
            return "in_flight_max"
        if len(command.back_off_ms) > 32 or not all(0 <= wait <= MAX_TIME_MS for wait in command.back_off_ms):
            return "back_off_ms"
        if not 1_000_000 <= command.window_max <= 1_073_741_824:
            return "window_max"
        for quota in (*LANE_QUOTAS, *QUEUE_QUOTAS):
            if not 0 <= getattr(command, quota) <= (8_192 if quota == "client_parked_max" else 1_000_000):
                return quota
        if command.group is None and command.orderly is not None:
            return "orderly without a group"
    elif kind == "redrive":
        if not 1 <= len(command.offsets) <= MAX_LIST:
            return "offset ranges"
        if not all(0 <= first <= last <= MAX_OFFSET for first, last in command.offsets):
            return "offsets"
    elif kind == "declare":
        if not 0 <= command.min_offset <= MAX_OFFSET:  # CHOICE: the document gives no range
            return "min_offset"
    elif kind == "cancel" and not 1 <= len(command.target_op_id.encode()) <= 128:
        return "target_op_id"
    return None
