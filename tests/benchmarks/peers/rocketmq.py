"""Apache RocketMQ: POP consumption with its state in RocksDB (`popConsumerKVServiceEnable`), one broker.

It has its defaults, but for addresses, folders and heaps, those switches, smaller files of the commit log, and the disk
usage from which it refuses messages. Its load sends the requests of its own client, without a proxy between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from connectors.local_servers.loopback import HOST
from tests.benchmarks.peers.contender import Contender, PeerOptions
from tests.benchmarks.peers.java_load import compile_java, java_command
from tests.benchmarks.peers.peer_jars import rocketmq_jars
from tests.benchmarks.peers.peer_process import PeerProcess, free_ports, is_open

__all__ = ["ROCKETMQ"]

BROKER = "peer"
WORKERS = 4
UNACKED_MAX = 2_048
_BROKER_FLAGS = (
    "-Xmx2g",
    "-XX:MaxDirectMemorySize=2g",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
_LOGBACK = '<configuration><root level="WARN"/></configuration>\n'


def _class_path(options: PeerOptions) -> list[Path]:
    return [options.work / "rocketmq-classes", *rocketmq_jars(options.var)]


def _prepare(options: PeerOptions) -> None:
    classes, *jars = _class_path(options)
    compile_java(["Load", "RocketLoad", "NoReplication"], jars, classes)
    # RocketMQ's own way to replace a service: a file with the name of the class.
    services = classes / "META-INF" / "service"
    services.mkdir(parents=True)
    (services / "org.apache.rocketmq.store.ha.HAService").write_text("NoReplication\n")


@contextlib.contextmanager
def _serve(options: PeerOptions, folder: Path) -> Iterator[list[str]]:
    class_path = _class_path(options)
    # The broker also takes the port two below its own.
    name_port, _, _, port = free_ports(4)
    _configure(folder, name_port, port)

    def server(name: str, main: str, flags: tuple[str, ...]) -> PeerProcess:
        command = [*java_command(main, flags, class_path, folder), "-c", str(folder / f"{name}.conf")]
        return PeerProcess(name, command, folder, environment={"ROCKETMQ_HOME": str(folder)})

    with (
        server("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", ("-Xmx256m",)) as names,
        server("broker", "org.apache.rocketmq.broker.BrokerStartup", _BROKER_FLAGS) as broker,
    ):
        names.wait_until(lambda: is_open(name_port))
        broker.wait_until(lambda: is_open(port))
        load = java_command("RocketLoad", ("-Xmx2g",), class_path, folder)
        where = ["--namesrv", f"{HOST}:{name_port}", "--broker", f"{HOST}:{port}", "--broker-name", BROKER]
        yield [*load, *where, "--workers", str(WORKERS), "--unacked-max", str(UNACKED_MAX)]


def _configure(folder: Path, name_port: int, port: int) -> None:
    (folder / "conf").mkdir()
    for name in ("namesrv", "broker"):
        (folder / "conf" / f"rmq.{name}.logback.xml").write_text(_LOGBACK)
    (folder / "namesrv.conf").write_text(f"bindAddress={HOST}\nlistenPort={name_port}\n")
    settings = {
        "brokerName": BROKER,
        "brokerClusterName": "peers",
        "brokerIP1": HOST,
        "bindAddress": HOST,
        "listenPort": port,
        "namesrvAddr": f"{HOST}:{name_port}",
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
        "popConsumerKVServiceInit": "true",
        "popConsumerKVServiceEnable": "true",
        # The default; a pop is refused without it.
        "timerWheelEnable": "true",
        # 128 MiB; by default 1 GiB.
        "mappedFileSizeCommitLog": 1 << 27,
        # By default 75, from which it refuses messages.
        "diskMaxUsedSpaceRatio": 95,
    }
    (folder / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


ROCKETMQ = Contender(
    name="rocketmq",
    label="RocketMQ 5.5 POP",
    forms={
        "loop": "pop of 32 from any queue, an ack request for each message, all answers awaited",
        "bulk": f"{WORKERS} workers pop 32 (its limit) and ack them by one request; at most {UNACKED_MAX:,} unacked",
        "each": f"one worker pops 32; an ack request for each message; at most {UNACKED_MAX:,} unacked",
        "paced": "the same; a pop waits at the broker",
    },
    durability=(
        "a killed broker: nothing (a restart redelivers a few); a power failure: no ack, for pops and acks are synced"
        " before they are answered, but messages of about the last half second, which are in the page cache"
        " (ASYNC_FLUSH, the default)"
    ),
    messages=300_000,
    prepare=_prepare,
    serve=_serve,
)
