"""The look of every page that this project makes: one style sheet, without a font, an image or a script of others.

The status page links to it, and a report that is one file has it inside.
"""

from importlib.resources import files

__all__ = ["stylesheet"]


def stylesheet() -> str:
    """Return the style sheet as CSS: colours of light and dark, tables, figures, badges, forms."""
    return files(__package__).joinpath("popstream.css").read_text(encoding="utf-8")
