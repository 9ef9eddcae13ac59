"""Claim: a row of the runbook names the commands of its messages, and a message those of its row.

Method: texts are read from the source, with what constants and functions add to them; values, and options that choose
the job, are left out. A row of whose messages none has a command in the source, as it is added elsewhere ("...: stop
the job and run ..."), may have any such command. Jobs on a cluster have a runbook of their own, whose symptoms quote
what is said: each quotation must be found in the source.
"""

from __future__ import annotations

import itertools

import pytest

from tests.support.printed_messages import Message, printed_messages, source_texts
from tests.support.runbook import Row, commands_in, quoted_for_clusters, row_of, rows, text_pattern

MESSAGES = [message for message in printed_messages() if commands_in(message.text) and "cluster/" not in message.where]
ADDED = ("...", ":")
"""Begin a text that is added to the message of another error."""
SAID_BY_SPARK = {"Some data may have been lost", "failed 8 times"}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.where)
def test_what_a_message_names_is_in_its_row(message: Message) -> None:
    row = row_of(message.text)
    if row is not None:
        assert commands_in(message.text) <= commands_in(row.repair), message
    elif message.is_of_error and not message.text.startswith(ADDED):
        recovers = {command for command in commands_in(message.text) if command.startswith(("restore", "verify"))}
        assert not recovers, f"the runbook has no row for: {message}"


@pytest.mark.parametrize("row", [row for row in rows() if commands_in(row.repair)], ids=lambda row: row.repair[:60])
def test_what_a_row_names_is_in_its_messages(row: Row) -> None:
    own = [message for message in MESSAGES if row_of(message.text) is row]
    added = [message for message in MESSAGES if message.text.startswith(ADDED) and row_of(message.text) is None]
    printed = itertools.chain.from_iterable(commands_in(message.text) for message in own or added)
    assert commands_in(row.repair) <= set(printed), [message.text for message in own]


@pytest.mark.parametrize("quoted", quoted_for_clusters())
def test_what_the_runbook_of_clusters_quotes_is_said(quoted: str) -> None:
    wanted = text_pattern(quoted)
    assert any(map(wanted.search, source_texts())) != (quoted in SAID_BY_SPARK)
