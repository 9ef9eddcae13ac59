"""A broker with TLS, users and ACLs, and the files by which its users connect."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from typing import TYPE_CHECKING

from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    UserScramCredentialUpsertion,
)

from connectors.kafka.broker_security import BrokerSecurity
from connectors.kafka.embedded import SHORT_LIVED, EmbeddedKafka
from popstream.kafka_connection import KafkaConnection
from tests.support.certificates import Authority
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

__all__ = ["Right", "SecuredKafka", "rights_in", "running"]

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Right:
    """One operation that a user may do with a resource, as a line of `kafka-acls.sh` grants it."""

    def __init__(self, user: str, operation: str, resource: str, name: str, pattern: str) -> None:
        self.user = user
        self.operation = operation
        self.resource = resource
        self.name = name
        self.pattern = pattern

    def __repr__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}"

    def acl(self) -> Any:
        return ACL(
            principal=f"User:{self.user}",
            host="*",
            operation=ACLOperation[_enum_name(self.operation)],
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=ResourcePattern(
                ResourceType[_enum_name(self.resource)], self.name, ACLResourcePatternType[self.pattern.upper()]
            ),
        )


def rights_in(text: str) -> list[Right]:
    """The rights that the lines `kafka-acls.sh ...` of a text grant."""
    parser = argparse.ArgumentParser()
    for option in ("--bootstrap-server", "--command-config", "--topic", "--transactional-id"):
        parser.add_argument(option)
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--allow-principal", required=True)
    parser.add_argument("--operation", action="append", required=True)
    parser.add_argument("--resource-pattern-type", default="literal")
    rights = []
    for line in text.replace("\\\n", " ").splitlines():
        if not line.startswith("kafka-acls.sh "):
            continue
        given = parser.parse_args(shlex.split(line)[1:])
        resource, name = ("Topic", given.topic) if given.topic else ("TransactionalId", given.transactional_id)
        user = given.allow_principal.removeprefix("User:")
        rights += [Right(user, operation, resource, name, given.resource_pattern_type) for operation in given.operation]
    return rights


class SecuredKafka:
    """A running broker; `folder` holds certificates and the files of users."""

    def __init__(self, broker: EmbeddedKafka, authority: Authority, folder: Path) -> None:
        self.broker = broker
        self.authority = authority
        self.folder = folder

    @property
    def servers(self) -> str:
        return self.broker.bootstrap_servers

    def add_user(self, name: str, password: str, mechanism: str = "SCRAM-SHA-512") -> None:
        """Create a user who may do nothing."""
        with self.admin() as admin:
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, mechanism, password)])

    def grant_only(self, rights: Iterable[Right]) -> None:
        """Replace the rights of all users, and wait until the broker goes by them."""
        wanted = [right.acl() for right in rights]
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
            wait_for(lambda: len(admin.describe_acls(everything)[0]) == len(wanted))

    def wait_until_gone(self, topic: str) -> None:
        with self.admin() as admin:
            wait_for(lambda: topic not in admin.list_topics())

    @contextlib.contextmanager
    def admin(self) -> Iterator[Any]:
        admin = KafkaAdminClient(**self.broker.connection.for_kafka_python())
        try:
            yield admin
        finally:
            admin.close()

    def login(self, name: str, password: str, **lines: str | None) -> KafkaConnection:
        """How a user connects. `lines` are more of its file, with underscores for dots; None leaves one out."""
        found: dict[str, str | None] = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{SCRAM} required username="{name}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.trust_store),
            **{line.replace("_", "."): value for line, value in lines.items()},
        }
        path = self.folder / f"{name}.properties"
        path.write_text("".join(f"{line}={value}\n" for line, value in found.items() if value is not None))
        return KafkaConnection(self.servers, str(path))


@contextlib.contextmanager
def running(
    folder: Path, jars: Sequence[Path], *, settings: Mapping[str, str] | None = None, **options: Any
) -> Iterator[SecuredKafka]:
    """Run a broker with its own settings; `options` are those of `BrokerSecurity`."""
    authority = Authority(folder / "authority")
    security = BrokerSecurity(authority.key_store("broker"), authority.trust_store, "broker", **options)
    with EmbeddedKafka(
        folder / "kafka", jars=jars, security=security, settings=settings, java_options=SHORT_LIVED
    ) as broker:
        yield SecuredKafka(broker, authority, folder)


def _enum_name(text: str) -> str:
    """DESCRIBE_CONFIGS of DescribeConfigs."""
    return "".join(f"_{char}" if char.isupper() else char for char in text).upper().strip("_")
