"""Claim: with the rights that docs/security.md lists, a job, its commands and clients do all their work with a secured
Kafka; and a secret is nowhere but in the file that it was written into.

Method: passwords, client secrets, a passphrase, keys of the job and a token of the API that exist nowhere else, and the
tokens of an endpoint of this test.
While the job works, also through an outage, the arguments of all processes are looked at; afterwards, everything that
job, commands and broker have printed and written.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self, get_args

import psutil
import pyarrow.parquet as pq
import pytest
from kafka import KafkaConsumer, TopicPartition

from connectors.kafka.certificates import Authority
from connectors.kafka.own_topics import Topics
from connectors.kafka.secured_kafka import SecuredKafka, running
from connectors.kafka.topic_admin import create_message_topic
from connectors.local_servers.loopback import free_port
from popstream import Consumer, Producer
from popstream.oauth_properties import MODULE
from popstream.settings import FetchClient
from tests.support.acl_lines import rights_in
from tests.support.processes.job_process import ROOT
from tests.support.processes.up_process import Up, run, run_for, status_of
from tests.support.secured_site import login_by_token
from tests.support.token_server import TokenServer
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

USERS = ("job", "consumer", "producer")
SHARED = {"client_id": "tools", "retries": "3", "ssl_enabled_protocols": "TLSv1.2,TLSv1.3", "ssl_protocol": "TLSv1.3"}
"""What files of other programs have as well."""
MESSAGES = 20
PATIENCE_S = 240.0


class Canary:
    """Secrets, and where they were seen: a text, and the tokens that an endpoint has issued."""

    def __init__(self) -> None:
        self.text = f"canary{secrets.token_hex(12)}"
        self.tokens: list[str] = []
        self.seen_in_arguments: set[str] = set()
        self._ending = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._watching.join()

    def _watch(self) -> None:
        while not self._ending.wait(0.2):
            for process in psutil.process_iter(["cmdline"]):
                arguments = " ".join(process.info["cmdline"] or ())
                if self.is_in(arguments):
                    self.seen_in_arguments.add(arguments)

    def is_in(self, text: str) -> bool:
        """Whether a text has one of them; of a token, the beginning of the signature."""
        signatures = (token.rpartition(".")[2][:40] for token in [*self.tokens])
        return any(secret in text for secret in (self.text, *signatures))

    def files(self, root: Path) -> set[Path]:
        """The files below a folder that have one; of Parquet, what its columns say."""
        return {path for path in root.rglob("*") if path.is_file() and self._is_in_file(path)}

    def _is_in_file(self, path: Path) -> bool:
        if self.is_in(path.read_bytes().decode("latin-1")):
            return True
        return path.suffix == ".parquet" and self.is_in(str(pq.read_table(path).to_pylist()))


@pytest.fixture
def canary() -> Iterator[Canary]:
    with Canary() as made:
        yield made


class Site:
    """A broker, and how its users log in: by passwords, by tokens of an endpoint, by their certificates, or not."""

    def __init__(
        self,
        broker: SecuredKafka,
        canary: Canary,
        endpoint: TokenServer | None = None,
        trust_store: Path | None = None,
        *,
        by_certificate: bool = False,
        by_nothing: bool = False,
    ) -> None:
        self.broker = broker
        self._canary = canary
        self._endpoint = endpoint
        self._trust_store = trust_store
        self._by_certificate = by_certificate
        self.by_nothing = by_nothing

    @property
    def servers(self) -> str:
        return self.broker.servers

    def file_of(self, user: str) -> str:
        """The file of a user, with all that is secret."""
        plain: dict[str, str | None] = {"security_protocol": "SSL", "sasl_mechanism": None, "sasl_jaas_config": None}
        if self.by_nothing:
            return self.broker.login(user, "", **SHARED, **plain).config_file
        secret = f"{self._canary.text} of {user}"
        store = self.broker.authority.key_store(user, password=self._canary.text, as_pkcs12=True)
        lines: dict[str, str | None] = {
            "ssl_keystore_location": str(store),
            "ssl_keystore_password": self._canary.text,
            **SHARED,
        }
        if self._by_certificate:
            return self.broker.login(user, "", **lines, **plain).config_file
        if self._endpoint is None:
            return self.broker.login(user, secret, **lines).config_file
        trust = f'ssl.truststore.type="PEM" ssl.truststore.location="{self._trust_store}"'
        jaas = f'{MODULE} required clientId="{user}" clientSecret="{secret}" {trust};'
        tokens = {"sasl_oauthbearer_token_endpoint_url": self._endpoint.url, "sasl_jaas_config": jaas}
        return login_by_token(self.broker, user, **lines, **tokens).config_file


MORE = ("OAUTHBEARER", "mTLS", "TLS")


@pytest.fixture(params=["SCRAM", *(pytest.param(name, marks=pytest.mark.long) for name in MORE)])
def secured(
    request: pytest.FixtureRequest, tmp_path: Path, kafka_jar_files: list[Path], canary: Canary
) -> Iterator[Site]:
    folder = tmp_path / "broker"
    with contextlib.ExitStack() as opened:
        if request.param == "SCRAM":
            broker = opened.enter_context(running(folder, kafka_jar_files))
            for user in USERS:
                broker.add_user(user, f"{canary.text} of {user}")
            made = Site(broker, canary)
        elif request.param == "mTLS":
            broker = opened.enter_context(running(folder, kafka_jar_files, protocol="SSL"))
            made = Site(broker, canary, by_certificate=True)
        elif request.param == "TLS":
            broker = opened.enter_context(running(folder, kafka_jar_files, protocol="SSL", has_anonymous=True))
            made = Site(broker, canary, by_nothing=True)
        else:
            authority = Authority(tmp_path / "login")
            clients = {user: f"{canary.text} of {user}" for user in USERS}
            endpoint = TokenServer(clients, authority.key_store("endpoint"), lifetime_s=60)
            canary.tokens = opened.enter_context(endpoint).issued
            jwks = endpoint.write_keys(tmp_path / "jwks.json")
            audience = {"sasl.oauthbearer.expected.audience": "kafka"}
            broker = opened.enter_context(running(folder, kafka_jar_files, settings=audience, jwks=jwks))
            made = Site(broker, canary, endpoint, authority.trust_store)
        create_message_topic(broker.broker.connection, "orders", 1)
        rights = rights_in((ROOT / "docs" / "security.md").read_text(encoding="utf-8"))
        broker.grant_only(right._replace(user="ANONYMOUS") if made.by_nothing else right for right in rights)
        yield made


def send(site: Site) -> None:
    with Producer(site.servers, kafka_config=site.file_of("producer")) as producer:
        for sent in [producer.send("orders", str(number).encode()) for number in range(MESSAGES)]:
            sent.result(PATIENCE_S)


def consume(site: Site, fetch_client: FetchClient) -> None:
    """All but one are acked; that one becomes a dead letter."""
    file = site.file_of("consumer")
    with Consumer(
        site.servers,
        group=fetch_client,
        kafka_config=file,
        fetch_client=fetch_client,
        answer_timeout_ms=int(PATIENCE_S * 1000),
        exit_on_sigterm=False,
    ) as consumer:
        done = 0

        def take() -> bool:
            nonlocal done
            messages = consumer.pop("orders", 0, MESSAGES, 60_000, 1_000).messages
            if messages and not done:
                consumer.reject(messages[:1])
            consumer.ack(messages[0 if done else 1 :])
            done += len(messages)
            return done >= MESSAGES

        wait_for(take, patience_s=PATIENCE_S)


def count_dead_letters(broker: SecuredKafka) -> int:
    topic = Topics.of("popstream").dead_letters
    with contextlib.closing(KafkaConsumer(**broker.broker.connection.for_kafka_python())) as consumer:
        places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        return sum(consumer.end_offsets(places).values())


def test_a_secured_job_works_and_keeps_its_secrets(secured: Site, canary: Canary, tmp_path: Path) -> None:
    file = secured.file_of("job")
    kafka = ["--bootstrap-servers", secured.servers, "--kafka-config", file]
    said: list[str] = []
    token_file, port = tmp_path / "token", free_port()
    token_file.write_text(f"{canary.text}-of-the-API\n")
    token, api = ["--api-token-file", str(token_file)], f"http://127.0.0.1:{port}"
    keys_file, admin_file = tmp_path / "settings.toml", tmp_path / "admin.key"
    keys = {name: f"{canary.text} of the {name}" for name in ("handle_keys", "admin_keys")}
    keys_file.write_text("".join(f'[{name}]\n2030 = "{key}"\n' for name, key in keys.items()))
    admin_file.write_text(f"2030:{keys['admin_keys']}\n")
    settings = ["--settings", str(keys_file)]
    wrong_token = urllib.request.Request(  # noqa: S310 - it is HTTP
        f"{api}/api/v1/status", headers={"Authorization": f"Bearer {canary.text}"}
    )
    options = [
        *kafka,
        *token,
        *settings,
        "--api-port",
        str(port),
        "--message-topics",
        "orders",
        "--flush-interval",
        "500ms",
    ]
    up = Up(tmp_path / "job", *options, "--log-level", "DEBUG")
    try:
        up.wait_for("ready after")
        send(secured)
        for fetch_client in get_args(FetchClient):
            consume(secured, fetch_client)
        secured.broker.broker.restart()
        wait_for(lambda: not status_of(up)["not_ready_reasons"], patience_s=PATIENCE_S)
        tick = '{"type":"tick","topic":"orders","queue_id":0}'
        for command in (
            ["status", "--json"],
            ["queue", "orders", "--json"],
            ["group", "list"],
            ["ops", tick],
            ["policy", "orders", "--max-attempts", "5", "--admin-key-file", str(admin_file)],
            ["snapshot"],
            ["verify", *settings, "--var", str(ROOT / "var")],
            ["query", "--var", str(ROOT / "var"), "select * from operations"],
            ["check"],
            ["report", "--since", "1h", "--out", str(tmp_path / "report.html")],
            *(["status", "--api", api, *token, *form] for form in ([], ["--json"])),
        ):
            done = run(up, *command)
            assert done.returncode == 0, (command, done.stderr)
            said += [done.stdout, done.stderr]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(wrong_token, timeout=PATIENCE_S)  # noqa: S310
        assert count_dead_letters(secured.broker) == len(get_args(FetchClient))
        assert str(secured.servers) in (up.folder / "job.json").read_text()
        assert file in (up.folder / "job.json").read_text()
        assert (up.folder / "job.log").read_text().count("kafka_settings_ignored") == 1
        code, left = up.stop(signal.SIGTERM)
        assert (code, left) == (0, [])
        restored = run_for(up.folder, "restore", *kafka, *settings, "--var", str(ROOT / "var"))
        assert restored.returncode == 0, restored.stderr
        said += [restored.stdout, restored.stderr, *up.lines]
    finally:
        up.end()
    assert not canary.is_in("".join(said))
    assert canary.seen_in_arguments == set()
    users = set() if secured.by_nothing else {Path(secured.broker.folder, f"{user}.properties") for user in USERS}
    assert canary.files(tmp_path) == {*users, token_file, keys_file, admin_file}
