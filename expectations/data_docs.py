"""Data Docs that need no network: what the pages of Great Expectations load from others is taken out.

Their tables and texts are in the pages themselves; a style sheet of our own replaces Bootstrap.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any, Final

from expectations.context import SITE
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from pathlib import Path

    from great_expectations.data_context.data_context.file_data_context import FileDataContext

__all__ = ["build_data_docs", "require_replaceable", "without_network"]

_OF_A_SITE: Final = {"index.html", "expectations", "static", "validations"}

_LOADED: Final = re.compile(
    r"<link\b[^>]*\bhref=[\"']?https?://[^>]*>"
    r"|<script\b[^>]*\bsrc=[\"']?https?://[^>]*>\s*</script>"
    r"|<script\b[^>]*>(?:(?!</script>).)*</script>"
    r"|<(?:img|iframe)\b[^>]*\bsrc=[\"']?https?://[^>]*>",
    re.DOTALL | re.IGNORECASE,
)
_IMPORTED: Final = re.compile(
    r"@import\s+url\([^)]*https?://[^)]*\)\s*;?|url\(\s*[\"']?https?://[^)]*\)", re.IGNORECASE
)

_STYLE: Final = """<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .6rem; text-align: left; vertical-align: top; }
.row { display: flex; flex-wrap: wrap; gap: 1rem; }
.col-lg-2, .col-md-2 { flex: 0 0 11rem; } .col-lg-10, .col-md-10, .col-12 { flex: 1 1 20rem; min-width: 0; }
.text-success { color: #1a7f37; } .text-danger { color: #cf222e; }
.fa-check-circle::before { content: "\\2713"; }
.fa-times::before, .fa-exclamation-triangle::before { content: "\\2717"; }
.badge { background: #8883; border-radius: .4rem; padding: 0 .4rem; }
pre, code { white-space: pre-wrap; } .modal, .navbar-toggler, .ge-index-page-site-name-title img { display: none; }
</style>
"""


def require_replaceable(folder: Path) -> None:
    """Refuse a folder that holds anything but Data Docs: each run replaces all of it.

    Raises:
        Invalid: It does, or is a file.
    """
    if not folder.exists():
        return
    others = sorted({each.name for each in folder.iterdir()} - _OF_A_SITE) if folder.is_dir() else [folder.name]
    if others:
        message = f"{folder} holds {others[0]}, which Data Docs would replace: name a new folder, or one of theirs"
        raise Invalid(message, subject=str(folder))


def build_data_docs(context: FileDataContext, folder: Path) -> None:
    """Write Data Docs of the validations in a context beside the old ones, then replace those."""
    fresh, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    sites: dict[str, Any] = context.config.data_docs_sites or {}
    site = sites[SITE]
    backend = {**site["store_backend"], "base_directory": str(fresh.absolute())}
    moved: Any = {**site, "store_backend": backend}
    context.update_data_docs_site(site_name=SITE, site_config=moved)
    context.build_data_docs(site_names=[SITE])
    for page in fresh.rglob("*.html"):
        page.write_text(without_network(page.read_text(encoding="utf-8")), encoding="utf-8")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def without_network(page: str) -> str:
    """Return a page without what it would load from others, with a style sheet of its own.

    >>> without_network('<head><link rel="x" href="https://a.example/b.css"><script src="https://a.example/b.js"></script>')
    '<head>'
    """
    kept = _IMPORTED.sub("none", _LOADED.sub("", page))
    return kept.replace("</head>", f"{_STYLE}</head>", 1)
