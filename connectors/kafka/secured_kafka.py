"""An embedded broker with TLS, users and ACLs, and the files by which its users connect: for trials and tests."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePatternFilter,
    ResourceType,
    UserScramCredentialUpsertion,
)

from connectors.kafka.broker_security import SCRAM, BrokerSecurity
from connectors.kafka.certificates import Authority
from connectors.kafka.embedded import SHORT_LIVED_JVM, EmbeddedKafka
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from connectors.kafka.access_rules import Right

__all__ = ["SecuredKafka", "running"]

PATIENCE_S = 60.0
POLL_S = 0.05


class SecuredKafka:
    """A running broker; `folder` holds certificates and the files of users."""

    def __init__(self, broker: EmbeddedKafka, authority: Authority, folder: Path) -> None:
        self.broker = broker
        self.authority = authority
        self.folder = folder

    @property
    def servers(self) -> str:
        """`host:port` for clients."""
        return self.broker.bootstrap_servers

    def add_user(self, name: str, password: str, mechanism: str = "SCRAM-SHA-512") -> None:
        """Create a user who may do nothing."""
        with self.admin() as admin:
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, mechanism, password)])

    def grant_only(self, rights: Iterable[Right]) -> None:
        """Replace the rights of all users, and wait until the broker goes by them.

        Raises:
            Unavailable: It does not within a minute.
        """
        wanted = [right.acl() for right in dict.fromkeys(rights)]
        everything = ACLFilter(
            None,
            None,
            ACLOperation.ANY,
            ACLPermissionType.ANY,
            ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
        )
        with self.admin() as admin:
            admin.delete_acls([everything])
            admin.create_acls(wanted)
            self._wait(lambda: len(admin.describe_acls(everything)[0]) == len(wanted))

    @contextlib.contextmanager
    def admin(self) -> Iterator[Any]:
        """Open an admin client of the user `admin`, who may do everything."""
        admin = KafkaAdminClient(**self.broker.connection.for_kafka_python())
        try:
            yield admin
        finally:
            admin.close()

    def login(self, name: str, password: str, **lines: str | None) -> KafkaConnection:
        """Write the file by which a user connects, and return the connection.

        Args:
            name: The user.
            password: The password.
            **lines: More lines of its file, with underscores for dots; None leaves one out.
        """
        found: dict[str, str | None] = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{SCRAM} required username="{name}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.trust_store),
            **{line.replace("_", "."): value for line, value in lines.items()},
        }
        path = self.folder / f"{name}.properties"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.writelines(f"{line}={value}\n" for line, value in found.items() if value is not None)
        return KafkaConnection(self.servers, str(path))

    def _wait(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline_s:
                message = f"the broker did not do within {PATIENCE_S:.0f} s what an administrator asked for"
                raise Unavailable(message, subject=self.servers)
            time.sleep(POLL_S)


@contextlib.contextmanager
def running(
    folder: Path,
    jars: Sequence[Path] | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    java_options: Sequence[str] = SHORT_LIVED_JVM,
    **options: Any,  # noqa: ANN401 - those of BrokerSecurity
) -> Iterator[SecuredKafka]:
    """Run a broker with its own settings.

    Args:
        folder: Folder of the broker, of certificates and of the files of users.
        jars: Kafka's jars, as of `EmbeddedKafka`.
        settings: Settings of the broker that override the defaults.
        java_options: Flags of the broker's JVM.
        **options: Those of `BrokerSecurity`.

    Raises:
        Unavailable: It does not start.
        Invalid: Java or a jar is missing.
    """
    authority = Authority(folder / "authority")
    security = BrokerSecurity(authority.key_store("broker"), authority.trust_store, "broker", **options)
    with EmbeddedKafka(
        folder / "kafka", jars=jars, security=security, settings=settings, java_options=java_options
    ) as broker:
        yield SecuredKafka(broker, authority, folder)
