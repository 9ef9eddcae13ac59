"""The checks of the secured demo: what answers, tables, metrics and the status page of both tenants must show."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from broker_state.audit import RejectReason
from pipelines.demo.intrusions import COPIES, FLOOD_POPS, Flood
from pipelines.demo.tenant import GROUP, KEY_IDS, Tenant
from popstream.wire.answer import Answer
from popstream.wire.reason import Reason, code_of

__all__ = ["Found", "claims_of", "leaks", "refused_counts"]

TOPIC_AUTHORIZATION_FAILED = 29
REASONS = {
    "forged handles": Reason.NO_PERMISSION.value,
    "refused pops": Reason.QUOTA_EXCEEDED.value,
    "unsigned operations": RejectReason.NOT_SIGNED.value,
    "foreign operations": RejectReason.BAD_SIGNATURE.value,
}
"""By which reason the page shows what is counted."""


class Found(NamedTuple):
    """What was seen. The intrusions are into the first tenant, with messages and keys of the second one.

    Attributes:
        messages: Messages of each tenant.
        done: By tenant, the messages that its consumers acked.
        tried: By who tried where, what was told, see `try_topics_of_another`.
        commands: By command of an administrator, its exit code.
        forged: Answers to acks with forged handles, and to a release of what others hold.
        unsigned: Answers to operations without a signature.
        foreign: Answers to operations that the other administrator signed.
        copied_op_id: Of a signed operation that was written several times.
        late_op_id: Of one that was signed long before.
        flooding_client: The client of the flood.
        flood: The flood.
        metrics: What the metrics show, see `refused_counts`.
        page: What the status page shows: refusals and rejections by reason.
        verified: By tenant, the exit code of `popstream verify`.
        stopped: By tenant, the exit code of its job.
        leaks: Places of secrets.
    """

    messages: int
    done: Mapping[str, int]
    tried: Mapping[str, Mapping[str, int | str]]
    commands: Mapping[str, int]
    forged: Sequence[Answer]
    unsigned: Sequence[Answer]
    foreign: Sequence[Answer]
    copied_op_id: str
    late_op_id: str
    flooding_client: str
    flood: Flood
    metrics: Mapping[str, float]
    page: Mapping[str, int]
    verified: Mapping[str, int]
    stopped: Mapping[str, int]
    leaks: Sequence[str]


def refused_counts(forged: int, unsigned: int, foreign: int) -> dict[str, int]:
    """Return what metrics and page must show at least, by name; the late copy counts as a foreign operation."""
    return {
        "forged handles": forged,
        "unsigned operations": unsigned,
        "foreign operations": foreign + 1,
        "refused pops": 1,
    }


def claims_of(tenants: Sequence[Tenant], found: Found) -> dict[str, Iterator[str]]:
    """Return each claim with what contradicts it."""
    shop = tenants[0]
    return {
        "every message of each tenant is done, and its tables name no other topic": _done(tenants, found),
        "Kafka refuses each tenant in all topics of the other": _apart(found),
        "forged handles, one of the other tenant, and a release of others are refused with NO_PERMISSION (16)": _forged(
            shop, found
        ),
        "an unsigned policy, and every other unsigned operation, are rejected with NO_PERMISSION (16)": _rejected(
            shop, found, found.unsigned, "NOT_SIGNED", "unsigned operations"
        ),
        "an operation of the other tenant is rejected with NO_PERMISSION (16)": _rejected(
            shop, found, found.foreign, "BAD_SIGNATURE", "foreign operations"
        ),
        "a copy of a signed operation changes nothing, and an old one is rejected": _copies(shop, found),
        "a flood is refused with QUOTA_EXCEEDED (2), while others are served": _flooded(shop, found),
        "what an administrator signs is done, and the audit has the id of the key": _administered(tenants, found),
        "both logs lead to the same decisions again": _all_zero(found.verified),
        "both jobs stop when they are asked to": _all_zero(found.stopped),
        "each secret is in its own file alone": iter(found.leaks),
    }


def _shown(found: Found, name: str) -> Iterator[str]:
    wanted = refused_counts(len(found.forged), len(found.unsigned), len(found.foreign))[name]
    if found.metrics[name] < wanted:
        yield f"the metrics show {found.metrics[name]:.0f} {name}, not {wanted}"
    reason = REASONS[name]
    if found.page.get(reason, 0) < wanted:
        yield f"the page shows {found.page.get(reason, 0)} {name} ({reason}), not {wanted}"


def _done(tenants: Sequence[Tenant], found: Found) -> Iterator[str]:
    for tenant in tenants:
        if found.done[tenant.name] != found.messages:
            yield f"{tenant.name}: {found.done[tenant.name]} of {found.messages} messages are acked"
        sql = "SELECT sum(last_offset - first_offset + 1) FROM deliveries WHERE step = 'acked' AND \"group\" = $group"
        ((acked,),) = tenant.rows(sql, group=GROUP)
        if acked < found.messages:
            yield f"{tenant.name}: the tables have {acked} acked messages, not {found.messages}"
        topics = [topic for (topic,) in tenant.rows("SELECT DISTINCT topic FROM operations")]
        if topics != [tenant.topic]:
            yield f"the tables of {tenant.name} are about {topics}"


def _apart(found: Found) -> Iterator[str]:
    for who, tried in found.tried.items():
        for attempt, error in tried.items():
            if error != TOPIC_AUTHORIZATION_FAILED and "Kafka does not allow" not in str(error):
                yield f"{who}: {attempt}: {error}"


def _answered(answers: Sequence[Answer], reason: Reason) -> Iterator[str]:
    for answer in answers:
        if (answer.reason, answer.code, answer.applied) != (reason, code_of(reason), False):
            yield f"{answer.type} was answered {answer.reason} ({answer.code}): {answer.detail}"


def _forged(tenant: Tenant, found: Found) -> Iterator[str]:
    code = code_of(Reason.NO_PERMISSION)
    yield from _answered(found.forged, Reason.NO_PERMISSION)
    for answer in found.forged:
        rows = tenant.rows("SELECT reason, code, applied FROM operations WHERE op_id = $op_id", op_id=answer.op_id)
        if rows != [(Reason.NO_PERMISSION.value, code, False)]:
            yield f"the table has {rows} for an {answer.type}"
    yield from _shown(found, "forged handles")


def _rejected(tenant: Tenant, found: Found, answers: Sequence[Answer], reason: str, metric: str) -> Iterator[str]:
    yield from _answered(answers, Reason.NO_PERMISSION)
    for answer in answers:
        rows = tenant.rows("SELECT reason FROM rejected WHERE op_id = $op_id", op_id=answer.op_id)
        decided = tenant.rows("SELECT reason FROM operations WHERE op_id = $op_id", op_id=answer.op_id)
        if (rows, decided) != ([(reason,)], []):
            yield f"the tables have {rows} and {decided} for a {answer.type}"
    yield from _shown(found, metric)


def _copies(tenant: Tenant, found: Found) -> Iterator[str]:
    sql = "SELECT applied, repeated FROM operations WHERE op_id = $op_id ORDER BY kafka_offset"
    rows = tenant.rows(sql, op_id=found.copied_op_id)
    if rows != [(True, False)] + [(False, True)] * (COPIES - 1):
        yield f"the table has {rows} for {COPIES} copies"
    late = tenant.rows("SELECT reason FROM rejected WHERE op_id = $op_id", op_id=found.late_op_id)
    if late != [("BAD_SIGNATURE",)]:
        yield f"the table has {late} for an old copy"


def _flooded(tenant: Tenant, found: Found) -> Iterator[str]:
    flooded = found.flood
    reasons = Counter(answer.reason for answer in flooded.answers)
    refused = [answer for answer in flooded.answers if answer.reason is Reason.QUOTA_EXCEEDED]
    if not refused or len(flooded.answers) != FLOOD_POPS:
        yield f"{FLOOD_POPS} pops were answered {dict(reasons)}"
    if not flooded.served:
        yield "another group was not served"
    sql = (
        "SELECT count(*), min(code), max(code) FROM operations WHERE client_id = $client AND reason = 'QUOTA_EXCEEDED'"
    )
    rows = tenant.rows(sql, client=found.flooding_client)
    if rows != [(len(refused), code_of(Reason.QUOTA_EXCEEDED), code_of(Reason.QUOTA_EXCEEDED))]:
        yield f"the table has {rows} for {len(refused)} refused pops"
    yield from _shown(found, "refused pops")


def _administered(tenants: Sequence[Tenant], found: Found) -> Iterator[str]:
    yield from _all_zero(found.commands)
    sql = "SELECT DISTINCT kind, admin_key FROM operations WHERE applied AND admin_key IS NOT NULL"
    shop, bank = (set(tenant.rows(sql)) for tenant in tenants)
    first, second = KEY_IDS
    for name, seen, wanted in (
        ("shop", shop, {("policy", first), ("forget_lane", second), ("declare", second), ("dispatch", second)}),
        ("bank", bank, {("policy", second), ("declare", second), ("dispatch", second)}),
    ):
        if seen != wanted:
            yield f"the table of {name} has {sorted(seen)}"


def _all_zero(codes: Mapping[str, int]) -> Iterator[str]:
    yield from (f"{name}: exit code {code}" for name, code in codes.items() if code)


def leaks(tenants: Sequence[Tenant], folder: Path) -> Iterator[str]:
    """Yield the places of secrets where they should not be: files, tables, output of commands."""
    for tenant in tenants:
        own = tenant.files_of_secrets
        texts = [secret.encode() for secret in tenant.secrets]
        if any(secret in text for text in tenant.said for secret in tenant.secrets):
            yield f"a command of {tenant.name} has printed a secret"
        for path in folder.rglob("*"):
            if path.is_file() and path not in own:
                content = path.read_bytes()
                if path.suffix == ".parquet":
                    content += str(pq.read_table(path).to_pylist()).encode()
                if any(text in content for text in texts):
                    yield str(path)
