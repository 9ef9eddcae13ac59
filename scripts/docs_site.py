"""Hooks of mkdocs.yml: pages that lie outside of docs/, and links that lead out of it.

A page of the repository that is in the site is linked there; what is not, such as code, is named instead.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages beside docs/, and what they are called in the site."""
NOT_IN_SITE = ("examples/", "schema/")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:  # noqa: ANN401 - of mkdocs
    """Give headings the anchors that GitHub gives them, as links in the pages expect."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401
    """Add the pages beside docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - only `make docs` has it

    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401
    """Lead the links of a page to where their targets are in the site."""
    names = {name: source for source, name in PAGES.items()}
    source = names.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return LINK.sub(lambda found: link_in_site(found[0], found[1], found[2], found[3] or "", source), markdown)


def link_in_site(whole: str, text: str, target: str, anchor: str, source: str) -> str:
    """Return a link as it is in the site.

    >>> link_in_site("", "[client]", "docs/client.md", "#leases", "README.md")
    '[[client]](client.md#leases)'
    >>> link_in_site("", "`rows.py`", "../../connectors/delta/rows.py", "", "docs/adr/0011.md")
    '`rows.py`'
    """
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    place = posixpath.dirname(source.removeprefix("docs/")) if source.startswith("docs/") else ""
    if path in PAGES:
        return f"[{text}]({posixpath.relpath(PAGES[path], place or '.')}{anchor})"
    inside = path.removeprefix("docs/")
    if not path.startswith("docs/") or inside.startswith(NOT_IN_SITE) or not inside.endswith(".md"):
        return text if not target.startswith("<") else whole
    return f"[{text}]({posixpath.relpath(inside, place or '.')}{anchor})"


def slug(text: str, separator: str) -> str:
    """Return the anchor of a heading.

    >>> slug("`popstream why`, and a lane", "-")
    'popstream-why-and-a-lane'
    """
    return re.sub(r"[^\w\s-]", "", text.strip().lower()).replace(" ", separator)
