"""`make secure-demo`: two tenants on a secured Kafka, what one tries against the other, and a verdict.

```
broker: TLS, SCRAM, ACLs ── shop.* ── job of shop: handle keys, admin keys ── tables, metrics, page ─┐
                         └─ bank.* ── job of bank: handle keys, admin keys ── tables, metrics, page ─┴─> verdict
```

Kafka's ACLs keep the tenants apart (docs/tenants.md); what gets into a log all the same is refused by the keys.
"""

import argparse
import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from checkpoints.ownership import Ownership
from connectors.jars.resolve import kafka_jars
from connectors.kafka.secured_kafka import running
from pipelines.demo.checks import Check, checks_of, failure_lines, verdict_line
from pipelines.demo.intrusions import (
    flood,
    forge_handles,
    held_handle,
    release_others,
    send_copies,
    send_foreign_operations,
    send_unsigned_operations,
    try_topics_of_another,
)
from pipelines.demo.secured_verdict import Found, claims_of, leaks, refused_counts
from pipelines.demo.tenant import GROUP, KEY_IDS, Tenant
from pipelines.demo.view import View
from pipelines.process.signals import handled_signals, interrupt_once
from popstream import Consumer, Producer
from popstream.wire.base_errors import PopstreamError
from popstream.wire.reason import Reason

__all__ = ["main", "run_secured_demo"]

TENANTS = ("shop", "bank")
FLOODERS = "flooders"
FLOODER = "flooder-1"
POPS_PER_S = 5
CONSUME_TIMEOUT_S = 180.0
METRICS_TIMEOUT_S = 60.0


def run_secured_demo(*, messages: int = 2_000, var: Path = Path("var")) -> int:
    """Run the demo, print its verdict, and return the exit code: 0 when every check held, 130 after Ctrl-C, else 1.

    Args:
        messages: Messages of each tenant.
        var: Folder with the jars; everything of the demo goes to `secure-demo` below it, which is emptied first.
    """
    folder = var.absolute() / "secure-demo"
    view = View(json_output=False)
    began_s = time.monotonic()
    with handled_signals(interrupt_once), Ownership(folder / "lock"):
        try:
            checks = _run(folder, messages, var.absolute(), view)
        except KeyboardInterrupt as interrupt:
            view.say("interrupted; everything is stopped")
            return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
        except PopstreamError as error:
            print(f"the demo has failed: {error}\nlogs are in {folder}", file=sys.stderr)
            return 1
    failed = [check for check in checks if check.failures]
    for check in checks:
        print(f"  {'FAILED' if check.failures else 'holds'}: {check.name}")
    print(f"  {time.monotonic() - began_s:.0f} s")
    verdict = "failed" if failed else "ok"
    print("\n".join([*failure_lines(failed), verdict_line(verdict, len(checks), failed)]))
    return 1 if failed else 0


def _run(folder: Path, messages: int, var: Path, view: View) -> list[Check]:
    """Run every phase, stop everything, and return the checks."""
    for entry in folder.iterdir():
        if entry.name != "lock":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    with contextlib.ExitStack() as stack:
        view.say("starting a broker with TLS, users and ACLs")
        kafka = stack.enter_context(running(folder / "broker", kafka_jars(var)))
        tenants = [Tenant(name, _made(folder / name), kafka, var=var) for name in TENANTS]
        for tenant in tenants:
            tenant.prepare()
        kafka.grant_only(right for tenant in tenants for right in tenant.rights)
        view.say(f"starting the jobs of {' and '.join(TENANTS)}")
        for tenant in tenants:
            stack.callback(tenant.stop)
            tenant.start()
        for tenant in tenants:
            tenant.wait_until_ready()
        return _use_and_judge(tenants, folder, messages, view)


def _use_and_judge(tenants: list[Tenant], folder: Path, messages: int, view: View) -> list[Check]:
    shop, bank = tenants
    view.say(f"each tenant sends {messages} messages, and consumes them")
    done = {tenant.name: _consume(tenant, messages) for tenant in tenants}
    view.say("each tries the topics of the other")
    tried = {
        f"{tenant.name} in {other.name}": try_topics_of_another(tenant, other)
        for tenant, other in ((shop, bank), (bank, shop))
    }
    view.say("administrators set limits, with one of two keys each")
    limits = ("--max-attempts", "0", "--client-pops-per-s-max", str(POPS_PER_S), "--new-group")
    commands = {
        "set the policy of flooders": shop.administer(
            "group", "policy", FLOODERS, shop.topic, *limits, key_id=KEY_IDS[0]
        ),
        "show it": shop.command("group", "policy", FLOODERS, shop.topic, "--folder", str(shop.job_folder.root)),
        "set the policy of the queues": bank.administer(
            "policy", bank.topic, "--max-attempts", "5", "--new-lanes-per-min-max", "100", key_id=KEY_IDS[1]
        ),
    }
    view.say("somebody forges handles, sends operations that nobody signed, and floods the job with pops")
    with held_handle(bank) as stolen:
        forged = [*forge_handles(shop, stolen.handle), release_others(shop)]
    unsigned, foreign = send_unsigned_operations(shop), send_foreign_operations(shop, bank)
    copied_op_id, late_op_id = send_copies(shop)
    flooded = flood(shop, FLOODERS, FLOODER)
    view.say("waiting for tables, metrics and what the page shows")
    for tenant in tenants:
        tenant.settle()
    metrics = _metrics(shop, refused_counts(len(forged), len(unsigned), len(foreign)))
    page = shop.refusals()
    commands["forget flooders"] = shop.administer("group", "forget", FLOODERS, shop.topic, key_id=KEY_IDS[1])
    shop.settle()
    view.say("deciding both logs again")
    verified = {tenant.name: tenant.verify() for tenant in tenants}
    stopped = {tenant.name: tenant.stop() for tenant in tenants}
    found = Found(
        messages=messages,
        done=done,
        tried=tried,
        commands=commands,
        forged=forged,
        unsigned=unsigned,
        foreign=foreign,
        copied_op_id=copied_op_id,
        late_op_id=late_op_id,
        flooding_client=FLOODER,
        flood=flooded,
        metrics=metrics,
        page=page,
        verified=verified,
        stopped=stopped,
        leaks=[*leaks(tenants, folder)],
    )
    return checks_of(claims_of(tenants, found))


def _consume(tenant: Tenant, count: int) -> int:
    """Send messages, consume them, and return how many were acked."""
    with Producer(**tenant.client_options) as producer:
        for sent in [producer.send(tenant.topic, str(number).encode()) for number in range(count)]:
            sent.result(CONSUME_TIMEOUT_S)
    acked = 0
    deadline_s = time.monotonic() + CONSUME_TIMEOUT_S
    with Consumer(**tenant.client_options, group=GROUP, exit_on_sigterm=False) as consumer:
        while acked < count and time.monotonic() < deadline_s:
            messages = consumer.pop(tenant.topic, None, 500, 60_000, 1_000).messages
            acked += sum(outcome.applied for outcome in consumer.ack(messages)) if messages else 0
    return acked


def _metrics(tenant: Tenant, wanted: Mapping[str, int]) -> dict[str, float]:
    """Return what the metrics show, as soon as that is what is wanted: figures of groups come after seconds."""
    refused, rejected = "popstream_lane_refused_total", "popstream_rejected_total"
    deadline_s = time.monotonic() + METRICS_TIMEOUT_S
    while True:
        shown = {
            "forged handles": tenant.metric(refused, topic=tenant.topic, group=GROUP, reason=Reason.NO_PERMISSION),
            "refused pops": tenant.metric(refused, topic=tenant.topic, group=FLOODERS, reason=Reason.QUOTA_EXCEEDED),
            "unsigned operations": tenant.metric(rejected, reason="NOT_SIGNED"),
            "foreign operations": tenant.metric(rejected, reason="BAD_SIGNATURE"),
        }
        if all(shown[name] >= count for name, count in wanted.items()) or time.monotonic() > deadline_s:
            return shown
        time.sleep(1)


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo with the options of a command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="secure-demo", description=str(__doc__).splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000, help="messages of each tenant")
    parser.add_argument("--var", type=Path, default=Path("var"), help="folder with the jars")
    chosen = parser.parse_args(arguments)
    return run_secured_demo(messages=chosen.messages, var=chosen.var)


if __name__ == "__main__":
    sys.exit(main())
