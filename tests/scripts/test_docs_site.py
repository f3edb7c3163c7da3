"""The site of the documentation: navigation, links and the API reference, without building it."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

import flower_privsyn
from scripts.docs_site import navigation, reference, repository

ROOT = Path(__file__).parents[2]
LISTED = navigation.sections((ROOT / "docs" / "README.md").read_text("utf-8"))

#: Modules with public names that load PyTorch, which a look at their names is not worth.
_HEAVY = {"flower_privsyn.models.biased", "flower_privsyn.models.lstm"}


@pytest.fixture(scope="module")
def source() -> reference.Source:
    return reference.Source(ROOT)


def test_every_page_is_in_the_navigation_once_and_nothing_else() -> None:
    links = [link for entries in LISTED.values() for _, link in entries]
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    notes = {f"../{note.relative_to(ROOT)}" for note in ROOT.glob("flower_privsyn/**/*.ipynb")}
    assert len(links) == len(set(links))
    assert pages | notes <= set(links)
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []


def test_every_public_name_has_a_page(source: reference.Source) -> None:
    exported = source.exports()
    packages = [
        f"flower_privsyn.{module.name}" for module in pkgutil.iter_modules(flower_privsyn.__path__)
    ]
    for name in {"flower_privsyn", *packages, *exported} - _HEAVY:
        module = importlib.import_module(name)
        assert exported.get(name, []) == list(getattr(module, "__all__", [])), name
    pages = reference.pages(source)
    listed = reference.public_names(source)
    for module_name, names in exported.items():
        index = pages[f"{reference.folder_of(module_name)}/index.md"]
        for name in set(names) - {"__version__"}:
            (entry,) = (n for n in listed if n.name == name and module_name in n.modules)
            assert f"::: {entry.home}.{name}\n" in pages[entry.page]
            assert f"[`{name}`](" in index
    assert len(pages) == len({page.lower() for page in pages})  # also where case is ignored


def test_links_lead_to_pages_of_the_site() -> None:
    rest = "[c](evidence.md) [d](https://x.org) `[e](f)`\n```\n[g](h)\n```\n[i](#j)"
    assert repository.for_site(f"[a](../README.md#b) {rest}", "docs/evidence.md", ROOT) == (
        f"[a](index.md#b) {rest}"
    )
    assert repository.for_site("[a](docs/README.md) [b](baselines/popri)", "README.md", ROOT) == (
        "[a](all_pages.md) [b](repository/baselines/popri/README.md)"
    )
    assert repository.for_site("[a](../../docs/evidence.md)", "baselines/fred/README.md", ROOT) == (
        "[a](../../../evidence.md)"
    )
    assert repository.linked("[a](../baselines/popri) [b](evidence.md)", "docs/x.md", ROOT) == {
        "baselines/popri/README.md"
    }


@pytest.mark.parametrize("code", ["`{}`", "`` ` {} ` ``", "```\n{}\n```", "````x\n```\n{}\n````"])
def test_what_looks_like_a_link_in_code_is_none(code: str) -> None:
    text = "[a](b.md)\n" + code.format("[c](value)") + "\n[d](e.md)"
    assert repository.linked(text, "x.md", ROOT) == {"b.md", "e.md"}
