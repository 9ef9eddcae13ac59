"""Options that several commands share, and the settings from options, environment and file together."""

import contextlib
import functools
import inspect
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_settings import PydanticBaseSettingsSource, SettingsConfigDict, SettingsError, TomlConfigSettingsSource

from pipelines.cli.time_options import durations_ms, since_ms
from pipelines.job_settings import PREFIX, JobSettings, unknown_variables
from pipelines.printed_commands import remember_job, remembered
from popstream.dead_letters.letter import parse_place
from popstream.dead_letters.selection import LetterSelection
from popstream.wire.base_errors import Invalid
from popstream.wire.limits import (
    ATTEMPTS_MAX,
    IN_FLIGHT_MAX,
    PARKED_DEFAULT,
    PARKED_MAX,
    QUOTA_MAX,
    WINDOW_OFFSETS_DEFAULT,
    WINDOW_OFFSETS_MAX,
    WINDOW_OFFSETS_MIN,
)

if TYPE_CHECKING:
    from pipelines.cli.target import JobPlace

__all__ = [
    "DEFAULT_VAR",
    "AdminKeyFile",
    "ApiTokenFile",
    "Folder",
    "JobOptions",
    "JobPrefix",
    "JobServers",
    "JsonOutput",
    "KafkaConfig",
    "LetterOptions",
    "PolicyOptions",
    "QueuePolicyOptions",
    "ReadCheckpoint",
    "RecoveryOptions",
    "ServerOptions",
    "SettingsFile",
    "Snapshots",
    "StoryOptions",
    "TableOptions",
    "Tables",
    "TargetOptions",
    "Topic",
    "Var",
    "load_settings",
    "meaning",
    "takes_options",
]

DEFAULT_VAR = Path("var")


def meaning(field: str) -> str:
    """Return the meaning of a setting, for the help of its option."""
    return f"{JobSettings.model_fields[field].description} ({PREFIX}{field.upper()})"


Folder = Annotated[Path | None, typer.Option("--folder", help=meaning("folder"), show_default="var/job")]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="TOML file with settings; POPSTREAM_... variables and options override it"),
]
Tables = Annotated[
    str | None, typer.Option("--tables", metavar="FOLDER|URL", help=meaning("tables"), show_default=False)
]
Api = Annotated[
    str | None,
    typer.Option(
        "--api",
        metavar="URL",
        help="ask the job through its HTTP API, such as http://host:9465, instead of its folder",
        envvar="POPSTREAM_API",
        callback=remembered("--api"),
        show_default=False,
    ),
]
ApiTokenFile = Annotated[
    Path | None,
    typer.Option("--api-token-file", metavar="FILE", help=meaning("api_token_file"), show_default=False),
]
JobServers = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", help=meaning("bootstrap_servers"), metavar="HOST:PORT,...", show_default=False),
]
KafkaConfig = Annotated[Path | None, typer.Option("--kafka-config", metavar="FILE", help=meaning("kafka_config"))]
JobPrefix = Annotated[str | None, typer.Option("--prefix", help=meaning("topic_prefix"))]
Snapshots = Annotated[str | None, typer.Option("--at", metavar="PATH|URL", help=meaning("snapshots"))]
ReadCheckpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="URL",
        help="path or URL of the state of a job on a Spark cluster, instead of a folder",
        show_default=False,
        callback=remembered("--checkpoint"),
    ),
]
AdminKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--admin-key-file",
        metavar="FILE",
        envvar="POPSTREAM_ADMIN_KEY_FILE",
        help="file with ID:SECRET of an admin key, to sign operations where the job has `admin_keys`",
    ),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]
Topic = Annotated[str, typer.Argument(help="message topic", metavar="TOPIC")]
Var = Annotated[
    Path,
    typer.Option(
        "--var",
        help="folder into which `make setup` has put the jars",
        envvar="POPSTREAM_VAR",
        callback=remembered("--var", DEFAULT_VAR),
    ),
]


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options that choose a job by its folder, by its API, or by its Kafka and its prefix."""

    folder: Folder = None
    api: Api = None
    api_token_file: ApiTokenFile = None
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers", help="Kafka to talk to; by default that of the running job", metavar="HOST:PORT,..."
        ),
    ] = None
    kafka_config: KafkaConfig = None
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="prefix of the job's topics; by default that of the running job")
    ] = None


@dataclass(frozen=True, kw_only=True)
class TargetOptions(ServerOptions):
    """Options that choose the job to send operations to, and sign them."""

    admin_key_file: AdminKeyFile = None
    history_file: Annotated[
        Path | None,
        typer.Option("--history", metavar="FILE", help="record operations and answers there; see `history check`"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Options that choose a job by its folder."""

    folder: Folder = None
    settings_file: SettingsFile = None

    def load(self, **options: Any) -> JobSettings:  # noqa: ANN401 - as the settings are
        """Return the settings of the job. Raises Invalid."""
        settings = load_settings(self.settings_file, folder=self.folder, **options)
        remember_job(settings, self.settings_file)
        return settings


@dataclass(frozen=True, kw_only=True)
class JobOptions(FolderOptions):
    """Options that choose a job by its folder, or by its API."""

    api: Api = None
    api_token_file: ApiTokenFile = None

    def place(self, **options: Any) -> "JobPlace":  # noqa: ANN401 - as the settings are
        """Return where the job is. Raises Invalid."""
        from pipelines.cli.target import place_of  # noqa: PLC0415 - the help does not need it

        return place_of(self.load(api_token_file=self.api_token_file, **options), self.api)


@dataclass(frozen=True, kw_only=True)
class TableOptions(FolderOptions):
    """Options that choose the tables of a job."""

    tables: Annotated[
        str | None,
        typer.Option(
            "--tables",
            metavar="FOLDER|URL",
            help="where the tables are; a URL that fsspec supports: they are copied first",
            show_default=False,
        ),
    ] = None

    @property
    def is_at_url(self) -> bool:
        """Whether the tables are at a URL."""
        return "://" in (self.tables or "")

    def load(self, **options: Any) -> JobSettings:  # noqa: ANN401 - as the settings are
        """Return the settings of the job. Raises Invalid."""
        return super().load(tables=None if self.is_at_url else self.tables, **options)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Path]:
        """Return the folder of the tables for the block, or of a copy. Raises Invalid or Unavailable."""
        if not self.is_at_url:
            yield self.load().job_folder.delta
            return
        from pipelines.cli.tables.table_copy import copied_tables  # noqa: PLC0415 - it imports Spark

        with copied_tables(self.tables or "") as folder:
            yield folder


@dataclass(frozen=True, kw_only=True)
class StoryOptions(JobOptions, TableOptions):
    """Options that choose a job and its tables."""


@dataclass(frozen=True, kw_only=True)
class RecoveryOptions:
    """Options of the commands that read the log of a job and its snapshots."""

    snapshots: Snapshots = None
    folder: Folder = None
    tables: Tables = None
    bootstrap_servers: JobServers = None
    kafka_config: KafkaConfig = None
    prefix: JobPrefix = None
    settings_file: SettingsFile = None

    def load(self, *, on_cluster: bool = False) -> JobSettings:
        """Return the settings of the job; those of one on a cluster do not say where its tables are. Raises Invalid."""
        if not on_cluster and "://" in (self.tables or ""):
            message = "tables at a URL are those of a job on a Spark cluster, whose state --checkpoint names"
            raise Invalid(message, subject=self.tables or "")
        settings = load_settings(
            self.settings_file,
            folder=self.folder,
            tables=None if on_cluster else self.tables,
            bootstrap_servers=self.bootstrap_servers,
            kafka_config=self.kafka_config,
            topic_prefix=self.prefix,
            snapshots=self.snapshots,
        )
        remember_job(settings, self.settings_file)
        return settings


@dataclass(frozen=True, kw_only=True)
class LetterOptions:
    """Options that select dead letters."""

    topic: Annotated[str | None, typer.Option(help="only messages of this topic")] = None
    group: Annotated[str | None, typer.Option(help="only what this group gave up")] = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|DURATION",
            help="only what was given up since then: ISO 8601 (UTC if it names no zone), ms since 1970, or as in 2h",
        ),
    ] = None
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="only with this reason, such as attempt_limit or rejected, or by what the handler raised; * ? []",
        ),
    ] = None

    text: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="only with this in key, value or a header, or in what the handler raised"),
    ] = None

    def selection(self, letters: Sequence[str] = ()) -> LetterSelection:
        """Return the selection, of these letters or of all. Raises Invalid or typer.BadParameter."""
        return LetterSelection(
            topic=self.topic,
            group=self.group,
            since_ms=None if self.since is None else since_ms(self.since),
            reason=self.reason,
            text=self.text,
            places=frozenset(map(parse_place, letters)) or None,
        )


def _limit(text: str, greatest: int) -> Any:  # noqa: ANN401 - typer's
    return typer.Option(help=text, min=0, max=greatest, show_default=False)


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """The rules of a policy; those that are not given are none. Without any, the policies are shown."""

    max_attempts: Annotated[
        int | None, _limit("deliveries of a message before it is a dead letter; 0: no limit", ATTEMPTS_MAX)
    ] = None
    back_off: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION,...",
            help="time after the first, second, ... failed delivery; the last one repeats; by default none",
            show_default=False,
        ),
    ] = None
    parked_max: Annotated[int | None, _limit(f"pops of a group that wait; by default {PARKED_DEFAULT}", PARKED_MAX)] = (
        None
    )
    in_flight_max: Annotated[int | None, _limit("leased messages of a group; 0: no limit", IN_FLIGHT_MAX)] = None
    pops_per_s_max: Annotated[int | None, _limit("pops of a group in a second; 0: no limit", QUOTA_MAX)] = None
    client_pops_per_s_max: Annotated[int | None, _limit("the same of one client; 0: no limit", QUOTA_MAX)] = None
    client_parked_max: Annotated[int | None, _limit("pops of one client that wait; 0: no limit", PARKED_MAX)] = None

    def rules(self) -> dict[str, Any] | None:
        """Return fields of a `Policy`; None: none was given.

        Raises:
            typer.BadParameter: The number of attempts is not among them.
        """
        given = {name: value for name, value in vars(self).items() if value is not None}
        if not given:
            return None
        if "max_attempts" not in given:
            message = "give --max-attempts as well: a new policy replaces the old one entirely"
            raise typer.BadParameter(message)
        if "back_off" in given:
            given["back_off_ms"] = durations_ms(given.pop("back_off"))
        return given


@dataclass(frozen=True, kw_only=True)
class QueuePolicyOptions(PolicyOptions):
    """The rules of the policy of a queue: for the groups without a policy of their own, and for all together."""

    max_attempts: Annotated[
        int | None,
        _limit(
            "deliveries of a message before it is a dead letter; 0: what the consumers of each group declare. To remove"
            " the limit for one group: group policy GROUP TOPIC --max-attempts 0",
            ATTEMPTS_MAX,
        ),
    ] = None
    back_off: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION,...",
            help="time after the first, second, ... failed delivery; the last one repeats; by default what the"
            " consumers of each group declare",
            show_default=False,
        ),
    ] = None
    window_max: Annotated[
        int | None,
        typer.Option(
            help=f"offsets between the first hole and the last one written; by default {WINDOW_OFFSETS_DEFAULT:,}",
            min=WINDOW_OFFSETS_MIN,
            max=WINDOW_OFFSETS_MAX,
            show_default=False,
        ),
    ] = None
    queue_pops_per_s_max: Annotated[int | None, _limit("pops of all groups in a second; 0: no limit", QUOTA_MAX)] = None
    queue_parked_max: Annotated[int | None, _limit("pops of all groups that wait; 0: no limit", QUOTA_MAX)] = None
    new_lanes_per_min_max: Annotated[int | None, _limit("new groups in a minute; 0: no limit", QUOTA_MAX)] = None
    resets_per_min_max: Annotated[
        int | None, _limit("resets and deletions of groups in a minute; 0: no limit", QUOTA_MAX)
    ] = None


def takes_options(
    **groups: type[ServerOptions | FolderOptions | RecoveryOptions | LetterOptions | PolicyOptions],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take the options of a class above as one parameter, named as here."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            found = inspect.signature(groups[name]).parameters.values() if name in groups else [parameter]
            parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in found]

        @functools.wraps(command)
        def run(**given: Any) -> None:  # noqa: ANN401 - as the options are
            for name, group in groups.items():
                given[name] = group(**{option: given.pop(option) for option in inspect.signature(group).parameters})
            command(**given)

        # typer reads both.
        run.__dict__["__signature__"] = signature.replace(parameters=parameters)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def load_settings(file: Path | None, **options: Any) -> JobSettings:  # noqa: ANN401 - as the settings are
    """Load the settings: options that are not None, then `POPSTREAM_...` variables, then the file, then the defaults.

    Raises:
        Invalid: Its details list every invalid setting, and every variable that begins with `POPSTREAM_` and is none.
    """
    if file is not None and not file.is_file():
        message = f"there is no settings file {file}"
        raise Invalid(message, subject=str(file))
    unknown = unknown_variables(os.environ)
    message = "invalid settings:"
    try:
        settings = _settings_class(file)(**{name: value for name, value in options.items() if value is not None})
    except (tomllib.TOMLDecodeError, UnicodeError, RecursionError) as error:
        message = f"{file} is not TOML: {error}"
        raise Invalid(message, subject=str(file)) from error
    except ValidationError as error:
        # Without the values: they may be secrets.
        wrong = [f"{_place(found['loc'])}: {found['msg']}" for found in error.errors(include_input=False)]
        raise Invalid(message, details=wrong + unknown) from error
    except SettingsError as error:
        # Not from its cause, which has the value: that may be a secret.
        field = re.search('"(.*?)"', str(error))
        wrong = [f"{_place((field[1] if field else '?',))}: it is not JSON"]
        raise Invalid(message, details=wrong + unknown) from None
    except ValueError as error:  # Python refuses integers of thousands of digits
        message = f"{file} is not TOML: {error}"
        raise Invalid(message, subject=str(file)) from error
    unknown += [f"{name}: it has bytes that are not UTF-8" for name, value in settings if _is_not_utf8(value)]
    if unknown:
        raise Invalid(message, details=unknown)
    return settings


def _is_not_utf8(value: object) -> bool:
    """Return whether a value is a text, or a path, that tables and messages cannot name."""
    return isinstance(value, str | Path) and any("\ud800" <= each <= "\udfff" for each in str(value))


def _place(location: tuple[int | str, ...]) -> str:
    name = ".".join(str(part) for part in location)
    variable = f"{PREFIX}{name.upper()}"
    return f"{name} (from {variable})" if variable in os.environ else name


def _settings_class(file: Path | None) -> type[JobSettings]:
    class FromFile(JobSettings):
        model_config = SettingsConfigDict(toml_file=file)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[JobSettings],  # type: ignore[override]
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    return FromFile if file is not None else JobSettings
