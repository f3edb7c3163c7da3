"""What MkDocs calls while it builds the site (mkdocs.yml)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from mkdocs.structure.files import File, Files  # noqa: E402

from scripts.docs_site import navigation, reference, repository  # noqa: E402


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made: of files outside docs/ and of the API reference."""
    files.remove(files.src_uris["README.md"])
    wait = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    wait += repository.PLACES
    done: set[str] = set()
    while wait:
        path = wait.pop()
        if path in done:
            continue
        done.add(path)
        text = repository.shown(path, ROOT)
        wait += repository.linked(text, path, ROOT)
        if path in repository.PLACES or not path.startswith("docs/"):
            uri = repository.page_of(path, ROOT)
            content = repository.for_site(text, path, ROOT)
            files.append(File.generated(config, uri, content=content))
    source = reference.Source(ROOT)
    for uri, text in reference.pages(source).items():
        files.append(File.generated(config, uri, content=text))
    config.nav = _navigation(source)
    return files


def _navigation(source: reference.Source) -> list[Any]:
    """Front page, the sections of docs/README.md, the API reference."""
    listed = navigation.sections((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    nav: list[Any] = [{"flower-privsyn": "index.md"}, {"All pages": "all_pages.md"}]
    nav += [
        {title: [{name: repository.page_of(f"docs/{link}", ROOT)} for name, link in entries]}
        for title, entries in listed.items()
    ]
    names = reference.public_names(source)
    modules: list[Any] = []
    for module in source.exports():
        first = [{name.name: name.page} for name in names if name.modules[0] == module]
        modules.append({module: [f"{reference.folder_of(module)}/index.md", *first]})
    return [*nav, {"API reference": modules}]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links of the pages of docs/ lead to the pages of the site."""
    if page.file.generated_by is not None:
        return markdown
    return repository.for_site(markdown, f"docs/{page.file.src_uri}", ROOT)
