"""`popstream up`: run the job in the foreground, with an embedded Kafka unless one is given."""

import time
from pathlib import Path
from typing import Self

import typer
from rich.console import Console
from rich.status import Status as Spinner

from pipelines.cli.exits import Exit, error_text, exit_code, say
from pipelines.cli.printing import print_facts, standard_output
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host

__all__ = ["run_up"]


def run_up(settings: JobSettings, *, var: Path, log_to_terminal: bool, take_over: bool) -> None:
    """Start the job, show its progress, and stop it at a signal.

    Raises:
        typer.Exit: Always: with the exit code.
    """
    console = standard_output()
    started = time.monotonic()
    with _Line(console) as line:
        host = Host(
            settings,
            var=var,
            on_progress=line.say,
            log_to_terminal=log_to_terminal,
            take_over=take_over,
        )
        try:
            with host:
                _introduce(console, host)
                console.print(f"[bold green]ready[/] after {time.monotonic() - started:.1f} s; Ctrl-C stops it")
                failure = host.wait(each=lambda: line.show(_summary(host)))
        except KeyboardInterrupt:
            console.print("stopped before it was ready")
            raise typer.Exit(Exit.OK) from None
    if failure is not None:
        say(f"the job ended: {error_text(failure)}")
        if host.log_file is not None:
            say(f"see {host.log_file}")
        raise typer.Exit(exit_code(failure))
    console.print("stopped; everything that was decided is kept")
    raise typer.Exit(Exit.OK)


class _Line:
    """Shows progress: on a terminal one line that changes, otherwise one line per step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._spinner = Spinner("", console=console) if console.is_terminal else None

    def say(self, text: str) -> None:
        self.show(text)
        if self._spinner is None:
            self._console.print(text)

    def show(self, text: str) -> None:
        if self._spinner is not None:
            self._spinner.update(text)

    def __enter__(self) -> Self:
        if self._spinner is not None:
            self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._spinner is not None:
            self._spinner.stop()


def _introduce(console: Console, host: Host) -> None:
    owned = f" (embedded, its data is in {host.kafka.folder})" if host.kafka is not None else ""
    facts = {
        "Kafka": str(host.connection) + owned,
        "topics": ", ".join(host.job.topics.names),
        "folder": host.folder.root,
        "log": host.log_file or "standard error",
    }
    if host.settings.metrics_port:
        facts["metrics"] = f"http://{host.settings.metrics_host}:{host.settings.metrics_port}/metrics"
    if host.settings.api_port:
        shown = f"[{host.settings.api_host}]" if ":" in host.settings.api_host else host.settings.api_host
        facts["status page"] = f"http://{shown}:{host.settings.api_port}/"
    print_facts(console, facts)


def _summary(host: Host) -> str:
    if host.not_ready_reasons:
        return "not ready: " + " · ".join(host.not_ready_reasons)
    report = host.job.report()
    if report.damage:
        return "damaged: " + " · ".join(report.damage)
    totals = host.metrics.totals()
    behind = max(0, report.apply_seq - (report.delta_seq or 0))
    took_ms = sum(totals.last_micro_batch_ms.values())
    rate = host.answers.operations_per_s()
    return (
        f"{totals.operations:,} operations, {rate:,.0f}/s · last micro-batch {took_ms:.0f} ms"
        f" · Delta {behind} micro-batches behind · outbox {(report.outbox_bytes or 0) / 1024:,.0f} KiB"
    )
