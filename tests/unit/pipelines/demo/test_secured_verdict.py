"""Claim: each thing that goes wrong in the secured demo fails the check that is about it, and no other.

Method: what a good run leaves, with one thing changed. The tables are those of DuckDB, made here.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from pipelines.demo.checks import checks_of
from pipelines.demo.intrusions import COPIES, FLOOD_POPS, Flood
from pipelines.demo.secured_verdict import REASONS, Found, claims_of, leaks, refused_counts
from pipelines.demo.tenant import GROUP
from popstream.wire.answer import Answer
from popstream.wire.reason import Reason, code_of

DONE = "every message of each tenant is done, and its tables name no other topic"
APART = "Kafka refuses each tenant in all topics of the other"
FORGED = "forged handles, one of the other tenant, and a release of others are refused with NO_PERMISSION (16)"
UNSIGNED = "an unsigned policy, and every other unsigned operation, are rejected with NO_PERMISSION (16)"
FOREIGN = "an operation of the other tenant is rejected with NO_PERMISSION (16)"
COPIED = "a copy of a signed operation changes nothing, and an old one is rejected"
FLOODED = "a flood is refused with QUOTA_EXCEEDED (2), while others are served"
ADMINISTERED = "what an administrator signs is done, and the audit has the id of the key"


class Tables:
    """The audit tables of a tenant, as far as the checks read them."""

    def __init__(self, name: str) -> None:
        self.name, self.topic = name, f"{name}.orders"
        self.connection = duckdb.connect()
        self.connection.execute(
            "CREATE TABLE operations (kafka_offset INT, kind TEXT, topic TEXT, op_id TEXT, client_id TEXT, code INT,"
            " reason TEXT, applied BOOLEAN, repeated BOOLEAN, admin_key TEXT)"
        )
        self.connection.execute("CREATE TABLE rejected (op_id TEXT, reason TEXT)")
        self.connection.execute('CREATE TABLE deliveries (step TEXT, "group" TEXT, first_offset INT, last_offset INT)')
        self.connection.execute("INSERT INTO deliveries VALUES ('acked', ?, 0, 9)", [GROUP])
        for kind, key in (("declare", "2031"), ("dispatch", "2031"), ("policy", "2030" if name == "shop" else "2031")):
            self.operation(kind, key=key)

    def operation(self, kind: str, reason: Reason = Reason.OK, op_id: str = "", **more: Any) -> None:
        applied = more.get("applied", reason is Reason.OK)
        row = [0, kind, self.topic, op_id, more.get("client"), code_of(reason), reason.value, applied]
        row += [more.get("repeated", False), more.get("key")]
        rows = [row] * more.get("count", 1)
        self.connection.executemany("INSERT INTO operations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def rows(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, values).fetchall()


def answer(op_id: str, kind: str, reason: Reason, **changed: Any) -> Answer:
    fields = {"topic": "shop.orders", "queue_id": 0, "now_ms": 1, "applied": False, **changed}
    return Answer(op_id=op_id, type=kind, code=code_of(reason), reason=reason, **fields)


def good_run() -> tuple[list[Any], dict[str, Any]]:
    shop, bank = Tables("shop"), Tables("bank")
    shop.operation("forget_lane", key="2031")
    shop.operation("ack", Reason.NO_PERMISSION, "forged")
    for number in range(COPIES):
        shop.operation("policy", op_id="copied", applied=number == 0, repeated=number > 0, key="2030")
    shop.operation("pop", Reason.QUOTA_EXCEEDED, client="c", count=FLOOD_POPS - 1)
    for op_id, reason in (("unsigned", "NOT_SIGNED"), ("foreign", "BAD_SIGNATURE"), ("late", "BAD_SIGNATURE")):
        shop.connection.execute("INSERT INTO rejected VALUES (?, ?)", [op_id, reason])
    refused = answer("pop", "pop", Reason.QUOTA_EXCEEDED)
    found = {
        "messages": 10,
        "done": {"shop": 10, "bank": 10},
        "tried": {"shop in bank": {"write": 29, "consume": "Kafka does not allow User:shop-app"}},
        "commands": {"policy": 0},
        "forged": [answer("forged", "ack", Reason.NO_PERMISSION)],
        "unsigned": [answer("unsigned", "policy", Reason.NO_PERMISSION)],
        "foreign": [answer("foreign", "policy", Reason.NO_PERMISSION)],
        "copied_op_id": "copied",
        "late_op_id": "late",
        "flooding_client": "c",
        "flood": Flood([answer("pop", "pop", Reason.OK, applied=True), *[refused] * (FLOOD_POPS - 1)], 1),
        "metrics": {name: float(count) for name, count in refused_counts(1, 1, 1).items()},
        "page": {REASONS[name]: count for name, count in refused_counts(1, 1, 1).items()},
        "verified": {"shop": 0, "bank": 0},
        "stopped": {"shop": 0, "bank": 0},
        "leaks": [],
    }
    return [shop, bank], found


def failed(tenants: list[Any], found: dict[str, Any]) -> set[str]:
    return {check.name for check in checks_of(claims_of(tenants, Found(**found))) if check.failures}


def test_a_good_run_holds_every_check() -> None:
    assert failed(*good_run()) == set()


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"done": {"shop": 9, "bank": 10}}, DONE),
        ({"tried": {"shop in bank": {"write": 0}}}, APART),
        ({"tried": {"shop in bank": {"consume": "Kafka does not answer"}}}, APART),
        ({"forged": [answer("forged", "ack", Reason.OK, applied=True)]}, FORGED),
        ({"forged": [answer("unheard of", "ack", Reason.NO_PERMISSION)]}, FORGED),
        ({"unsigned": [answer("unsigned", "policy", Reason.OK, applied=True)]}, UNSIGNED),
        ({"unsigned": [answer("foreign", "policy", Reason.NO_PERMISSION)]}, UNSIGNED),
        ({"foreign": [answer("copied", "policy", Reason.NO_PERMISSION)]}, FOREIGN),
        ({"copied_op_id": "forged"}, COPIED),
        ({"late_op_id": "unsigned"}, COPIED),
        ({"flood": Flood([answer("pop", "pop", Reason.OK)] * FLOOD_POPS, 1)}, FLOODED),
        ({"flooding_client": "another"}, FLOODED),
        ({"commands": {"policy": 1}}, ADMINISTERED),
        ({"verified": {"shop": 4, "bank": 0}}, "both logs lead to the same decisions again"),
        ({"stopped": {"shop": 0, "bank": -9}}, "both jobs stop when they are asked to"),
        ({"leaks": ["job.log"]}, "each secret is in its own file alone"),
    ],
)
def test_what_goes_wrong_fails_its_check(change: dict[str, Any], check: str) -> None:
    tenants, found = good_run()
    assert failed(tenants, found | change) == {check}


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("forged handles", FORGED),
        ("unsigned operations", UNSIGNED),
        ("foreign operations", FOREIGN),
        ("refused pops", FLOODED),
    ],
)
def test_what_metrics_or_page_do_not_show_fails_its_check(name: str, check: str) -> None:
    tenants, found = good_run()
    found["metrics"][name] -= 1
    assert failed(tenants, found) == {check}
    tenants, found = good_run()
    found["page"][REASONS[name]] -= 1
    assert failed(tenants, found) == {check}
    del found["page"][REASONS[name]]
    assert failed(tenants, found) == {check}


def test_bystanders_must_be_served_and_tables_be_of_one_tenant() -> None:
    tenants, found = good_run()
    assert failed(tenants, found | {"flood": found["flood"]._replace(served=0)}) == {FLOODED}
    tenants[1].topic = "shop.orders"
    tenants[1].operation("tick")
    assert failed(tenants, found) == {DONE}


def test_a_secret_is_found_wherever_it_is_but_in_its_file(tmp_path: Path) -> None:
    own = tmp_path / "own.key"
    own.write_text("a secret")
    tenant: Any = SimpleNamespace(name="shop", files_of_secrets={own}, secrets=["a secret"], said=["all is well"])
    assert list(leaks([tenant], tmp_path)) == []
    log = tmp_path / "deep" / "job.log"
    log.parent.mkdir()
    log.write_text("it is: a secret")
    assert list(leaks([tenant], tmp_path)) == [str(log)]
    tenant.said = ["a secret"]
    assert list(leaks([tenant], tmp_path)) == ["a command of shop has printed a secret", str(log)]
