"""Apache RocketMQ: POP consumption with its state in RocksDB (`popConsumerKVServiceEnable`), one broker.

Its defaults, but for addresses, folders and heaps, those switches, smaller files of the commit log, and the disk usage
from which it refuses messages. It syncs the state of each pop and each ack to disk, and leaves messages to the page
cache. All its ports are on 127.0.0.1 but one, that of replication, for which it has no setting.
"""

from __future__ import annotations

import os
from pathlib import Path

from connectors.jars.resolve import java
from connectors.kafka.loopback import HOST
from tests.benchmarks.peers.contender import Contender, PeerOptions, Result, load_arguments, run_load
from tests.benchmarks.peers.java_load import compiled_load
from tests.benchmarks.peers.peer_jars import rocketmq_jars
from tests.benchmarks.peers.peer_server import PeerServer, free_ports

__all__ = ["ROCKETMQ"]

MESSAGES = 300_000
BROKER = "peer"
_BROKER_FLAGS = (
    "-Xmx2g",
    "-XX:MaxDirectMemorySize=2g",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


def _measure(options: PeerOptions, folder: Path, results: dict[str, Result]) -> None:
    jars = rocketmq_jars(options.var)
    load = compiled_load("RocketLoad", jars, options.work / "rocketmq-classes", folder)
    # The broker also takes the port two below its own, and the one above it.
    name_port, _, _, port, _ = free_ports(5)
    _configure(folder, name_port, port)
    class_path = os.pathsep.join(map(str, jars))
    common = [f"-Duser.home={folder}", f"-Djava.io.tmpdir={folder}", "-XX:-UsePerfData", "-cp", class_path]
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    name_command = [java(), "-Xmx256m", *common, main, "-c", str(folder / "namesrv.conf")]
    main = "org.apache.rocketmq.broker.BrokerStartup"
    broker_command = [java(), *_BROKER_FLAGS, *common, main, "-c", str(folder / "broker.conf")]
    home = {"ROCKETMQ_HOME": str(folder)}
    with (
        PeerServer("namesrv", name_command, folder, port=name_port, environment=home),
        PeerServer("broker", broker_command, folder, port=port, environment=home),
    ):
        where = ["--namesrv", f"{HOST}:{name_port}", "--broker", f"{HOST}:{port}", "--broker-name", BROKER]
        run_load([*load, *where, *load_arguments(options, MESSAGES)], folder, options.limit_s, results)


def _configure(folder: Path, name_port: int, port: int) -> None:
    (folder / "conf").mkdir()
    for name in ("namesrv", "broker"):
        file = folder / "conf" / f"rmq.{name}.logback.xml"
        file.write_text('<configuration><root level="WARN"/></configuration>\n')
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


ROCKETMQ = Contender(name="rocketmq", label="RocketMQ 5.5 POP", measure=_measure, needs_jdk=True)
