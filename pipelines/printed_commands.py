"""The commands that messages name, completed with the options of this job, so that they work as they are printed.

Code that raises an error knows no options, and says "run `popstream restore`". Whatever prints or logs the message
passes it through `completed_commands`. What a job tells other processes, it completes itself: only it knows all of
its options. A command that names the folder of its job is complete, and stays as it is.
"""

import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from pipelines.job_settings import JobSettings

__all__ = ["completed_commands", "remember_job", "remembered"]

_Value = TypeVar("_Value")

_CHOOSE_JOB: Final = {
    "--folder": "folder",
    "--tables": "tables",
    "--bootstrap-servers": "bootstrap_servers",
    "--kafka-config": "kafka_config",
    "--prefix": "topic_prefix",
}
_RUN_JOB: Final = {
    "--ops-partitions": "ops_partitions",
    "--results-partitions": "results_partitions",
    "--message-topics": "message_topics",
    "--records-per-micro-batch-max": "records_per_micro_batch_max",
    "--flush-interval": "flush_interval_s",
    "--driver-memory": "driver_memory",
    "--metrics-port": "metrics_port",
    "--metrics-host": "metrics_host",
    "--api-port": "api_port",
    "--api-host": "api_host",
    "--api-token-file": "api_token_file",
    "--kafka-port": "kafka_port",
    "--log-level": "log_level",
}
_FIELDS: Final = {**_CHOOSE_JOB, **_RUN_JOB, "--at": "snapshots"}
"""The setting of each option of a job."""

_RECOVERY: Final = ("--settings", *_CHOOSE_JOB, "--at", "--var")
_ASK_JOB: Final = ("--settings", "--folder", "--api", "--api-token-file")
_TAKES: Final = {
    "up": ("--settings", *_CHOOSE_JOB, *_RUN_JOB, "--log-to-terminal", "--var"),
    "restore": (*_RECOVERY, "--snapshot", "--lossy"),
    "verify": (*_RECOVERY, "--work", "--no-messages"),
    "snapshot": ("--settings", "--folder", "--at"),
    "queue": _ASK_JOB,
    "status": _ASK_JOB,
    "group list": _ASK_JOB,
    "group forget": _ASK_JOB,
    "send": ("--folder", "--api", "--api-token-file", "--bootstrap-servers", "--kafka-config", "--prefix"),
    "migrate to-cluster": _RECOVERY,
    "rescale": ("--checkpoint", *_RECOVERY),
}
"""The options of each command that choose the job, and those of its own that it needs again."""

_TAKES_ON_CLUSTER: Final = {
    "up": (
        "--master",
        "--deploy-mode",
        "--checkpoint",
        "--tables",
        "--environment",
        "--python",
        "--settings",
        "--var",
    ),
    "restore": ("--checkpoint", *_RECOVERY),
    "verify": ("--checkpoint", *_TAKES["verify"]),
    "snapshot": ("--checkpoint", *_RECOVERY),
    "queue": ("--checkpoint", "--settings", "--var"),
    "status": ("--checkpoint", "--settings", "--var"),
}

_FOLDER_NAMED = re.compile(r"--folder '?/")
_NAMED = re.compile(rf"`popstream ({'|'.join(_TAKES)})((?: [^`]*)?)`")

_options: dict[str, str | None] = {}
"""Of this process, which has one job; None: the option takes no value."""
_options_elsewhere: dict[str, str | None] = {}
"""Those that a command needs besides in another working directory."""


def remember_job(settings: JobSettings, file: Path | None = None) -> None:
    """Take the options from the settings of a job: those that neither the settings file nor the defaults have.

    Args:
        settings: The settings, from options, variables and the file together.
        file: The settings file, if one was given.
    """
    for option in (*_FIELDS, "--settings"):
        _options.pop(option, None)
    if file is not None:
        _options["--settings"] = str(file.absolute())
    default = _default_settings(file)
    for option, field in _FIELDS.items():
        value = getattr(settings, field)
        if value is not None and str(value) != str(default[field]):
            _options[option] = _written(option, value)
    _options_elsewhere["--folder"] = _written("--folder", settings.folder)


def remembered(option: str, default: object = None) -> Callable[[_Value], _Value]:
    """Return a callback of an option that takes it, unless it has its default, and returns it."""

    def remember(value: _Value) -> _Value:
        _options.pop(option, None)
        if value and value != default:
            _options[option] = None if value is True else str(value.absolute() if isinstance(value, Path) else value)
        return value

    return remember


def completed_commands(text: str, *, elsewhere: bool = False) -> str:
    """Complete the commands in a message.

    Args:
        text: The message.
        elsewhere: Another process prints it, in any working directory: the default folder is named, too.

    >>> remember_job(JobSettings(folder=Path("/data/my job"), topic_prefix="orders"))
    >>> completed_commands("stop the job and run `popstream restore --lossy`")
    "stop the job and run `popstream restore --lossy --folder '/data/my job' --prefix orders`"
    >>> completed_commands("`popstream up --prefix NAME`, `popstream dead list`")
    "`popstream up --prefix NAME --folder '/data/my job'`, `popstream dead list`"
    >>> remember_job(JobSettings())
    """
    options = _options
    if elsewhere and "--checkpoint" not in _options:
        options = _options | _options_elsewhere
    return _NAMED.sub(partial(_completed, options), text)


def _completed(options: Mapping[str, str | None], found: re.Match[str]) -> str:
    name, given = found[1], found[2]
    if _FOLDER_NAMED.search(given):
        return found[0]
    if _TAKES[name] is _ASK_JOB and not {"--api", "--checkpoint"}.isdisjoint(given.split()):
        return found[0]  # it says which job
    takes = _TAKES_ON_CLUSTER.get(name, _TAKES[name]) if "--checkpoint" in options else _TAKES[name]
    missing = [option for option in takes if option in options and option not in given.split()]
    values = {option: options[option] for option in missing}
    words = [option if value is None else f"{option} {shlex.quote(value)}" for option, value in values.items()]
    if name == "up" and takes is _TAKES_ON_CLUSTER["up"]:
        name = "submit"
    return f"`{' '.join([f'popstream {name}{given}', *words])}`"


def _written(option: str, value: object) -> str:
    """Return the value of a setting as the option takes it, wherever the command is given."""
    is_place = option in {"--tables", "--at"} and bool(value) and "://" not in str(value)
    if isinstance(value, Path) or is_place:
        return str(Path(str(value)).absolute())
    return f"{value}s" if option == "--flush-interval" else str(value)


def _default_settings(file: Path | None) -> Mapping[str, object]:
    """Return the values that a command has without options: the defaults, or those of the file."""
    fields = {field: JobSettings.model_fields[field].default for field in _FIELDS.values()}
    return fields if file is None else fields | tomllib.loads(file.read_text(encoding="utf-8"))
