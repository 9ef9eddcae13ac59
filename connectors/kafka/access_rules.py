"""The rules of Kafka's ACLs that a tenant of popstream needs: a prefix of its own, and nothing beside it.

docs/tenants.md has the same as lines of `kafka-acls.sh`; a test compares them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType

__all__ = ["Right", "rights_of_tenant"]


class Right(NamedTuple):
    """One operation that a user may do with a resource, as a line of `kafka-acls.sh` grants it.

    Attributes:
        user: The user.
        operation: Such as `Read` or `DescribeConfigs`.
        resource: `Topic` or `TransactionalId`.
        name: Its name, or what its name begins with.
        pattern: `literal` or `prefixed`.
    """

    user: str
    operation: str
    resource: str
    name: str
    pattern: str = "literal"

    def __str__(self) -> str:
        """Return it without the user."""
        return f"{self.operation} on {self.resource} {self.name}"

    def acl(self) -> Any:  # noqa: ANN401 - kafka-python has no types
        """Return the rule for kafka-python."""
        return ACL(
            principal=f"User:{self.user}",
            host="*",
            operation=ACLOperation[_enum_name(self.operation)],
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=ResourcePattern(
                ResourceType[_enum_name(self.resource)], self.name, ACLResourcePatternType[self.pattern.upper()]
            ),
        )


def rights_of_tenant(prefix: str, topic: str, *, job: str, app: str) -> Iterator[Right]:
    """Yield the rights of a tenant whose topics, its message topic too, begin with `<prefix>.`.

    Args:
        prefix: Prefix of the tenant's job.
        topic: Its message topic.
        job: The user of its job.
        app: The user of its consumers and producers.
    """
    for operation in ("Create", "Read", "Write", "DescribeConfigs"):
        yield Right(job, operation, "Topic", f"{prefix}.", "prefixed")
    yield Right(job, "Write", "TransactionalId", f"{prefix}.", "prefixed")
    yield Right(app, "Write", "Topic", f"{prefix}.ops")
    for own in ("results", "notifications", "queue_types"):
        yield Right(app, "Read", "Topic", f"{prefix}.{own}")
    for operation in ("Read", "Write"):
        yield Right(app, operation, "Topic", topic)


def _enum_name(text: str) -> str:
    """DESCRIBE_CONFIGS of DescribeConfigs."""
    return "".join(f"_{char}" if char.isupper() else char for char in text).upper().strip("_")
