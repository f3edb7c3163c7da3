"""From matplotlib to a page: settings to draw with, and the SVG as an element of HTML.

Text stays text, and every colour is a variable of the style sheet, so that a figure follows the
reader's dark or light screen. Matplotlib is loaded when the first figure is drawn.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

#: Variables of the style sheet: colours of methods, then the ink of the page and its shades.
#: Matplotlib draws in stand-ins, which tell the number of the variable.
_VARIABLES = [*[f"c{number}" for number in range(8)], "ink", "muted", "grid", "paper"]
_STAND_IN = "#0101"

#: What is kept of the styles and attributes that matplotlib writes.
_STYLES = (
    "fill",
    "stroke",
    "stroke-width",
    "stroke-dasharray",
    "stroke-linecap",
    "opacity",
    "fill-opacity",
    "stroke-opacity",
    "font-size",
    "text-anchor",
)
_ATTRIBUTES = ("d", "x", "y")

_DECIMALS = re.compile(r"-?\d+\.\d+")
_DOT = re.compile(r"M (\S+ \S+) L \1(?: |$)")
_MOVED = re.compile(r"translate\(\S+ \S+\)")
_REFERENCE = "{http://www.w3.org/1999/xlink}href"


def colour(number: int) -> str:
    """The stand-in for the colour of a method.

    Args:
        number: 0 to 7; 6 is the ink of the page and 7 its grey.
    """
    return f"{_STAND_IN}{number:02x}"


INK, MUTED, GRID, PAPER = (colour(_VARIABLES.index(name)) for name in _VARIABLES[8:])

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text that can be selected, searched and read aloud
    "svg.hashsalt": "flower-privsyn",
    "text.parse_math": False,  # a "$" in the name of a method is a "$"
    "path.simplify": False,
    "figure.dpi": 72,  # a point is a pixel
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-9, 9),
    "xaxis.labellocation": "left",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": GRID,
    "text.color": INK,
    "font.size": 11.5,
    "figure.titlesize": 11.5,
    "legend.frameon": False,
    "legend.fontsize": 12.5,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0,
    "lines.linewidth": 2,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib as a page needs it, whatever its user has set, for the length of a page."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader's font may have what the one measured lacks
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def embedded(
    figure: Figure,
    title: str = "",
    description: str = "",
    identifier: str = "",
    tips: Mapping[str, str] | None = None,
) -> Markup:
    """What matplotlib drew as an element of a page: no references, no styles, no foreign names.

    Args:
        figure: drawn.
        title: "" for a picture that says nothing, as a mark before a name.
        description: what can be seen.
        identifier: unique on the page.
        tips: tooltips by the `gid` of what they belong to.
    """
    from markupsafe import Markup

    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    source = ElementTree.fromstring(file.getvalue())
    root = ElementTree.Element("svg", {"viewBox": source.attrib["viewBox"]})
    if title:
        root.set("role", "img")
        root.set("aria-labelledby", f"{identifier}-title {identifier}-desc")
        for name, text in (("title", title), ("desc", description)):
            ElementTree.SubElement(root, name, {"id": f"{identifier}-{name}"}).text = text
    else:
        root.set("aria-hidden", "true")
    shapes = {f"#{node.get('id')}": node for node in source.iter() if _name(node) == "path"}
    _copy(source, root, shapes, tips or {}, "")
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _name(node: ElementTree.Element) -> str:
    return node.tag.rpartition("}")[2]


def _copy(
    node: ElementTree.Element,
    root: ElementTree.Element,
    shapes: Mapping[str, ElementTree.Element],
    tips: Mapping[str, str],
    tip: str,
) -> None:
    """Put paths and texts under the root, with attributes in place of styles and references."""
    tip = tips.get(node.get("id", ""), tip)
    name = _name(node)
    if name in ("svg", "g"):
        for child in node:
            _copy(child, root, shapes, tips, tip)
    if name not in ("path", "text", "use"):
        return
    used = name == "use"
    shape = shapes[node.attrib[_REFERENCE]] if used else node
    style = "; ".join(part.get("style", "") for part in (shape, node))
    declared = dict(part.split(": ", 1) for part in style.split("; ") if part)
    attributes = {key: _value(declared[key]) for key in _STYLES if key in declared}
    attributes |= {key: _short(shape.attrib[key]) for key in _ATTRIBUTES if key in shape.attrib}
    moved = f"translate({node.get('x')} {node.get('y')})" if used else node.get("transform", "")
    if _MOVED.fullmatch(moved):
        attributes["transform"] = _short(moved)
    copied = ElementTree.SubElement(root, "text" if name == "text" else "path", attributes)
    if name == "text":
        copied.text = node.text
    elif tip:
        ElementTree.SubElement(copied, "title").text = tip


def _value(value: str) -> str:
    """The value of a style; the variable of the style sheet for its stand-in."""
    if value.startswith(_STAND_IN):
        return f"var(--{_VARIABLES[int(value.removeprefix(_STAND_IN), 16)]})"
    return value.removesuffix("px")


def _short(text: str) -> str:
    """Numbers in pixels with two decimals at most, and lines of no length without their end."""
    text = " ".join(text.split())
    text = _DECIMALS.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), text)
    return _DOT.sub(r"M\1h0", text)
