"""The rights that documents grant by lines of `kafka-acls.sh`."""

from __future__ import annotations

import argparse
import shlex

from connectors.kafka.access_rules import Right

__all__ = ["rights_in"]


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
