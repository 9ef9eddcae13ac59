"""The job that a command talks to: the one that runs in the folder, unless options say otherwise."""

from pathlib import Path
from typing import Any, NoReturn

import msgspec
import typer

from checkpoints.layout import JobFolder
from pipelines.cli.exits import Exit, say
from pipelines.cli.options import ServerOptions, TargetOptions, load_settings
from pipelines.control.client import ask, is_owned
from pipelines.control.job_file import JobFile
from pipelines.control.messages import Status, StatusRequest
from pipelines.job_settings import JobSettings
from pipelines.printed_commands import remember_job
from popstream.kafka_connection import KafkaConnection
from popstream.reach_kafka import reach_kafka
from popstream.settings import ClientSettings, new_client_id, read_admin_key
from popstream.wire.base_errors import RESTORE, Corrupt, Invalid, Unavailable

__all__ = [
    "JobApi",
    "JobPlace",
    "Target",
    "end_without_job",
    "find_target",
    "place_of",
    "require_job_folder",
    "require_left_alone",
    "require_running_job",
    "require_state",
    "running_job",
    "settings_of_job",
]


class JobApi(msgspec.Struct, frozen=True):
    """The HTTP API of a job that may run on another machine.

    Attributes:
        url: Its address.
        token: What it takes; empty: nothing.
        connection: The Kafka of the job as this machine reaches it; None: as the job itself does.
    """

    url: str
    token: str
    connection: KafkaConnection | None = None

    def __str__(self) -> str:
        """Return the address."""
        return self.url


JobPlace = JobFolder | JobApi
"""Where a command finds a job."""


def place_of(settings: JobSettings, api: str | None) -> JobPlace:
    """Return where the job is: its API if an address is given, else its folder.

    Raises:
        Invalid: The token or the Kafka is not given as it should be.
    """
    if not api:
        return settings.job_folder
    return JobApi(api.rstrip("/"), settings.api_secret, settings.connection)


class Target(msgspec.Struct, frozen=True):
    """The Kafka and the topics of a job.

    Attributes:
        history_file: Where a client records its operations, if anywhere.
        admin_key_file: The admin key that signs operations, if any.
        job: How to reach the job, if its folder on this machine or its API is known.
    """

    connection: KafkaConnection
    prefix: str
    history_file: Path | None = None
    job: JobFile | None = None
    admin_key_file: Path | None = None

    def client_settings(self, kind: str) -> ClientSettings:
        """Return settings of a client whose id names the command."""
        return ClientSettings(**self.client_options(kind))

    def client_options(self, kind: str) -> dict[str, Any]:
        """Return the same settings as options of a `Producer` or `Consumer`."""
        return {
            **self.connection.client_options,
            "client_id": f"popstream-{kind}-{new_client_id()}",
            "prefix": self.prefix,
            "history_file": self.history_file,
            "admin_key": self.admin_key_file,
        }


def find_target(options: ServerOptions, admin_key_file: Path | None = None) -> Target:
    """Return which Kafka and topics to work with: as options and settings say, by default as the job file says.

    Raises:
        Invalid: A setting, or the file of the admin key, is wrong.
        Unavailable: No job runs in the folder, and no option or setting names a Kafka; or that Kafka does not listen.
    """
    settings = load_settings(
        None,
        folder=options.folder,
        api_token_file=options.api_token_file,
        bootstrap_servers=options.bootstrap_servers,
        kafka_config=options.kafka_config,
        topic_prefix=options.prefix,
    )
    remember_job(settings)
    job = running_job(place_of(settings, options.api))
    if job is not None:
        settings = _completed(settings, job)
    connection = settings.connection
    if connection is None:
        message = (
            f"no job runs in {settings.folder}: start one with `popstream up`, name its --folder,"
            " or name its Kafka with --bootstrap-servers"
        )
        raise Unavailable(message, subject=str(settings.folder))
    history_file = None
    if isinstance(options, TargetOptions):
        history_file, admin_key_file = options.history_file, options.admin_key_file
    if admin_key_file is not None:
        read_admin_key(admin_key_file)  # before anything is sent
    is_its = job is not None and (str(connection), settings.topic_prefix) == (job.bootstrap_servers, job.prefix)
    reach_kafka(connection)
    return Target(connection, settings.topic_prefix, history_file, job if is_its else None, admin_key_file)


def _completed(settings: JobSettings, job: JobFile) -> JobSettings:
    """Return settings that take from the running job what was not chosen: its login for its own Kafka alone."""
    chosen = settings.model_fields_set
    found: dict[str, Any] = {} if "topic_prefix" in chosen else {"topic_prefix": job.prefix}
    if not settings.bootstrap_servers:
        found["bootstrap_servers"] = job.bootstrap_servers
        if settings.kafka_config is None and job.kafka_config:
            found["kafka_config"] = Path(job.kafka_config)
    return settings.model_copy(update=found)


def settings_of_job(settings: JobSettings, job: JobFile | None) -> JobSettings:
    """Return settings with the Kafka and the prefix of the running job, whatever else they say; None: none runs."""
    if job is None:
        return settings
    return settings.model_copy(
        update={
            "bootstrap_servers": job.bootstrap_servers,
            "kafka_config": Path(job.kafka_config) if job.kafka_config else None,
            "topic_prefix": job.prefix,
        }
    )


def running_job(place: JobPlace) -> JobFile | None:
    """Return how to reach the job that runs in a folder, once it is ready, or None; or the job behind an API.

    Raises:
        Unavailable: The API does not answer, or no job runs behind it.
        Invalid: The API refuses the request, as it does without its token.
    """
    if isinstance(place, JobApi):
        return _job_behind(place)
    job = JobFile.read(place.job_file)
    return job if job is not None and is_owned(place) else None


def _job_behind(api: JobApi) -> JobFile:
    unknown = JobFile(
        pid=0, bootstrap_servers="", prefix="", folder="", address=api.url, token=api.token, started_at=0.0
    )
    status = ask(unknown, StatusRequest(limit=0), Status)
    # Where this machine reaches Kafka by another address or login than the job, the settings here say so.
    kafka = api.connection or KafkaConnection(status.bootstrap_servers or "", "")
    return msgspec.structs.replace(
        unknown,
        pid=status.pid or 0,
        bootstrap_servers=kafka.bootstrap_servers,
        kafka_config=kafka.config_file,
        prefix=status.prefix or "",
        folder=status.folder,
    )


def require_running_job(place: JobPlace, what: str = "") -> JobFile:
    """Return how to reach the running job; `what` says what it is to do.

    Raises:
        Unavailable: No job runs there, or it is not ready.
    """
    job = running_job(place)
    if job is None:
        hint = f": start one, which can {what} while it runs" if what else ""
        message = f"no job runs in {_name(place)}{hint}"
        raise Unavailable(message, subject=_name(place))
    return job


def end_without_job(place: JobPlace, what: str) -> NoReturn:
    """End a command that has printed `what` is stored, because no job runs.

    Raises:
        typer.Exit: Always.
    """
    say(f"no job runs in {_name(place)}; {what}")
    raise typer.Exit(Exit.UNAVAILABLE)


def _name(place: JobPlace) -> str:
    return str(place.root) if isinstance(place, JobFolder) else place.url


def require_job_folder(folder: JobFolder) -> None:
    """Check that a job ran in the folder, before anything is created there.

    Raises:
        Invalid: It is no folder of a job.
    """
    kept = (folder.state, folder.queues, folder.delta, folder.snapshots, folder.replaced, folder.kafka)
    if not any(path.is_dir() for path in kept):
        message = f"{folder.root} is not the folder of a job: name it with --folder or --settings"
        raise Invalid(message, subject=str(folder.root))


def require_state(folder: JobFolder) -> None:
    """Check that there is a state to read, before anything is created in the folder.

    Raises:
        Invalid: It is no folder of a job.
        Corrupt: The state is lost.
    """
    require_job_folder(folder)
    if not folder.state.is_dir():
        message = f"there is no state in {folder.root}: {RESTORE}"
        raise Corrupt(message, subject=str(folder.root))


def require_left_alone(folder: JobPlace) -> JobFolder:
    """Return the folder, which holds a state that no process owns, so that it can be read.

    Raises:
        Unavailable: A process owns it, or there is no state.
    """
    assert isinstance(folder, JobFolder), "an API is of a running job"
    if is_owned(folder):
        message = f"the job in {folder.root} is starting or stopping: ask again in a few seconds"
        raise Unavailable(message, subject=str(folder.root))
    if not folder.state.is_dir():
        message = (
            f"no job runs in {folder.root}, and none ever ran: start one with `popstream up`, or name its --folder"
        )
        raise Unavailable(message, subject=str(folder.root))
    return folder
