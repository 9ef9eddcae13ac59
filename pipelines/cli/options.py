"""Options that several commands share, and the settings they make together with the environment and a file."""

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_settings import PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from pipelines.settings import JobSettings
from popstream.wire.failures import Invalid

__all__ = [
    "Duration",
    "Folder",
    "HistoryFile",
    "JobPrefix",
    "JobServers",
    "JsonOutput",
    "Prefix",
    "Servers",
    "SettingsFile",
    "Snapshots",
    "Var",
    "load_settings",
    "meaning",
]

UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def meaning(field: str) -> str:
    """What a setting means, for the help of its option."""
    return f"{JobSettings.model_fields[field].description} (POPSTREAM_{field.upper()})"


def duration_ms(text: str) -> int:
    """Milliseconds of a duration with its unit.

    >>> duration_ms("30s"), duration_ms("1.5m"), duration_ms("250ms"), duration_ms("0s")
    (30000, 90000, 250, 0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text.strip())
    if found is None:
        message = f"{text!r} is no duration: write a number and ms, s, m or h, as in 30s"
        raise typer.BadParameter(message)
    return round(float(found[1]) * UNIT_MS[found[2]])


Folder = Annotated[Path | None, typer.Option("--folder", help=meaning("folder"), show_default="var/job")]
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers", help="Kafka to talk to; by default that of the running job", metavar="HOST:PORT,..."
    ),
]
Prefix = Annotated[
    str | None, typer.Option("--prefix", help="names the job's topics; by default those of the running job")
]
JobServers = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", help=meaning("bootstrap_servers"), metavar="HOST:PORT,...", show_default=False),
]
JobPrefix = Annotated[str | None, typer.Option("--prefix", help=meaning("topic_prefix"))]
Snapshots = Annotated[str | None, typer.Option("--at", metavar="PATH|URL", help=meaning("snapshots"))]
HistoryFile = Annotated[
    Path | None,
    typer.Option("--history", metavar="FILE", help="record there what is asked and answered: see `history check`"),
]
SettingsFile = Annotated[
    Path | None, typer.Option("--settings", help="TOML file with settings; POPSTREAM_... and options override it")
]
JsonOutput = Annotated[bool, typer.Option("--json", help="for scripts")]
Var = Annotated[
    Path, typer.Option("--var", help="folder in which `make setup` has put the jars", envvar="POPSTREAM_VAR")
]


class Duration(int):
    """Milliseconds; as an option it is written with a unit.

    >>> str(Duration(30_000)), str(Duration(1_500)), str(Duration(7_200_000))
    ('30s', '1500ms', '2h')
    """

    @classmethod
    def parse(cls, text: "str | Duration") -> "Duration":
        """Read it, or refuse it as typer wants it."""
        return text if isinstance(text, Duration) else cls(duration_ms(text))

    def __str__(self) -> str:
        """As it is written."""
        unit = next(unit for unit in reversed(UNIT_MS) if self % UNIT_MS[unit] == 0)
        return f"{int(self) // UNIT_MS[unit]}{unit}"


def load_settings(file: Path | None, **options: Any) -> JobSettings:  # noqa: ANN401 - as the settings are
    """Options (those that are not None) over `POPSTREAM_...` variables over the file over the defaults.

    Raises:
        Invalid: Every setting that is wrong, one line each.
    """
    if file is not None and not file.is_file():
        message = f"there is no settings file {file}"
        raise Invalid(message, subject=str(file))
    try:
        return _settings_class(file)(**{name: value for name, value in options.items() if value is not None})
    except (tomllib.TOMLDecodeError, UnicodeError, RecursionError) as error:
        message = f"{file} is no TOML: {error}"
        raise Invalid(message, subject=str(file)) from error
    except ValidationError as error:
        # Never the value: it may be a secret.
        wrong = [f"{_place(found['loc'])}: {found['msg']}" for found in error.errors(include_input=False)]
        message = "the settings cannot work:"
        raise Invalid(message, details=wrong) from error
    except ValueError as error:  # Python reads no integer of thousands of digits
        message = f"{file} is no TOML: {error}"
        raise Invalid(message, subject=str(file)) from error


def _place(location: tuple[int | str, ...]) -> str:
    name = ".".join(str(part) for part in location)
    variable = f"POPSTREAM_{name.upper()}"
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
