"""The commands that run a job: `up` and `demo`."""

# ruff: noqa: PLC0415 - so that `popstream --help` takes a moment and not ten seconds
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import (
    DEFAULT_VAR,
    ApiTokenFile,
    Folder,
    JobPrefix,
    JobServers,
    JsonOutput,
    KafkaConfig,
    SettingsFile,
    Tables,
    Var,
    load_settings,
    meaning,
)
from pipelines.cli.time_options import Duration, duration_option
from pipelines.printed_commands import remember_job, remembered
from popstream.kafka_connection import chosen_connection

__all__ = ["demo", "up"]


def up(
    folder: Folder = None,
    tables: Tables = None,
    bootstrap_servers: JobServers = None,
    kafka_config: KafkaConfig = None,
    prefix: JobPrefix = None,
    ops_partitions: Annotated[int | None, typer.Option(help=meaning("ops_partitions"))] = None,
    results_partitions: Annotated[int | None, typer.Option(help=meaning("results_partitions"))] = None,
    message_topics: Annotated[
        str | None, typer.Option(help=meaning("message_topics"), metavar="NAME,...", show_default=False)
    ] = None,
    records_per_micro_batch_max: Annotated[
        int | None, typer.Option(help=meaning("records_per_micro_batch_max"))
    ] = None,
    flush_interval: Annotated[
        Duration | None,
        duration_option(meaning("flush_interval_s")),
    ] = None,
    driver_memory: Annotated[str | None, typer.Option(help=meaning("driver_memory"))] = None,
    metrics_port: Annotated[int | None, typer.Option(help=meaning("metrics_port"))] = None,
    metrics_host: Annotated[str | None, typer.Option(help=meaning("metrics_host"))] = None,
    api_port: Annotated[int | None, typer.Option(help=meaning("api_port"))] = None,
    api_host: Annotated[str | None, typer.Option(help=meaning("api_host"))] = None,
    api_token_file: ApiTokenFile = None,
    kafka_port: Annotated[int | None, typer.Option(help=meaning("kafka_port"))] = None,
    log_level: Annotated[str | None, typer.Option(help=meaning("log_level"))] = None,
    log_to_terminal: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option(
            "--log-to-terminal",
            help="log to standard error instead of job.log in the folder",
            callback=remembered("--log-to-terminal"),
        ),
    ] = False,
    take_over: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option(
            "--take-over",
            help="take over the prefix from its current owner, which then stops; its state stays in its folder",
        ),
    ] = False,
    settings: SettingsFile = None,
    var: Var = DEFAULT_VAR,
) -> None:
    """Run the job in the foreground, with an embedded Kafka unless one is given.

    Each setting can also be given by its environment variable or in the settings file.
    Other commands find the running job by its folder.
    """
    chosen = load_settings(
        settings,
        folder=folder,
        tables=tables,
        bootstrap_servers=bootstrap_servers,
        kafka_config=kafka_config,
        topic_prefix=prefix,
        ops_partitions=ops_partitions,
        results_partitions=results_partitions,
        message_topics=message_topics,
        records_per_micro_batch_max=records_per_micro_batch_max,
        flush_interval_s=None if flush_interval is None else flush_interval / 1000,
        driver_memory=driver_memory,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        api_port=api_port,
        api_host=api_host,
        api_token_file=api_token_file,
        kafka_port=kafka_port,
        log_level=log_level,
    )
    remember_job(chosen, settings)
    from pipelines.cli.up import run_up

    run_up(
        chosen,
        var=var,
        log_to_terminal=log_to_terminal,
        take_over=take_over,
    )


def demo(
    count: Annotated[int, typer.Option(help="messages to send", min=1)] = 100_000,
    messages: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="send the lines of this file instead", exists=True, dir_okay=False),
    ] = None,
    queues: Annotated[int, typer.Option(help="queues of the message topic", min=1, max=1024)] = 8,
    groups: Annotated[int, typer.Option(help="consumer groups; each receives every message", min=1)] = 3,
    bootstrap_servers: Annotated[
        str,
        typer.Option(help="an existing Kafka; by default an embedded one", metavar="HOST:PORT,...", show_default=False),
    ] = "",
    kafka_config: KafkaConfig = None,
    on_cluster: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option(
            "--on-cluster", help="on a Spark cluster of this machine, of which an executor, a worker and the driver die"
        ),
    ] = False,
    var: Var = DEFAULT_VAR,
    *,
    as_json: JsonOutput = False,
) -> None:
    """Run the whole pipeline once on this machine, and report what happened.

    Exit code 1: a check of the demo failed; 130: interrupted.
    """
    from pipelines.demo import run_demo

    code = run_demo(
        messages_count=count,
        messages_file=messages,
        queues=queues,
        groups=groups,
        var=var,
        connection=chosen_connection(bootstrap_servers, kafka_config),
        json_output=as_json,
        on_cluster=on_cluster,
    )
    raise typer.Exit(code)
