"""Pages of the site for what lies outside docs/: the front page, READMEs, source that is linked.

A link of a page of docs/ may lead to any file of the repository, as on GitHub. On the site each
such file has a page, too, and so has what those pages link to.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from scripts.docs_site import notebooks

#: Pages of docs/ and of the repository that the site has elsewhere, by path in the repository.
PLACES = {"README.md": "index.md", "docs/README.md": "all_pages.md"}

# A fence ends with one as long or longer, a span with as many backticks: between them are fewer.
_CODE = re.compile(
    r"^ *(`{3,})[^`\n]*\n.*?^ *\1`* *$|(?<!`)(`+)(?!`)[^\n]+?(?<!`)\2(?!`)",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\(([^()\s]+)\)")


def page_of(path: str, root: Path) -> str:
    """Where the site has a file or folder of the repository.

    Args:
        path: from the root of the repository, with forward slashes.
        root: the repository.

    Returns:
        The path of the page's Markdown from docs/.
    """
    path = posixpath.normpath(path)
    if (root / path).is_dir():
        path = posixpath.join(path, "README.md")
    if path in PLACES:
        return PLACES[path]
    inside = path.removeprefix("docs/")
    if inside != path:
        return inside
    if path.endswith(".ipynb"):
        return f"notebooks/{posixpath.basename(path).removesuffix('.ipynb')}.md"
    return f"repository/{path.removesuffix('.md')}.md"


def map_links(text: str, replace: Callable[[str], str]) -> str:
    """Markdown with every relative link replaced, code aside."""

    def outside_code(part: str) -> str:
        def new(match: re.Match[str]) -> str:
            link = match[1]
            return match[0] if re.match(r"[a-z]+:|#", link) else f"]({replace(link)})"

        return _LINK.sub(new, part)

    done, parts = 0, []
    for code in _CODE.finditer(text):
        parts += [outside_code(text[done : code.start()]), code[0]]
        done = code.end()
    return "".join([*parts, outside_code(text[done:])])


def for_site(text: str, path: str, root: Path) -> str:
    """Markdown of a file of the repository, its links leading to pages of the site.

    Args:
        text: the file, or what the site shows of it.
        path: the file, from the root of the repository.
        root: the repository.
    """
    folder, page = posixpath.dirname(path), posixpath.dirname(page_of(path, root))

    def moved(link: str) -> str:
        target, hash_sign, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(folder, target))
        return posixpath.relpath(page_of(target, root), page or ".") + hash_sign + anchor

    return map_links(text, moved)


def linked(text: str, path: str, root: Path) -> set[str]:
    """Files and folders of the repository, outside docs/, to which a page links.

    A folder with a README is that README.
    """
    found: set[str] = set()

    def keep(link: str) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link.split("#")[0]))
        if (root / target / "README.md").exists():
            target = posixpath.join(target, "README.md")
        if not target.startswith("docs/"):
            found.add(target)
        return link

    map_links(text, keep)
    return found


def shown(path: str, root: Path) -> str:
    """Markdown of a file or folder: itself, its code, or the names of what it holds."""
    file = root / path
    quiet = "---\nsearch:\n  exclude: true\n---\n\n"
    if file.is_dir():
        names = sorted(entry.name for entry in file.iterdir() if not entry.name.startswith("_"))
        return quiet + f"# {path}\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    if file.suffix == ".ipynb":
        return notebooks.page(text)
    language = {".py": "python", ".toml": "toml", ".yaml": "yaml"}.get(file.suffix, "text")
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return quiet + f"# {path}\n\n{fence}{language}\n{text}{fence}\n"
