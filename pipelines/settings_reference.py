"""docs/settings.md, from what `settings` says: `python -m pipelines.settings_reference > docs/settings.md`."""

import sys

from pydantic.fields import FieldInfo

from pipelines.settings import JobSettings

__all__ = ["settings_markdown"]

_HEAD = """\
# Settings

Generated from pipelines/settings.py by `python -m pipelines.settings_reference`; a test keeps it current.

Each is a variable (`POPSTREAM_FOLDER`) or a line of a TOML file (`folder = "/data/job"`, for `--settings FILE`), and
some are options of `popstream up`. Options override variables, and these the file. A table is JSON in a variable.

| setting | default | meaning |
|---|---|---|
"""


def settings_markdown() -> str:
    """The whole document."""
    return _HEAD + "".join(
        f"| `{name}` | {_shown(field)} | {field.description} |\n" for name, field in JobSettings.model_fields.items()
    )


def _shown(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    sys.stdout.write(settings_markdown())
