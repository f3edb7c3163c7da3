"""A page as a browser reads it, for tests that ask what is on it."""

from __future__ import annotations

import base64
import itertools
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = frozenset({"meta", "link", "br", "hr", "img", "col", "wbr", "input"})


@dataclass
class Node:
    """An element with what is in it."""

    name: str
    attributes: dict[str, str | None]
    children: list[Node | str] = field(default_factory=list)

    def all(self, name: str) -> list[Node]:
        """The elements of a name inside, in the order of the page."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                found += ([child] if child.name == name else []) + child.all(name)
        return found

    def every(self) -> list[Node]:
        """All elements inside."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                found += [child, *child.every()]
        return found

    def with_class(self, word: str) -> list[Node]:
        """The elements inside that have a class."""
        return [n for n in self.every() if word in (n.attributes.get("class") or "").split()]

    @property
    def text(self) -> str:
        """The words inside, spaces as one."""
        words = "".join(c if isinstance(c, str) else f" {c.text} " for c in self.children)
        return re.sub(r"\s+", " ", words).strip()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node("page", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> names an attribute twice"
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(page: str) -> Node:
    """Parse a page; every element must be closed where it belongs."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].name}> is not closed"
    return reader.open[0]


ALLOWED = set(
    "html head meta title style body main footer section h1 h2 h3 p strong small span code div dl "
    "dt dd ul li table caption thead tbody tr th td figure figcaption details summary article "
    "blockquote img".split()
)


def check(page: str) -> Node:
    """What must hold for every page, whatever it shows."""
    root = read(page)
    elements = root.every()
    assert {node.name for node in elements} <= ALLOWED
    for node in elements:
        assert not {"href", "srcset", "action", "data", "style"} & set(node.attributes)
        if node.name == "img":
            assert node.attributes["alt"]
        inside = "data:image/svg+xml;base64,"
        assert (node.attributes.get("src") or inside).startswith(inside)
        assert not [name for name in node.attributes if name.startswith(("on", "xlink"))]
    assert not re.search(r"url\(|@import|://", page)
    policy = next(n for n in root.all("meta") if "http-equiv" in n.attributes)
    assert "default-src 'none'" in (policy.attributes["content"] or "")

    identifiers = [node.attributes["id"] for node in elements if "id" in node.attributes]
    assert len(identifiers) == len(set(identifiers))
    for node in elements:
        for name in (node.attributes.get("aria-labelledby") or "").split():
            assert name in identifiers
    for table in root.all("table"):
        assert table.all("caption")
        assert len({len(row.all("th") + row.all("td")) for row in table.all("tr")}) == 1
    levels = [int(n.name[1]) for n in elements if n.name in ("h1", "h2", "h3")]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise([1, *levels]))
    return root


def headings(page: Node) -> list[str]:
    """Of the parts of a page."""
    return [n.text for n in page.all("h2")]


def part(page: Node, heading: str) -> Node:
    """The part of a page under a heading."""
    (found,) = [s for s in page.all("section") if s.all("h2")[0].text == heading]
    return found


def rows(node: Node, caption: str) -> list[list[str]]:
    """The cells of the table whose caption begins so."""
    (found,) = [t for t in node.all("table") if t.all("caption")[0].text.startswith(caption)]
    body = found.all("tbody")[0]
    return [[c.text for c in row.every() if c.name in ("th", "td")] for row in body.all("tr")]


def pictures(node: Node) -> list[str]:
    """The words in each of the images, beginning with what it shows."""
    found = []
    for image in node.all("img"):
        data = (image.attributes["src"] or "").partition(",")[2]
        words = ElementTree.fromstring(base64.b64decode(data)).itertext()
        found.append(" ".join([image.attributes["alt"] or "", *" ".join(words).split()]))
    return found
