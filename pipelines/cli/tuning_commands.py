"""The commands about the settings of groups: `what-if` and `recommend`."""

# ruff: noqa: PLC0415 - so that `popstream --help` takes a moment and not ten seconds
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import DEFAULT_VAR, JsonOutput, RecoveryOptions, TableOptions, Var, takes_options
from pipelines.cli.time_options import duration_ms, durations_ms, since_ms
from popstream.wire.limits import ATTEMPTS_MAX, IN_FLIGHT_MAX, PARKED_MAX, QUOTA_MAX

__all__ = ["recommend", "what_if"]

Groups = Annotated[list[str] | None, typer.Argument(help="consumer groups; by default all", metavar="GROUP...")]


@takes_options(job=RecoveryOptions)
def what_if(
    groups: Groups = None,
    invisible_time: Annotated[
        str | None, typer.Option(metavar="DURATION", help="length of each lease, and of each renewal")
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(help="deliveries of a message before it is a dead letter; 0: no limit", max=ATTEMPTS_MAX, min=0),
    ] = None,
    back_off: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION,...", help="time after the first, second, ... failed delivery, of which the last repeats"
        ),
    ] = None,
    order: Annotated[
        bool | None, typer.Option("--order/--no-order", help="treat every pop as orderly, or none")
    ] = None,
    in_flight_max: Annotated[
        int | None, typer.Option(help="leased messages of a queue; 0: no limit", min=0, max=IN_FLIGHT_MAX)
    ] = None,
    parked_max: Annotated[int | None, typer.Option(help="pops that wait at a queue", min=0, max=PARKED_MAX)] = None,
    pops_per_s_max: Annotated[
        int | None, typer.Option(help="pops of a queue in a second; 0: no limit", min=0, max=QUOTA_MAX)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME|DURATION",
            help="start of the range: ISO 8601 (UTC if it names no zone), ms since 1970, or as in 2h; by default the"
            " start of the log, or the oldest snapshot from which it is complete",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|DURATION", help="end of the range, in the same form as --from; by default the end of the log"
        ),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="folder for what is decided again", show_default="that for temporary files"),
    ] = None,
    var: Var = DEFAULT_VAR,
    *,
    job: RecoveryOptions,
    as_json: JsonOutput = False,
) -> None:
    """Replay a range of the ops log with other settings, and show what would have changed.

    popstream what-if billing --invisible-time 60s --from 2h: how many fewer
    redeliveries, dead letters and lost acks there would have been, and where
    the group would be. Settings not given stay as they were. The assumptions
    are printed, too. Works while the job is running, and changes nothing.
    """
    from pipelines.cli.tuning.replay_log import run_what_if
    from pipelines.tuning.other_settings import OtherSettings

    other = OtherSettings(
        groups=groups or [],
        invisible_time_ms=None if invisible_time is None else duration_ms(invisible_time),
        order=order,
        max_attempts=max_attempts,
        back_off_ms=None if back_off is None else durations_ms(back_off),
        parked_max=parked_max,
        in_flight_max=in_flight_max,
        pops_per_s_max=pops_per_s_max,
    )
    run_what_if(
        job.load(),
        other,
        var=var,
        from_ms=None if since is None else since_ms(since),
        until_ms=None if until is None else since_ms(until),
        work=work,
        as_json=as_json,
    )


@takes_options(job=TableOptions)
def recommend(
    groups: Groups = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|DURATION",
            help="only leases since then: ISO 8601 (UTC if it names no zone), ms since 1970, or as in 2h; by default"
            " all that the tables have",
        ),
    ] = None,
    sql: Annotated[bool, typer.Option("--sql", help="print the queries, too")] = False,  # noqa: FBT002 - a flag
    *,
    job: TableOptions,
    as_json: JsonOutput = False,
) -> None:
    """Recommend the invisible time, attempts and prefetch of groups, by how long their handlers take.

    Each with its evidence: figures, the number of acks or messages behind them,
    and with --sql or --json the query that gives them. Where there is too
    little, it says so and recommends nothing. Works while the job is running.
    """
    from pipelines.cli.tuning.recommend_settings import run_recommend

    from_ms = None if since is None else since_ms(since)
    with job.opened() as tables:
        run_recommend(tables, groups or [], from_ms=from_ms, with_sql=sql, as_json=as_json)
