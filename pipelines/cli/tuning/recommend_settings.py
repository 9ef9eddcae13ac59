"""`popstream recommend`: settings that fit the handlers of a group."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from connectors.delta.duckdb_errors import query_errors
from connectors.delta.duckdb_tables import DuckDbTables
from connectors.delta.snapshot import open_snapshot
from connectors.delta.tables import table_path
from pipelines.cli.control_characters import escape_controls
from pipelines.process.signals import interrupted_by_signals
from pipelines.times import duration_text
from pipelines.tuning.lease_figures import LANES_SQL, Figures, figures_of
from pipelines.tuning.recommendation import Recommendation, recommendations
from popstream.wire.base_errors import Invalid

__all__ = ["run_recommend"]

_TABLES = ("operations", "deliveries")
_NAMES = {"invisible_time_ms": "invisible time", "max_attempts": "max attempts", "prefetch": "prefetch"}
_SAMPLES = {"invisible_time_ms": "acks", "max_attempts": "messages that failed", "prefetch": "messages of this client"}


class GroupAdvice(msgspec.Struct, frozen=True):
    """The recommendations for a group in a topic, and the figures behind them."""

    group: str
    topic: str
    recommendations: list[Recommendation]
    figures: Figures


def run_recommend(
    delta_root: Path, groups: Sequence[str], *, from_ms: int | None, with_sql: bool, as_json: bool
) -> None:
    """Print recommendations for groups, or for all.

    Raises:
        Invalid: There are no tables, or a group has never received a message.
        Corrupt: A file of a table is damaged or missing.
    """
    paths = [table_path(delta_root, name) for name in _TABLES]
    if not all((path / "_delta_log").is_dir() for path in paths):
        message = f"there are no tables in {delta_root}: has the job run here?"
        raise Invalid(message, subject=str(delta_root))
    snapshots = [open_snapshot(path) for path in paths]
    with query_errors(paths), DuckDbTables(snapshots) as tables, interrupted_by_signals(tables.interrupt):
        found = [
            GroupAdvice(group, topic, list(recommendations(figures)), figures)
            for group, topic in _lanes(tables, groups)
            for figures in [figures_of(tables.rows, group, topic, from_ms)]
        ]
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n\n".join("\n".join(map(escape_controls, _lines(advice, with_sql=with_sql))) for advice in found))


def _lanes(tables: DuckDbTables, groups: Sequence[str]) -> list[tuple[str, str]]:
    known = [(str(group), str(topic)) for group, topic in tables.rows(LANES_SQL)]
    names = ", ".join(sorted({group for group, _ in known})) or "none"
    if unknown := [group for group in groups if all(group != each for each, _ in known)]:
        message = f"the group {unknown[0]} has never received a message; groups that have: {names}"
        raise Invalid(message, subject=unknown[0])
    if not known:
        message = "no group has ever received a message"
        raise Invalid(message)
    return [(group, topic) for group, topic in known if not groups or group in groups]


def _lines(advice: GroupAdvice, *, with_sql: bool) -> Iterator[str]:
    yield f"{advice.group} in {advice.topic}"
    for each in advice.recommendations:
        yield f"  {_NAMES[each.setting]}: {_proposed(each)}"
        yield f"    {each.why}"
        yield f"    from {each.sample:,} {_SAMPLES[each.setting]}"
        if with_sql:
            yield f"    popstream query {shlex.quote(' '.join(each.sql.split()))}"


def _proposed(each: Recommendation) -> str:
    now = "" if each.now is None else f", now {_value(each, each.now)}"
    if each.proposed is None:
        return f"no recommendation{now}"
    if each.proposed == each.now:
        return f"keep {_value(each, each.now)}"
    return f"{_value(each, each.proposed)}{now}"


def _value(each: Recommendation, value: int) -> str:
    return duration_text(value) if each.setting == "invisible_time_ms" else f"{value:,}"
