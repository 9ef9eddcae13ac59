"""Claim: the command that a refused start prints heals, as a shell is given it: the part of the runbook's tests for CI.

Method: as in test_runbook.py, with a job that has decided little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connectors.kafka.topic_admin import create_message_topic
from popstream.kafka_connection import KafkaConnection
from tests.crash.job_site import Site, send, work
from tests.support.left_behind import damage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_a_damaged_state_is_healed_by_the_command_as_it_is_printed(tmp_path: Path) -> None:
    site = Site(tmp_path / "a job")
    with site.up() as servers:
        create_message_topic(KafkaConnection(servers), "orders", 2)
        send(servers, 40)
        work(servers, 20)
        site.popstream("snapshot")
    for table in site.folder.state.glob("*.sst"):
        damage(table, 20)
    refused = site.refusal()
    assert "Corruption" in refused
    site.follow(refused, "restore")
    site.goes_on()
