"""`make bench-peers`: measure popstream beside other leasing queues; each does the same work on the same machine.

contender            what it is
-------------------  -------------------------------------------------------------------------------------------------
popstream            `popstream up` and the package's own client, in Python
rocketmq             Apache RocketMQ 5.5 POP with its state in RocksDB, by its own client, in Java
share_groups_java    Apache Kafka 4.2 share groups (KIP-932) by Kafka's own client, in Java
share_groups_python  the same by confluent-kafka, in Python

workload  what is done (messages of 100 bytes in 8 queues; a handler only notes which message came)
--------  ------------------------------------------------------------------------------------------------------------
loop      one worker takes up to 32 messages of a backlog, acks each, and waits until all of these acks are confirmed
          before it takes more (confluent-kafka cannot limit a poll to 32: the report has what it brought)
each      a handler gets one message after the other of a backlog, and acks it; more is taken before these acks are
          confirmed, unless the client can do nothing else
bulk      a backlog is taken and acked by each client in its own best form, which the report states
paced     500 messages a second are sent while they are taken, and acked one by one: p50 and p99 of the milliseconds
          from the time at which a message was due to be sent until it is received, and until its ack is confirmed

Each round gives each contender a turn, on the same two cores: its servers are started on 127.0.0.1, loaded and
stopped. A workload is measured from the end of its warm-up until its backlog is drained or its window ends. Every
message is accounted for: acked, delivered again (duplicates), delivered and not acked, missing, or left when the time
was up. A workload with unacked or missing messages has failed. CPU is that of all processes of a contender: client,
broker, job, JVMs.

The report is printed, and written to var/bench/peers/<time>.json and <time>.html after each turn: median, min and max
of the rounds, each round, the load average at the start of each turn, and what a crash would lose. Exit code 1: some
contender failed or was not measured, as the report says. Numbers of a busy machine differ by a factor of two and more.

RocketMQ's jars are fetched into var/peers at the first run. The loads in Java need a JDK and not only a JRE.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.peers.contender import WORKLOADS, PeerOptions
from tests.benchmarks.peers.popstream_job import POPSTREAM_JOB
from tests.benchmarks.peers.report import failures, table
from tests.benchmarks.peers.rocketmq import ROCKETMQ
from tests.benchmarks.peers.rounds import run_rounds
from tests.benchmarks.peers.share_groups import SHARE_GROUPS_JAVA, SHARE_GROUPS_PYTHON

CONTENDERS = {each.name: each for each in (POPSTREAM_JOB, ROCKETMQ, SHARE_GROUPS_JAVA, SHARE_GROUPS_PYTHON)}
EXIT_TERMINATED = 143
CORES = 2
"""All contenders share them, on machines with more as well."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("contenders", nargs="*", metavar="CONTENDER", help="measure only these")
    made.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS, help="run only these")
    made.add_argument("--rounds", type=int, default=3, help="turns of each contender (default: %(default)s)")
    made.add_argument(
        "--messages",
        type=int,
        default=0,
        help="size of each backlog, and bound of paced; 0: by the speed of each contender (default: %(default)s)",
    )
    made.add_argument(
        "--window", type=float, default=10.0, help="seconds of each workload with a backlog (default: %(default)s)"
    )
    made.add_argument("--paced", type=float, default=20.0, help="seconds of paced (default: %(default)s)")
    made.add_argument("--limit", type=float, default=300.0, help="seconds until a turn has failed")
    made.add_argument("--var", type=Path, default=Path("var"), help="folder with the jars, and for results")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m tests.benchmarks.peers`; return its exit code."""
    line = parser()
    chosen = line.parse_args(arguments)
    if unknown := set(chosen.contenders) - CONTENDERS.keys():
        line.error(f"no such contender: {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    # So that servers are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # of all that it starts, too
    var = chosen.var.absolute()
    (var / "peers").mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="work-", dir=var / "peers"))
    try:
        file, report = run_rounds(
            [CONTENDERS[name] for name in dict.fromkeys(chosen.contenders or CONTENDERS)],
            PeerOptions(
                var=var,
                work=work,
                workloads=tuple(workload for workload in WORKLOADS if workload in chosen.workloads),
                rounds=chosen.rounds,
                messages=chosen.messages,
                window_s=chosen.window,
                paced_s=chosen.paced,
                turn_limit_s=chosen.limit,
            ),
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(table(report))
    print(file)
    print(file.with_suffix(".html"))
    return 1 if failures(report) else 0


if __name__ == "__main__":
    sys.exit(main())
