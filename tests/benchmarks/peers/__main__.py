"""`make bench-peers`: measure popstream beside other leasing queues, each doing the same work on the same cores.

contender       what it is
--------------  -------------------------------------------------------------------------------------------------------
popstream       `popstream up` with an embedded Kafka, loads by `popstream perf`
rocketmq        Apache RocketMQ 5.5 POP, its state in RocksDB, by the client's asynchronous requests (Java)
share_groups    Apache Kafka 4.2 share groups (KIP-932) by the Java client
share_consumer  the same by confluent-kafka's share consumer, in Python

workload  what each message goes through (100 bytes, 8 queues, a handler that does nothing)
--------  -------------------------------------------------------------------------------------------------------------
each      popped or polled, and acked alone: an ack operation a message (popstream), an ack request a message
          (RocketMQ), an acknowledge call a message and a commit a poll (share groups)
together  what one pop brought is acked together: sets of at most 1,000 (popstream), a batch ack of at most 32
          (RocketMQ), the implicit acknowledgement of a poll of about 500 (share groups)
latency   one at a time: `delivery` from send to delivery, `ack` from ack to its answer, p50 and p99

Each round gives each contender a turn: its server is started on 127.0.0.1, loaded and stopped. The report has the
median, the least and the greatest of the rounds and the load averages around each turn; it is written to
var/bench/peers/<time>.json and <time>.html after each turn. Exit code 1: a contender failed, as the report says.

The contenders do not promise the same. popstream and RocketMQ sync each decision to disk; a share group's state is
records in the page cache. All leave messages to the page cache. popstream and the loads in Python pay for Python. The
module of a contender says how it is set up. Numbers of a busy machine differ by a factor of two and more.

RocketMQ's jars are fetched into var/peers at the first run. The loads in Java need a JDK and not only a JRE.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.peers.contender import Contender, PeerError, PeerOptions
from tests.benchmarks.peers.java_load import javac
from tests.benchmarks.peers.peers_report import failures, table
from tests.benchmarks.peers.popstream_load import POPSTREAM_ITSELF
from tests.benchmarks.peers.rocketmq import ROCKETMQ
from tests.benchmarks.peers.rounds import run_rounds
from tests.benchmarks.peers.share_consumer import SHARE_CONSUMER
from tests.benchmarks.peers.share_groups import SHARE_GROUPS

CONTENDERS = {each.name: each for each in (POPSTREAM_ITSELF, ROCKETMQ, SHARE_GROUPS, SHARE_CONSUMER)}
EXIT_TERMINATED = 143


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("contenders", nargs="*", metavar="CONTENDER", help="measure only these")
    made.add_argument("--rounds", type=int, default=3, help="turns of each contender (default: %(default)s)")
    made.add_argument("--window", type=float, default=5.0, help="measured seconds (default: %(default)s)")
    made.add_argument("--warm", type=float, default=2.0, help="seconds before them (default: %(default)s)")
    made.add_argument("--messages", type=int, default=0, help="size of each backlog; 0: as each contender needs")
    made.add_argument("--limit", type=float, default=900.0, help="seconds until a turn has failed")
    made.add_argument("--var", type=Path, default=Path("var"), help="folder with the jars, and for results")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m tests.benchmarks.peers`; return its exit code."""
    line = parser()
    chosen = line.parse_args(arguments)
    if unknown := set(chosen.contenders) - CONTENDERS.keys():
        line.error(f"no such contender: {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    contenders: list[Contender] = [CONTENDERS[name] for name in dict.fromkeys(chosen.contenders or CONTENDERS)]
    try:
        if any(each.needs_jdk for each in contenders):
            javac()
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    # So that servers are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    var = chosen.var.absolute()
    (var / "peers").mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="work-", dir=var / "peers"))
    try:
        file, report = run_rounds(
            contenders,
            PeerOptions(
                var=var,
                work=work,
                rounds=chosen.rounds,
                window_s=chosen.window,
                warm_s=chosen.warm,
                messages=chosen.messages,
                limit_s=chosen.limit,
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
