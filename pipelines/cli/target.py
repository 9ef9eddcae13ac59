"""Which job a command talks to: the one of the folder, unless options say otherwise."""

from pathlib import Path

import msgspec

from checkpoints.layout import JobFolder
from pipelines.cli.options import load_settings
from pipelines.control.client import is_owned
from pipelines.control.job_file import JobFile
from popstream.settings import ClientSettings, new_client_id
from popstream.wire.failures import Unavailable

__all__ = ["Target", "find_target", "require_left_alone", "running_job"]


class Target(msgspec.Struct, frozen=True):
    """Where the job's Kafka is, how its topics are called, and where what a client sees is recorded, if anywhere."""

    bootstrap_servers: str
    prefix: str
    history_file: Path | None = None

    def client_settings(self, kind: str) -> ClientSettings:
        """For a client with a name that tells it is a command."""
        client_id = new_client_id().replace("popstream-", f"popstream-{kind}-", 1)
        return ClientSettings(
            bootstrap_servers=self.bootstrap_servers,
            client_id=client_id,
            prefix=self.prefix,
            history_file=self.history_file,
        )


def find_target(
    folder: Path | None, bootstrap_servers: str | None, prefix: str | None, history_file: Path | None = None
) -> Target:
    """Where to go: what options and settings say, else what the job file says.

    Raises:
        Unavailable: No job runs in the folder, and nothing else tells where Kafka is.
    """
    settings = load_settings(None, folder=folder, bootstrap_servers=bootstrap_servers, topic_prefix=prefix)
    job = running_job(JobFolder(settings.folder))
    chosen = settings.model_fields_set
    if job is None and not settings.bootstrap_servers:
        message = (
            f"no job runs in {settings.folder}: start one with `popstream up`, name its --folder,"
            " or tell where Kafka is with --bootstrap-servers"
        )
        raise Unavailable(message, subject=str(settings.folder))
    if job is None:
        return Target(settings.bootstrap_servers, settings.topic_prefix, history_file)
    return Target(
        settings.bootstrap_servers or job.bootstrap_servers,
        settings.topic_prefix if "topic_prefix" in chosen else job.prefix,
        history_file,
    )


def running_job(folder: JobFolder) -> JobFile | None:
    """Return the job file of the job that runs in the folder, once it is ready, or None."""
    job = JobFile.read(folder.job_file)
    return job if job is not None and is_owned(folder) else None


def require_left_alone(folder: JobFolder) -> None:
    """Check that a state lies in the folder and that no process owns it, so that it can be read.

    Raises:
        Unavailable: One does, or there is none.
    """
    if is_owned(folder):
        message = f"the job in {folder.root} is starting or stopping: ask again in a few seconds"
        raise Unavailable(message, subject=str(folder.root))
    if not folder.state.is_dir():
        message = (
            f"no job runs in {folder.root}, and none ever did: start one with `popstream up`, or name its --folder"
        )
        raise Unavailable(message, subject=str(folder.root))
