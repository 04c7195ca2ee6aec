"""Hooks of mkdocs for the site of the documents: they add pages from the project's top folder.

The README is the site's first page. The documents are also read as files of the repository, so
their links are relative to these files. A link to a file that is no page becomes plain text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
"""Files of the top folder, and their places in the site."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the top folder."""
    top = Path(config.docs_dir).parent
    for name, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(top / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's pages."""
    places = {f"docs/{file.src_uri}": file.src_uri for file in files.documentation_pages()} | PAGES
    origins = {place: name for name, place in PAGES.items()}
    here = PurePosixPath(origins.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent

    def rewritten(found: re.Match[str]) -> str:
        image, text, target = found.groups()
        path, mark, anchor = target.partition("#")
        if image or ":" in path or not path:
            return found[0]
        named = os.path.normpath(here / path)
        place = places.get(named) or places.get(f"{named}/README.md")
        if place is None:
            return text
        from_here = os.path.relpath(place, PurePosixPath(page.file.src_uri).parent)
        return f"[{text}]({from_here}{mark}{anchor})"

    return outside_fences(markdown, lambda text: LINK.sub(rewritten, text))


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """The text with `change` applied to all but the fenced blocks."""
    parts = re.split(r"(?ms)^(```.*?^```[ ]*$)", markdown)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))
