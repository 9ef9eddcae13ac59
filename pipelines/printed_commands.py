"""The commands that messages name, completed with the options of this job, so that they work as they are printed.

Code that raises an error knows no options, and says "run `popstream restore`". Whatever prints or logs the message
passes it through `with_options`.
"""

import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path

from pipelines.job_settings import JobSettings

__all__ = ["remember_checkpoint", "remember_job", "remember_var", "with_options"]

_DEFAULT_VAR = Path("var")
_FIELDS = {
    "--folder": "folder",
    "--tables": "tables",
    "--bootstrap-servers": "bootstrap_servers",
    "--kafka-config": "kafka_config",
    "--prefix": "topic_prefix",
    "--at": "snapshots",
}
_CHOOSE_JOB = ("--settings", "--folder", "--tables", "--bootstrap-servers", "--kafka-config", "--prefix")
_TAKES = {
    "up": (*_CHOOSE_JOB, "--var"),
    "restore": (*_CHOOSE_JOB, "--at", "--var"),
    "verify": (*_CHOOSE_JOB, "--at", "--var"),
    "snapshot": ("--settings", "--folder", "--at"),
}
_TAKES_ON_CLUSTER = dict.fromkeys(("verify", "snapshot"), ("--checkpoint", *_CHOOSE_JOB, "--at", "--var"))
"""The options of each command that choose the job."""

_NAMED = re.compile(rf"`popstream ({'|'.join(_TAKES)})((?: [^`]*)?)`")

_options: dict[str, str] = {}
"""Of this process: it has one job."""


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
        value = str(getattr(settings, field) or "")
        if value and value != str(default[field] or ""):
            is_path = option in {"--folder", "--tables", "--kafka-config"} or (option == "--at" and "://" not in value)
            _options[option] = str(Path(value).absolute()) if is_path else value


def remember_checkpoint(url: str | None) -> str | None:
    """Take the state of a job on a cluster, and return it; None: the job is an embedded one."""
    _options.pop("--checkpoint", None)
    if url is not None:
        _options["--checkpoint"] = url
    return url


def remember_var(var: Path) -> Path:
    """Take the folder of the jars, and return it."""
    _options.pop("--var", None)
    if var != _DEFAULT_VAR:
        _options["--var"] = str(var.absolute())
    return var


def with_options(text: str) -> str:
    """Complete the commands in a message.

    >>> remember_job(JobSettings(folder=Path("/data/my job"), topic_prefix="orders"))
    >>> with_options("stop the job and run `popstream restore --lossy`")
    "stop the job and run `popstream restore --lossy --folder '/data/my job' --prefix orders`"
    >>> with_options("`popstream up --prefix NAME`, `popstream status`")
    "`popstream up --prefix NAME --folder '/data/my job'`, `popstream status`"
    >>> remember_job(JobSettings())
    """
    return _NAMED.sub(_completed, text)


def _completed(found: re.Match[str]) -> str:
    name, given = found[1], found[2]
    takes = _TAKES_ON_CLUSTER.get(name, _TAKES[name]) if "--checkpoint" in _options else _TAKES[name]
    missing = [option for option in takes if option in _options and option not in given.split()]
    return "".join(
        [f"`popstream {name}{given}", *(f" {option} {shlex.quote(_options[option])}" for option in missing), "`"]
    )


def _default_settings(file: Path | None) -> Mapping[str, object]:
    """Return the values that a command has without options: the defaults, or those of the file."""
    fields = {field: JobSettings.model_fields[field].default for field in _FIELDS.values()}
    return fields if file is None else fields | tomllib.loads(file.read_text(encoding="utf-8"))
