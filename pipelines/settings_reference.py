"""Generates docs/settings.md: `python -m pipelines.settings_reference > docs/settings.md`."""

import sys

from pydantic.fields import FieldInfo

from pipelines.job_settings import OTHER_VARIABLES, JobSettings

__all__ = ["settings_markdown"]

_HEAD = """\
# Settings

Generated from pipelines/job_settings.py by `python -m pipelines.settings_reference`; a test keeps it current.

Set each as a variable (`POPSTREAM_FOLDER`) or as a line of a TOML file (`folder = "/data/job"`) for `--settings FILE`.
Some are also options of `popstream up`. Options override variables, and variables override the file. In a variable, a
table is written as JSON.

| setting | default | meaning |
|---|---|---|
"""


_VARIABLES = """
Other variables that begin with `POPSTREAM_` are refused, as unknown lines of the file are, but for these:

| variable | meaning |
|---|---|
"""


def settings_markdown() -> str:
    """Return the whole document."""
    settings = (
        f"| `{name}` | {_shown(field)} | {field.description} |\n" for name, field in JobSettings.model_fields.items()
    )
    variables = (f"| `{name}` | {meaning} |\n" for name, meaning in OTHER_VARIABLES.items())
    return "".join((_HEAD, *settings, _VARIABLES, *variables))


def _shown(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value == {} or not str(value):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    sys.stdout.write(settings_markdown())
