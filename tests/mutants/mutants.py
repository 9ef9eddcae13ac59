"""Mistakes in the domain, one small change each: realistic, in different modules, and against a written rule.

`rule` names the rule and where it stands: semantics.md, differences.md, RIP-51, or the
module that promises it. `old` occurs once in the file; `test_mutants` sees to that, so that the list cannot rot.
"""

from typing import NamedTuple

__all__ = ["MUTANTS", "Mutant"]


class Mutant(NamedTuple):
    """In `file` under broker_state/, `new` instead of `old` breaks `rule`."""

    name: str
    rule: str
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant(
        "free_a_moment_late",
        "RIP-51 3.3: at now == its next visible time a member is visible, and the batch is free",
        "kernel/lanes/orderly_lane.py",
        "    due_ms = free_ms if free_ms > op.now_ms else 0\n",
        "    due_ms = free_ms if free_ms >= op.now_ms else 0\n",
    ),
    Mutant(
        "batch_settled_a_moment_late",
        "semantics.md, three steps: a deadline at `now` takes effect at `now`",
        "kernel/lanes/orderly_lane.py",
        "    if (head.due_ms or released) and free_ms <= op.now_ms:\n",
        "    if (head.due_ms or released) and free_ms < op.now_ms:\n",
    ),
    Mutant(
        "lease_expires_a_moment_late",
        "semantics.md, three steps: every deadline at or before `now` takes effect",
        "kernel/expiry.py",
        "        if 0 < delivery.deadline_ms <= now_ms\n",
        "        if 0 < delivery.deadline_ms < now_ms\n",
    ),
    Mutant(
        "fresh_before_what_expired",
        "semantics.md, concurrent lane: what was handed out before comes first, lowest offset first, then fresh ones",
        "kernel/lanes/concurrent_grant.py",
        """    if lane.available.count:
        _grant_available(work)
    if choice.is_open() and record.next_offset < lane.queue.written.floor:
        _grant_fresh(work)
""",
        """    if choice.is_open() and record.next_offset < lane.queue.written.floor:
        _grant_fresh(work)
    if lane.available.count:
        _grant_available(work)
""",
    ),
    Mutant(
        "attempt_not_increased",
        "semantics.md, concurrent lane: each delivery that is not suspended counts as an attempt",
        "kernel/lanes/concurrent_grant.py",
        "work.delivery(before.attempt + (0 if before.suspended else 1))",
        "work.delivery(before.attempt)",
    ),
    Mutant(
        "suspended_counts_as_an_attempt",
        "semantics.md, change_invisible: after `suspend` the next delivery is no further attempt",
        "kernel/lanes/concurrent_grant.py",
        "work.delivery(before.attempt + (0 if before.suspended else 1))",
        "work.delivery(before.attempt + 1)",
    ),
    Mutant(
        "suspended_counts_in_order",
        "semantics.md, orderly lanes: the consumed count of a suspended member does not grow",
        "kernel/lanes/orderly_lane.py",
        "        count = member.count if is_same or member.suspended else member.count + 1\n",
        "        count = member.count if is_same else member.count + 1\n",
    ),
    Mutant(
        "epoch_not_increased",
        "differences.md, fenced handles: each pop has an epoch of its own, whatever the clock says",
        "kernel/lanes/concurrent_grant.py",
        "        self.epoch = lane.record.epoch + 1\n",
        "        self.epoch = max(lane.record.epoch, 1)\n",
    ),
    Mutant(
        "epoch_not_increased_in_order",
        "differences.md, fenced handles, of an orderly lane",
        "kernel/lanes/orderly_lane.py",
        "    lane.record.epoch += 1\n",
        "    lane.record.epoch = max(lane.record.epoch, 1)\n",
    ),
    Mutant(
        "ack_judged_by_revision",
        "semantics.md, judging: an ack needs the epoch alone, and a change the revision too",
        "kernel/lanes/concurrent_lane.py",
        "    if isinstance(entry, ChangeEntry) and delivery.revision != handle.revision:\n",
        "    if delivery.revision != handle.revision:\n",
    ),
    Mutant(
        "superseded_change_accepted",
        "semantics.md, judging: a change by an older revision is SUPERSEDED",
        "kernel/lanes/concurrent_lane.py",
        " and delivery.revision != handle.revision:\n",
        " and delivery.revision < handle.revision:\n",
    ),
    Mutant(
        "commit_offset_not_contiguous",
        "design, D3: a position is the end of the contiguous prefix",
        "store/marks.py",
        "        run = ones_from(self.get(segment_no), low)\n",
        "        run = (self.get(segment_no) >> low).bit_count()\n",
    ),
    Mutant(
        "full_segments_passed_and_kept",
        "marks: what the floor passes is deleted, also a full segment",
        "store/marks.py",
        "                self._set_full(segment_no, full, marked=False)\n",
        "",
    ),
    Mutant(
        "full_segment_marked_again",
        "position: a mark counts once, also in a full segment",
        "store/marks.py",
        " or (not before and self._is_full(segment_no)):\n",
        ":\n",
    ),
    Mutant(
        "commit_offset_jumps_in_order",
        "RIP-51 3.4: the commit offset is that of the first member not acked",
        "kernel/context/order_info.py",
        "        if first <= head.next_offset < end:\n",
        "        if head.next_offset < end:\n",
    ),
    Mutant(
        "late_skip_ignored",
        "semantics.md, dispatch: a skip of written offsets makes holes, and a lane counts what it had of them",
        "kernel/lanes/skip_catch_up.py",
        "        if not _expire_handed_out(op, lane, skip.first, skip.end):\n            return False\n",
        "",
    ),
    Mutant(
        "op_ids_forgotten_early",
        "semantics.md: an op_id of minute m is known until the clock reaches minute m + 10",
        "kernel/op_window.py",
        "    if entry.parked or entry.minute + WINDOW_MINUTES > now_ms // _MINUTE_MS:\n",
        "    if entry.parked or entry.minute + WINDOW_MINUTES - 1 > now_ms // _MINUTE_MS:\n",
    ),
    Mutant(
        "answers_deleted_early",
        "semantics.md: the bytes go after the window and not before",
        "kernel/op_window.py",
        """    minute, op_id, pages = log.entries[index]
    if minute + WINDOW_MINUTES > now_ms // _MINUTE_MS:
""",
        """    minute, op_id, pages = log.entries[index]
    if minute + WINDOW_MINUTES - 1 > now_ms // _MINUTE_MS:
""",
    ),
    Mutant(
        "parked_pops_last_come_first_served",
        "semantics.md, grant: the parked pops of a lane in the order they came",
        "kernel/parked_pops.py",
        "    for place, pop in enumerate(lane.parked_pops()):\n",
        "    for place, pop in enumerate(list(lane.parked_pops())[::-1]):\n",
    ),
    Mutant(
        "parked_pop_unlinked_wrongly",
        "parking: the list of parked pops is whole after one is taken out of its middle",
        "kernel/context/lane_state.py",
        "            after.before = pop.before\n",
        "            after.before = 0\n",
    ),
    Mutant(
        "equal_deadline_put_and_deleted",
        "rocketmq #10276: a deadline that was moved to where it is already must stay",
        "store/overlay.py",
        """                if before_ms == after_ms:
                    continue
                if before_ms:
                    index[deadline_key(queue, DeadlineRef(before_ms, lane_no, kind, number))] = None
                if after_ms:
                    index[deadline_key(queue, DeadlineRef(after_ms, lane_no, kind, number))] = b""
""",
        """                if after_ms:
                    index[deadline_key(queue, DeadlineRef(after_ms, lane_no, kind, number))] = b""
                if before_ms:
                    index[deadline_key(queue, DeadlineRef(before_ms, lane_no, kind, number))] = None
""",
    ),
    Mutant(
        "deadline_moved_twice_stays_behind",
        "overlay: of a deadline that moves twice in a micro-batch, the stored one is deleted",
        "store/overlay.py",
        "        moved[ref] = (before_ms if stored is None else stored[0], after_ms)\n",
        "        moved[ref] = (before_ms, after_ms)\n",
    ),
    Mutant(
        "erased_keys_come_back",
        "overlay: every key with an erased prefix holds nothing, read or not",
        "store/overlay.py",
        "        stored = None if erased else self._kv.get(STATE, key)\n",
        "        stored = self._kv.get(STATE, key)\n",
    ),
    Mutant(
        "erasure_after_the_puts",
        "overlay: puts under an erased prefix count when they come later",
        "store/memory_kv.py",
        """        for first, end in overlay.erasures():
            for key in [key for key in state if first <= key < end]:
                del state[key]
        for family, key, value in overlay.changes():
""",
        """        changes = list(overlay.changes())
        for first, end in overlay.erasures():
            changes += [("state", key, None) for key in {*state, *(c[1] for c in changes)} if first <= key < end]
        for family, key, value in changes:
""",
    ),
    Mutant(
        "invisible_unacked_member_ignored",
        "RIP-51 3.3: a batch blocks while any unacked member is invisible",
        "kernel/context/order_info.py",
        "        for _, _, member in reversed(page.runs):\n",
        "        for _, _, member in page.runs[:1]:\n",
    ),
    Mutant(
        "acked_member_blocks",
        "RIP-51 3.3: an acked member blocks nothing",
        "kernel/context/order_info.py",
        "            if member.is_member and not member.acked:\n                latest_ms",
        "            if member.is_member:\n                latest_ms",
    ),
    Mutant(
        "duplicate_entry_missed",
        "semantics.md, entries: an offset that is named twice in a record is DUPLICATE_ENTRY the second time",
        "kernel/ack_change_reject.py",
        "            if again:\n                pieces.append(Piece(at, stop, Reason.DUPLICATE_ENTRY))\n",
        "            if again and at > stop:\n                pieces.append(Piece(at, stop, Reason.DUPLICATE_ENTRY))\n",
    ),
    Mutant(
        "dead_letter_one_attempt_late",
        "semantics.md, concurrent lane: at the attempt limit a message goes to the dead letters",
        "kernel/lanes/lease_end.py",
        "    if not suspended and policy.max_attempts and delivery.attempt >= policy.max_attempts:\n",
        "    if not suspended and policy.max_attempts and delivery.attempt > policy.max_attempts:\n",
    ),
    Mutant(
        "declared_retries_beat_the_policy",
        "semantics.md, retries: the policy of the queue comes before what pops declare",
        "kernel/context/lane_state.py",
        "            of_queue.max_attempts or declared.max_attempts,\n",
        "            declared.max_attempts or of_queue.max_attempts,\n",
    ),
    Mutant(
        "back_off_ignores_the_policy",
        "semantics.md, change_invisible: a release with back-off waits as the policy says",
        "kernel/lanes/lease_end.py",
        '    policy = lane.policy if entry.release == "back_off" else None\n',
        '    policy = lane.policy if entry.release == "after" else None\n',
    ),
    Mutant(
        "last_attempt_waits_in_order",
        "semantics.md, orderly lane: a member that is given back at the attempt limit does not wait",
        "kernel/lanes/orderly_lane.py",
        "        wait_ms = 0  # there is no further attempt to wait for\n",
        "        wait_ms = min(wait_ms, 1)\n",
    ),
    Mutant(
        "dead_letter_one_attempt_late_in_order",
        "semantics.md, orderly lane: at the attempt limit a message goes to the dead letters",
        "kernel/lanes/orderly_lane.py",
        "    return 0 < max_attempts <= member.count + 1\n",
        "    return 0 < max_attempts <= member.count\n",
    ),
    Mutant(
        "window_unchecked",
        "semantics.md, dispatch: offsets beyond the window are AHEAD_OF_WINDOW",
        "kernel/dispatch.py",
        "    if last >= queue.written.floor + queue.record.window_max or",
        "    if last > queue.written.floor + queue.record.window_max or",
    ),
    Mutant(
        "below_min_unchecked",
        "semantics.md, dispatch: what is below the min offset is BELOW_MIN",
        "kernel/dispatch.py",
        "    if first < queue.record.min_offset and not is_skip:\n",
        "    if last < queue.record.min_offset and not is_skip:\n",
    ),
    Mutant(
        "segment_loses_its_last_bit",
        "segment: 4096 bits, the last one too",
        "store/segment.py",
        "FULL: Final = (1 << SEGMENT_BITS) - 1\n",
        "FULL: Final = (1 << SEGMENT_BITS - 1) - 1\n",
    ),
    Mutant(
        "window_mask_off_at_4096",
        "marks: a range that ends with its segment ends at bit 4096",
        "store/segment.py",
        "        high = min(end - base, SEGMENT_BITS)\n",
        "        high = min(end - base, SEGMENT_BITS - 1)\n",
    ),
    Mutant(
        "grid_without_its_shift",
        "segment, form 4: the first cell begins `shift` bits before the segment",
        "store/segment.py",
        "    return _between(starts, ends) >> shift & FULL\n",
        "    return _between(starts, ends) & FULL\n",
    ),
    Mutant(
        "tree_forgets_a_neighbour",
        "tree: a node is empty when its last member goes",
        "store/tree.py",
        "            if before != bit:\n                break\n",
        "",
    ),
    Mutant(
        "client_not_released",
        "semantics.md, return_client: every lease of the client is released, and no other's",
        "kernel/lanes/lease_end.py",
        "            if delivery.client == client and delivery.state == _LEASED:\n",
        "            if delivery.state == _LEASED:\n",
    ),
    Mutant(
        "cancel_counts_an_attempt",
        "semantics.md, cancel: what is taken back counts as not delivered",
        "kernel/cancel_return_client.py",
        'release(op, lane, first, end, delivery, "cancel", counted=False)',
        'release(op, lane, first, end, delivery, "cancel", counted=True)',
    ),
    Mutant(
        "old_handles_live_after_a_reset",
        "semantics.md, reset_offset: handles given out before are stale",
        "kernel/administration.py",
        "    record.reset_epoch = record.epoch\n",
        "",
    ),
    Mutant(
        "a_redrive_has_a_row_for_its_first_range_alone",
        "semantics.md, redrive: a row in `operations` for each range",
        "kernel/administration.py",
        "(None, first, last) for first, last in command.offsets]",
        "(None, first, last) for first, last in command.offsets[:1]]",
    ),
    Mutant(
        "neighbouring_entries_share_the_first_ones_cause",
        "semantics.md, judging: each entry has its own outcome, and its cause is in its rows",
        "kernel/ack_change_reject.py",
        "                and last_claim.entry.cause == entry.cause\n",
        "",
    ),
    Mutant(
        "neighbouring_entries_share_the_first_ones_handle",
        "semantics.md, judging: each entry is judged by its own handle",
        "kernel/ack_change_reject.py",
        "                and last_claim.handle is handle\n",
        "",
    ),
    Mutant(
        "ranges_of_a_claim_lose_where_pieces_differ",
        "semantics.md, judging: neighbours with one outcome make a run",
        "kernel/ack_change_reject.py",
        "while pieces[alike].end < claim.end and _is_alike(piece, pieces[alike + 1]):",
        "while pieces[alike].end < claim.end:",
    ),
    Mutant(
        "clock_runs_backwards",
        "semantics.md: `now` is the record's timestamp, made monotone per queue",
        "kernel/decide.py",
        "    now_ms = queue.record.now_ms = max(queue.record.now_ms, record.timestamp_ms)\n",
        "    now_ms = queue.record.now_ms = record.timestamp_ms\n",
    ),
    Mutant(
        "in_flight_limit_one_over",
        "semantics.md, ranges: a pop gets what is left of in_flight_max",
        "kernel/lanes/concurrent_grant.py",
        "    units = limit - record.leased if limit else max_messages\n",
        "    units = limit - record.leased + 1 if limit else max_messages\n",
    ),
    Mutant(
        "handle_of_another_lane",
        "handle: the lane check ties a handle to its lane",
        "kernel/context/lane_state.py",
        "            handle.lane_check == self.check\n            and handle.queue_id",
        "            handle.queue_id",
    ),
    Mutant(
        "expired_message_not_offered_again",
        "semantics.md, concurrent lane: a message whose lease has ended is offered again",
        "kernel/lanes/lease_end.py",
        "    return delivery.offered_again(suspended=suspended, back_off_until_ms=again_ms)\n",
        "    return delivery.offered_again(suspended=suspended, back_off_until_ms=again_ms or 1 << 62)\n",
    ),
    Mutant(
        "stale_handle_acks_a_newer_lease",
        "differences.md, fenced handles: a handle of an earlier delivery is stale",
        "kernel/lanes/concurrent_lane.py",
        "    if delivery.epoch != handle.epoch:\n",
        "    if delivery.epoch != handle.epoch and isinstance(entry, ChangeEntry):\n",
    ),
    Mutant(
        "message_lost_by_an_equal_deadline",
        "differences.md, a change to an equal deadline keeps the message",
        "kernel/lanes/concurrent_lane.py",
        'cause="change_invisible", client_id=op.client_id)\n        return after\n',
        'cause="change_invisible", client_id=op.client_id)\n'
        "        return None if after.deadline_ms == before.deadline_ms else after\n",
    ),
    Mutant(
        "lease_of_a_late_change_not_returned",
        "semantics.md, return_client: every lease of the client is released",
        "kernel/lanes/concurrent_lane.py",
        "                if delivery.state != _LEASED and after is not None and after.client:\n",
        "                if delivery.state != _LEASED and after is None:\n",
    ),
    Mutant(
        "init_max_is_min",
        "semantics.md, pop: with `init` max a lane starts at the commit position",
        "kernel/pop.py",
        """queue.record.min_offset if command.init == "min" else queue.written.floor""",
        """queue.record.min_offset""",
    ),
    Mutant(
        "suspend_ignored",
        "semantics.md, change_invisible: after `suspend` the next delivery is no further attempt",
        "kernel/lanes/concurrent_lane.py",
        "invisible_time_ms=invisible_time_ms, suspend=entry.suspend)\n",
        "invisible_time_ms=invisible_time_ms, suspend=False)\n",
    ),
    Mutant(
        "suspend_ignored_in_order",
        "semantics.md, orderly lanes: the consumed count of a suspended member does not grow",
        "kernel/lanes/orderly_lane.py",
        "next_visible_ms=next_visible_ms, suspended=entry.suspend, ended=ends)\n",
        "next_visible_ms=next_visible_ms, suspended=False, ended=ends)\n",
    ),
    Mutant(
        "pages_wait_beyond_the_micro_batch",
        "design.md: the state does not depend on how the log was cut into micro-batches",
        "kernel/fold.py",
        "    for queue in touched:\n        queue.settle()\n",
        "",
    ),
    Mutant(
        "pages_wait_while_their_lane_is_forgotten",
        "design.md: the state does not depend on how the log was cut into micro-batches",
        "kernel/decide.py",
        "        queue.settle()\n",
        "        pass\n",
    ),
    Mutant(
        "parked_pop_never_served",
        "semantics.md, grant: parked pops are served as soon as there is something",
        "kernel/decide.py",
        "        if catch_up(op, lane) and lane.record.parked:\n            serve_parked(op, lane)\n",
        "        catch_up(op, lane)\n",
    ),
    Mutant(
        "new_pop_overtakes_a_parked_one",
        "semantics.md, grant: the record's own pop comes last",
        "kernel/decide.py",
        """        if catch_up(op, lane) and lane.record.parked:
            serve_parked(op, lane)
        if lane is waiting and isinstance(op.command, Pop):
            parked = serve_new(op, lane, op.command)
            if op.op_id is not None:
                op_window.store(op, op.op_id, parked=parked.number if parked else 0)
""",
        """        if lane is waiting and isinstance(op.command, Pop):
            parked = serve_new(op, lane, op.command)
            if op.op_id is not None:
                op_window.store(op, op.op_id, parked=parked.number if parked else 0)
        if catch_up(op, lane) and lane.record.parked:
            serve_parked(op, lane)
""",
    ),
    Mutant(
        "stale_ack_is_reported_as_applied",
        "semantics.md, answers: `applied` says whether state has changed",
        "kernel/ack_change_reject.py",
        "        applied = reason is Reason.OK\n",
        "        applied = reason in (Reason.OK, Reason.STALE_HANDLE)\n",
    ),
    Mutant(
        "lone_ack_keeps_its_lease",
        "semantics.md, judging: a message that is acked is ALREADY_ACKED",
        "kernel/lone_ack.py",
        "    page.replace(first, last + 1, None)\n",
        "",
    ),
    Mutant(
        "lone_ack_of_a_released_message_has_a_deadline",
        "tables.md, operations: `deadline_before_ms` is that of a lease, null where there is none",
        "kernel/lone_ack.py",
        "before.deadline_ms or None",
        "before.deadline_ms",
    ),
    Mutant(
        "lone_ack_on_a_lane_that_lost_messages",
        "semantics.md, three steps: an operation first brings its lane up to date with what has left the log",
        "kernel/lone_ack.py",
        " or lane.has_lost_messages",
        "",
    ),
    Mutant(
        "lone_ack_on_a_lane_that_pauses",
        "semantics.md, work limits: later records go on with what was too much for one, before they are decided",
        "kernel/lone_ack.py",
        " or lane.record.paused_until_ms:\n",
        ":\n",
    ),
    Mutant(
        "older_batch_is_current",
        "semantics.md, orderly lanes: a handle of an earlier pop is stale",
        "kernel/lanes/orderly_lane.py",
        "    if not head.member_count or claim.handle.epoch != head.epoch:\n",
        "    if not head.member_count or claim.handle.epoch > head.epoch:\n",
    ),
    Mutant(
        "commit_offset_is_the_end_of_the_batch",
        "RIP-51 3.4: the commit offset is that of the first member not acked",
        "kernel/context/order_info.py",
        "            head.next_offset = self._first_unacked(page, end)\n",
        "            head.next_offset = head.end\n",
    ),
    Mutant(
        "lane_free_with_the_first_member",
        "differences.md, true wake-up moment: a lane is free when the last unacked member is visible",
        "kernel/context/order_info.py",
        "                latest_ms = max(latest_ms, self.next_visible_ms(member))\n",
        "                latest_ms = min(latest_ms or NEVER_MS, self.next_visible_ms(member))\n",
    ),
    Mutant(
        "same_attempt_blocked",
        "RIP-51 3.3: a pop with the attempt id of the batch is not blocked",
        "kernel/lanes/orderly_lane.py",
        "    return attempt_id is not None and info.head.attempt_id == attempt_id\n",
        "    return attempt_id is not None and info.head.attempt_id == attempt_id and not info.head.due_ms\n",
    ),
    Mutant(
        "acked_member_not_counted",
        "RIP-51 3.2: a member that was acked out of order counts as delivered when it comes again",
        "kernel/lanes/orderly_lane.py",
        "        count = member.count if is_same or member.suspended else member.count + 1\n",
        "        count = member.count if is_same or member.suspended or member.acked else member.count + 1\n",
    ),
    Mutant(
        "release_keeps_the_lane_blocked",
        "semantics.md, change_invisible: 0 ms makes a member visible at once",
        "kernel/lanes/orderly_lane.py",
        "    next_visible_ms = op.now_ms + wait_ms\n    changed",
        "    next_visible_ms = op.now_ms + max(wait_ms, 1)\n    changed",
    ),
    Mutant(
        "late_ack_refused",
        "semantics.md, judging: an ack is good after the deadline, until the message is leased again",
        "kernel/lanes/concurrent_lane.py",
        "            if delivery is None:\n",
        "            if delivery is None or delivery.state != _LEASED:\n",
    ),
    Mutant(
        "change_prolongs_the_old_deadline",
        "semantics.md, change_invisible: the new time counts from the record's `now`",
        "store/facts.py",
        "            deadline_ms=now_ms + invisible_time_ms,\n",
        "            deadline_ms=max(self.deadline_ms, now_ms + invisible_time_ms),\n",
    ),
    Mutant(
        "reset_backwards_only_moves_the_commit_offset",
        "semantics.md, reset_offset: the next pop gets the messages from the new offset on",
        "kernel/administration.py",
        "    record.next_offset = target\n",
        "    record.next_offset = max(record.next_offset, target)\n",
    ),
    Mutant(
        "delivery_times_not_in_the_index_of_tags",
        "semantics.md, pop: a pop that reaches a message with a delivery time to come, with whatever tags, puts it off",
        "store/tag_index.py",
        "            self._tree(_WITH_TIMES).add_range(first_page, end_page)\n",
        "            self._tree(facts.tag % TAG_CLASSES).add_range(first_page, end_page)\n",
    ),
    Mutant(
        "tag_found_in_one_class_only",
        "semantics.md, pop: pages with a tag of any class of the set are looked at",
        "kernel/lanes/tag_search.py",
        "            self._next_page = min(self._next_pages.values())\n",
        "            self._next_page = max(self._next_pages.values())\n",
    ),
    Mutant(
        "full_pop_passes_on",
        "semantics.md, pop: the first unit that does not fit ends the pop",
        "kernel/lanes/pop_filter.py",
        "            if not self.is_open():\n                break\n        else:\n            at = end\n",
        "        else:\n            at = end\n",
    ),
    Mutant(
        "index_of_tags_taken_for_whole",
        "semantics.md, pop: a queue from before there was the index has it for what was written since",
        "kernel/context/queue_state.py",
        "_unwritten_page(record) if record.has_unit_facts else 0\n",
        "0\n",
    ),
    Mutant(
        "holes_passed_in_each_lane_that_a_record_names",
        "semantics.md: a record brings a bounded number of lanes up to date",
        "kernel/lanes/concurrent_grant.py",
        "    limit = floor if op.work_left > 0 else min(",
        "    limit = floor if op.work_left > -(10**9) else min(",
    ),
    Mutant(
        "tags_ignored",
        "semantics.md, pop: messages with other tags are passed over",
        "kernel/lanes/pop_filter.py",
        "                if self.tags is not None and facts.tag not in self.tags and not is_early:\n",
        "                if self.tags is not None and not facts.tag and facts.tag not in self.tags and not is_early:\n",
    ),
    Mutant(
        "ack_beyond_the_queue_taken",
        "semantics.md, entries: an offset at or above the commit position is ABOVE_MAX",
        "kernel/ack_change_reject.py",
        "        self.commit_position = op.queue.written.floor\n",
        "        self.commit_position = op.queue.written.floor + 1\n",
    ),
    Mutant(
        "one_more_than_the_quota",
        "semantics.md, quotas: `pops_per_s_max` pops in a second, and no more",
        "kernel/quotas.py",
        '    return f"{name} is {limit}" if 0 < limit <= count else None\n',
        '    return f"{name} is {limit}" if 0 < limit < count else None\n',
    ),
    Mutant(
        "quota_that_never_ends",
        "semantics.md, quotas: from one full second to the next",
        "kernel/quotas.py",
        "        if usage.second != second:\n",
        "        if not usage.second:\n",
    ),
    Mutant(
        "refused_pop_makes_a_lane",
        "semantics.md, quotas: an operation that a quota refuses changes nothing",
        "kernel/quotas.py",
        "    exceeded = exceeded_by_new_lane(op) if lane is None else None\n",
        "    exceeded = None\n",
    ),
    Mutant(
        "clients_share_a_quota",
        "semantics.md, quotas: `client_pops_per_s_max` counts the pops of each client",
        "kernel/quotas.py",
        "    client = _NO_CLIENT if client_id is None else client_hash(client_id)\n",
        "    client = _NO_CLIENT\n",
    ),
    Mutant(
        "late_skips_settled_one_by_one",
        "semantics.md, three steps: what has left the log neither expires nor is dead-lettered",
        "kernel/lanes/skip_catch_up.py",
        "            expire_members(op, lane, first, end, is_prefix=False)\n",
        "            expire_members(op, lane, first, end, is_prefix=False)\n            settle_batch(op, lane)\n",
    ),
    Mutant(
        "pops_served_while_a_lane_pauses",
        "semantics.md: no pop of a lane is served until what was too much for one record is done",
        "kernel/context/lane_state.py",
        "        if record.paused_until_ms:\n            return False\n",
        "",
    ),
    Mutant(
        "leases_expire_before_all_is_accounted_for",
        "semantics.md: until what left the log is accounted for, no lease of the lane expires",
        "kernel/expiry.py",
        "        if ref.kind == DEADLINE_PAGE and not catch_up(op, lane):\n",
        "        if ref.kind == DEADLINE_PAGE and not catch_up(op, lane) and not lane.is_behind:\n",
    ),
    Mutant(
        "waiting_lanes_served_up_to_an_older_position",
        "semantics.md: when the commit position moves, all lanes that wait for it are served",
        "kernel/parked_pops.py",
        "    record.serving_next = int(record.serving_again)\n",
        "    record.serving_next = 0\n",
    ),
    Mutant(
        "long_pops_served_without_end",
        "semantics.md: the messages of parked pops that can be served are bounded",
        "kernel/parked_pops.py",
        "        if op.grants_left <= 0 or (",
        "        if (",
    ),
    Mutant(
        "skips_far_apart_cost_no_more",
        "semantics.md, dispatch: a skip spends 2 for each 4,096 offsets but those in which the one before ended",
        "kernel/dispatch.py",
        "            segment_before = last_segment\n",
        "            segment_before = first_segment\n",
    ),
    Mutant(
        "pages_count_only_their_runs",
        "semantics.md, judging: each page in which the entries of a record name messages counts as 16 runs more",
        "kernel/context/op_context.py",
        " else count + _PAGE_RUNS\n",
        " else count\n",
    ),
    Mutant(
        "holder_named_after_the_end",
        "tables.md, deliveries: client_id is who took the step, or who held the lease that ended",
        "kernel/context/audit_trail.py",
        " = client_id is None and delivery.state == _LEASED and step != DeliveryStep.LEASED\n",
        " = client_id is None and step != DeliveryStep.LEASED\n",
    ),
    Mutant(
        "row_of_a_lease_takes_in_its_neighbour",
        "tables.md, deliveries: client_id is who took the step, or who held the lease that ended",
        "kernel/context/audit_trail.py",
        " and by == self._step_by",
        "",
    ),
    Mutant(
        "id_of_a_client_forgotten_with_its_first_page",
        "design.md, state: the id of a client is kept as long as it may hold leases",
        "kernel/context/lane_state.py",
        "        if not size:\n            self._forget_client_id(client)\n",
        "        self._forget_client_id(client)\n",
    ),
    Mutant(
        "rest_of_a_client_not_released",
        "semantics.md, return_client: later records release what was too much for one",
        "kernel/cancel_return_client.py",
        "        lane.set_returning([*clients, client])\n",
        "",
    ),
    Mutant(
        "declare_that_came_too_early_is_remembered",
        "semantics.md, declare: while lanes are closed, it is to be sent again",
        "kernel/decide.py",
        " and not op.is_undecided:\n",
        ":\n",
    ),
    Mutant(
        "given_a_moment_before_its_time",
        "semantics.md, concurrent lane: a message with a delivery time is given to no pop before it",
        "kernel/lanes/pop_filter.py",
        "                is_early = facts.deliver_at_ms > self._op.now_ms\n",
        "                is_early = facts.deliver_at_ms > self._op.now_ms + 1\n",
    ),
    Mutant(
        "put_off_and_not_counted",
        "semantics.md, concurrent lane: a message that is put off counts as available",
        "kernel/lanes/concurrent_grant.py",
        "    lane.record.available += end - first\n    page =",
        "    page =",
    ),
    Mutant(
        "order_waits_for_what_has_left_the_log",
        "semantics.md, orderly lane: the lane pauses until that time, or until something leaves the log",
        "kernel/lanes/skip_catch_up.py",
        "        if record.paused_until_ms > op.now_ms + PAUSE_MS:\n",
        "        if record.paused_until_ms > op.now_ms + PAUSE_MS and has_news and queue.late_skips:\n",
    ),
    Mutant(
        "order_overtaken_by_what_follows_a_delivery_time",
        "semantics.md, orderly lane: a message with a delivery time to come ends a pop",
        "kernel/lanes/orderly_lane.py",
        "                return members, first, deliver_at_ms\n",
        "                continue\n",
    ),
    Mutant(
        "delivery_time_without_an_end",
        "semantics.md, dispatch: a delivery time more than 7 days after the clock is cut to that",
        "kernel/dispatch.py",
        "min(written.deliver_at_ms, now_ms + DELAY_MS_MAX) if",
        "written.deliver_at_ms if",
    ),
]
