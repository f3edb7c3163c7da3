"""Pages without references: markup that escapes by construction, and the frame around it.

Every text goes through `element`, which escapes it; only `Html`, which `element` and `join` make,
is put in as it is. Synthetic texts are written by a model and may hold any markup.

The page forbids scripts and every load by its own content security policy, so it shows the same on
a machine without network and in any mail program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from flower_privsyn.files import replacing
from flower_privsyn.report.scales import NOTHING
from flower_privsyn.report.style import STYLE
from flower_privsyn.runs.run_format import ledger_meta

#: HTML elements that have no content and no end tag.
_VOID = frozenset({"br", "hr", "img", "meta", "link", "col", "wbr"})

#: What HTML text cannot hold, and what UTF-8 cannot: controls, halves of surrogate pairs,
#: non-characters.
_UNWRITABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)

#: Marks that turn the direction of all text after them.
_DIRECTIONS = re.compile("[\u202a-\u202e\u2066-\u2069]")

#: Of a sample card: how many texts are open, and how long a text may be.
_SAMPLES, _SAMPLE_LENGTH = 3, 420

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Html(str):
    """Markup that is safe to put in a page as it is."""

    __slots__ = ()


def escape(text: object) -> Html:
    """A text as markup that shows it; what a page cannot hold becomes U+FFFD.

    Marks that turn the direction of text are dropped, so that a text cannot reorder the page.
    """
    if isinstance(text, Html):
        return text
    clean = _DIRECTIONS.sub("", _UNWRITABLE.sub("\ufffd", str(text)))
    for character, entity in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ('"', "&quot;"),
        ("'", "&#39;"),
    ):
        clean = clean.replace(character, entity)
    return Html(clean)


Child = str | int | float | None
"""What an element may hold: text, which is escaped, markup, or nothing."""


def element(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """One element with its children.

    Args:
        name: of the element.
        children: `Html` goes in as it is, None is left out, anything else is escaped.
        attributes: `class_` for `class`, underscores for hyphens; None and False are left out, True
            gives the bare name.
    """
    written = []
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        written.append(f" {key}" if value is True else f' {key}="{escape(value)}"')
    start = f"<{name}{''.join(written)}>"
    return Html(start) if name in _VOID else Html(f"{start}{join(children)}</{name}>")


def join(parts: Iterable[Child], separator: str = "") -> Html:
    """Parts one after the other; None is left out, what is not markup is escaped."""
    return Html(separator.join(escape(part) for part in parts if part is not None))


def table(
    caption: Child,
    columns: Sequence[Child],
    rows: Iterable[Sequence[Child]],
    *,
    text_columns: Sequence[int] = (0,),
    note: Child = None,
) -> Html:
    """A table that scrolls inside its own frame where the screen is too narrow for it.

    Args:
        caption: what the table shows; a table without one would be a grid of numbers.
        columns: their headings.
        rows: cells; None is shown as a dash. The first cell of a row is its heading.
        text_columns: which hold words, set flush left; all others hold figures.
        note: a line under the caption.
    """
    words = set(text_columns)

    def cell(name: str, index: int, value: Child, **attributes: str) -> Html:
        kind = "words" if index in words else None
        return element(name, NOTHING if value is None else value, class_=kind, **attributes)

    head = element("tr", *[cell("th", i, c, scope="col") for i, c in enumerate(columns)])
    body = [
        element(
            "tr",
            *[
                cell("th", 0, value, scope="row") if i == 0 else cell("td", i, value)
                for i, value in enumerate(row)
            ],
        )
        for row in rows
    ]
    title = element("caption", caption, None if note is None else element("small", note))
    inner = element("table", title, element("thead", head), element("tbody", *body))
    return element(
        "div", inner, class_="scroll", tabindex=0, role="region", aria_label=_words(caption)
    )


def facts(pairs: Iterable[tuple[Child, Child]]) -> Html:
    """Names with their values, as a description list; pairs without a value are left out."""
    return element(
        "dl",
        *[
            element("div", element("dt", name), element("dd", value))
            for name, value in pairs
            if value is not None
        ],
        class_="facts",
    )


def details(summary: Child, *content: Child, open_: bool = False) -> Html:
    """Content that is folded away until asked for."""
    return element("details", element("summary", summary), *content, open=open_)


def figure(
    charts: Child,
    *,
    caption: Child,
    stamp: str | None,
    legend: Child = None,
    data: Child = None,
    split: bool = False,
) -> Html:
    """A chart with what it shows, how to read it, and its figures in a table.

    Args:
        charts: one or more pictures.
        caption: what is drawn, with units.
        stamp: shown under the caption where private figures went in; None for public ones.
        legend: marks with their names.
        data: the table of the figures drawn.
        split: on a wide screen, put the caption beside the chart.
    """
    said = element(
        "figcaption",
        element("p", caption),
        None if stamp is None else stamp_line(stamp),
        legend,
    )
    folded = None if data is None else details("The figures of this chart", data)
    picture = element("div", charts, class_="charts")
    return element("figure", picture, said, folded, class_="split" if split else None)


def stamp_line(stamp: str) -> Html:
    """The stamp, near a single chart or table."""
    return element("p", stamp, class_="stamp")


def banner(stamp: str, explanation: Child) -> Html:
    """The stamp at the top of a page, with what it means."""
    return element(
        "div", element("strong", stamp), element("p", explanation), class_="banner", role="note"
    )


def section(heading: str, *content: Child, lead: Child = None) -> Html:
    """A part of the page with its heading."""
    identifier = slug(heading)
    return element(
        "section",
        element("h2", heading, id=identifier),
        None if lead is None else element("p", lead, class_="lead"),
        *content,
        aria_labelledby=identifier,
    )


def sample_card(
    title: str, texts: Sequence[str], *, note: str | None = None, sign: Html | None = None
) -> Html:
    """Texts of one source under its name, the first few open.

    Args:
        title: the source.
        texts: at least one.
        note: a smaller line under the title.
        sign: stands before the title.
    """
    small = None if note is None else element("small", note)
    quotes = [element("blockquote", shortened(text, _SAMPLE_LENGTH), dir="auto") for text in texts]
    more = None
    if len(quotes) > _SAMPLES:
        more = details(f"{len(quotes) - _SAMPLES} more", *quotes[_SAMPLES:])
    return element("article", element("h3", sign, title, small), *quotes[:_SAMPLES], more)


def slug(text: str) -> str:
    """A text as an identifier: lower case, letters and digits joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def shortened(text: str, length: int) -> str:
    """A text, cut at a word where it is longer than `length` characters."""
    if len(text) <= length:
        return text
    cut = text[:length]
    head, space, _ = cut.rpartition(" ")
    return f"{head if space and len(head) > length // 2 else cut} …"


def document(
    title: str,
    *content: Child,
    description: str,
    footer: Child = None,
    ledger: str | None = None,
) -> Html:
    """The whole page.

    Args:
        title: of the window and of what a browser saves.
        content: of `<main>`.
        description: for whoever lists the page.
        footer: its last lines.
        ledger: digest of the ledger's last line, for `run_format.stated_digests`.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="description", content=description),
        None if ledger is None else Html(ledger_meta(ledger)),
        element("title", title),
        element("style", Html(STYLE)),
    )
    body = element(
        "body", element("main", *content), None if footer is None else element("footer", footer)
    )
    return Html(f"<!doctype html>\n{element('html', head, body, lang='en')}\n")


def write_page(page: Html, path: Path) -> None:
    """Write a page as a whole: a reader finds the old one or the new one."""
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _words(markup: Child) -> str:
    """The text of a caption without its markup, for readers that do not show it."""
    text = str(markup)
    return re.sub(r"<[^>]*>", "", text) if isinstance(markup, Html) else text
