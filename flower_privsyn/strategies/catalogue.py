"""The one list of methods: names, titles, papers, and where their code is.

Everything that names a method reads it here: the command line, comparisons, reports, costs and the
tables of the documentation. Classes are references, "module:name", until somebody asks for them.

A method from outside the package is an entry point of the group `flower_privsyn.strategies`, named
as settings name the method, that loads a `CatalogueEntry`:

    # pyproject.toml of the other distribution
    [project.entry-points."flower_privsyn.strategies"]
    text-lengths = "text_lengths:ENTRY"

    # text_lengths.py
    ENTRY = CatalogueEntry(
        name="text-lengths",
        title="histogram of text lengths",
        kind="synthetic text",
        queries=("text_lengths",),
        strategy="text_lengths:TextLengths",
    )

One that cannot be loaded, or whose name is taken, is left out and `refusals` says why; the others
are not touched by it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from flower_privsyn.errors import ConfigError

#: Group of the entry points that add methods.
GROUP: Final = "flower_privsyn.strategies"

Kind = Literal[
    "public text",
    "synthetic text",
    "chosen text",
    "on-device training",
    "distances",
    "local text",
    "private text",
]
#: Kinds of method that end with the model itself, and not with text for one to learn from.
OF_MODELS: Final[frozenset[Kind]] = frozenset({"chosen text", "on-device training"})

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class ComparedMethod:
    """One way from users' text to a model, or the lack of one: a line of a comparison.

    Attributes:
        name: as on the command line.
        title: as in a table.
        kind: "public text": sees no private text (epsilon 0); "synthetic text": writes text on
            which a downstream model is fine-tuned; "chosen text": trains the model at the server on
            public text that a release chose; "on-device training": trains the model on the
            nodes; "distances": says how near sets of text are, and is no way to a model by itself;
            "local text": uses what owners have made of their text under a local epsilon of
            its own, which no budget of a run compares with; "private text": uses the text itself,
            without privacy (epsilon infinity).
        seeded: whether its result depends on the seed.
        by_default: whether a comparison that names no methods has it.
    """

    name: str
    title: str
    kind: Kind
    seeded: bool = True
    by_default: bool = True

    def __post_init__(self) -> None:
        """Refuse what no table could show."""
        if self.kind not in get_args(Kind):
            raise ConfigError(
                f"the kind of {self.name} must be one of {', '.join(get_args(Kind))}, "
                f"got {self.kind!r}"
            )

    @property
    def trains_student(self) -> bool:
        """Whether it ends with the model itself, and not with text for one to learn from."""
        return self.kind in OF_MODELS

    @property
    def asks_users(self) -> bool:
        """Whether it has runs, whose ledgers say what they spent; the others are references."""
        return self.kind in ("synthetic text", "chosen text", "on-device training", "distances")


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry(ComparedMethod):
    """A strategy that settings can name with the key `strategy`.

    Its name is of lower-case words joined by hyphens.

    Attributes:
        strategy: reference to the strategy, a `PrivateSumStrategy`.
        queries: names of the queries it asks, the first in every run, unless settings have
            another one asked in its place.
        papers: where it was published, as "Hou et al., ICML 2025", the first above all; none for
            a method of this package.
    """

    strategy: str
    queries: tuple[str, ...]
    papers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse names that settings cannot hold and references that name nothing."""
        super().__post_init__()
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                "the name of a method must be lower-case words joined by hyphens, "
                f"got {self.name!r}"
            )
        if not _REFERENCE.fullmatch(self.strategy):
            raise ConfigError(
                f'the strategy of {self.name} must be "module:name", got {self.strategy!r}'
            )

    @property
    def paper(self) -> str:
        """Its papers in one line; where there is none, whose method it is."""
        home = re.split("[.:]", self.strategy)[0]
        whose = "of this package" if home == "flower_privsyn" else f"of {home}"
        return "; ".join(self.papers) or whose

    def classes(self) -> tuple[type[Any], type[Any]]:
        """Load its settings and its strategy."""
        strategy = resolved(self.strategy)
        return strategy.config_class, strategy

    def to_dict(self) -> dict[str, str]:
        """What `privsyn methods --json` prints of it."""
        return {
            "name": self.name,
            "title": self.title,
            "kind": self.kind,
            "paper": self.paper,
            "query": ", ".join(self.queries),
        }


_STRATEGIES = "flower_privsyn.strategies"
#: In the order of a table, from the floor to the ceiling.
_BUILT_IN: Final[tuple[ComparedMethod, ...]] = (
    ComparedMethod(
        name="public-only",
        title="public model",
        kind="public text",
        seeded=False,
    ),
    ComparedMethod(
        name="expand-only",
        title="public text, expanded",
        kind="public text",
    ),
    ComparedMethod(
        name="random-public",
        title="public text, at random",
        kind="public text",
    ),
    ComparedMethod(
        name="distill-public",
        title="the same, distilled",
        kind="public text",
    ),
    CatalogueEntry(
        name="private-evolution",
        title="private evolution",
        kind="synthetic text",
        strategy=f"{_STRATEGIES}.private_evolution:PrivateEvolution",
        queries=("nearest_neighbor_histogram",),
        papers=("Hou et al., ICML 2024 (PrE-Text)", "Lin et al. 2023"),
    ),
    ComparedMethod(
        name="pre-text",
        title="PrE-Text",
        kind="synthetic text",
    ),
    CatalogueEntry(
        name="aug-pe",
        title="Aug-PE",
        kind="synthetic text",
        strategy=f"{_STRATEGIES}.aug_pe:AugPE",
        queries=("nearest_neighbor_histogram", "labelled_histogram"),
        papers=("Xie et al., ICML 2024",),
    ),
    ComparedMethod(
        name="pe-sft",
        title="PE + SFT",
        kind="synthetic text",
    ),
    CatalogueEntry(
        name="popri",
        title="POPri",
        kind="synthetic text",
        strategy=f"{_STRATEGIES}.popri:POPri",
        queries=("mean_similarity",),
        papers=("Hou et al., ICML 2025",),
    ),
    CatalogueEntry(
        name="joint-sketch",
        title="joint sketch",
        kind="chosen text",
        strategy=f"{_STRATEGIES}.joint_sketch:JointSketch",
        queries=("joint_sketch",),
    ),
    CatalogueEntry(
        name="ctcl",
        title="CTCL",
        kind="synthetic text",
        strategy=f"{_STRATEGIES}.ctcl:CTCL",
        queries=("nearest_neighbor_histogram", "conditional_delta"),
        papers=("Tan et al. 2025",),
    ),
    CatalogueEntry(
        name="dp-fedavg",
        title="DP-FedAvg",
        kind="on-device training",
        strategy=f"{_STRATEGIES}.dp_fedavg:DPFedAvg",
        queries=("model_delta",),
        papers=("McMahan et al., ICLR 2018", "Andrew et al., NeurIPS 2021"),
    ),
    CatalogueEntry(
        name="dp-ftrl",
        title="DP-FTRL",
        kind="on-device training",
        strategy=f"{_STRATEGIES}.dp_ftrl:DPFTRL",
        queries=("model_delta",),
        papers=("Kairouz et al., ICML 2021", "Dvijotham et al. 2024"),
    ),
    CatalogueEntry(
        name="hybrid",
        title="hybrid",
        kind="on-device training",
        strategy=f"{_STRATEGIES}.hybrid:Hybrid",
        queries=("joint_sketch", "model_delta"),
    ),
    CatalogueEntry(
        name="public-mid-training",
        title="public mid-training",
        kind="on-device training",
        strategy=f"{_STRATEGIES}.public_mid_training:PublicMidTraining",
        queries=("model_delta",),
        papers=("Wang et al., NAACL 2024",),
        by_default=False,
    ),
    CatalogueEntry(
        name="fred",
        title="FreD",
        kind="distances",
        strategy=f"{_STRATEGIES}.fred:FreD",
        queries=("moments",),
        papers=("Hou et al. 2023",),
        by_default=False,
    ),
    ComparedMethod(
        name="dp-prompt",
        title="DP-Prompt",
        kind="local text",
        by_default=False,
    ),
    ComparedMethod(
        name="expand-private",
        title="private text, expanded, no privacy",
        kind="private text",
        by_default=False,
    ),
    ComparedMethod(
        name="finetune-private",
        title="private text, no privacy",
        kind="private text",
    ),
)


def entries() -> Mapping[str, CatalogueEntry]:
    """Every strategy that settings can name, by name: the package's, then those from outside."""
    return MappingProxyType(
        {name: entry for name, entry in compared().items() if isinstance(entry, CatalogueEntry)}
    )


@cache
def compared() -> Mapping[str, ComparedMethod]:
    """Everything that tables and pictures show, by name, from the floor to the ceiling.

    The strategies, the papers' settings of them, and what they are compared with.
    """
    *others, ceiling = _BUILT_IN
    return MappingProxyType({entry.name: entry for entry in (*others, *_outside()[0], ceiling)})


def refusals() -> tuple[str, ...]:
    """Why methods of other distributions were left out: a sentence each."""
    return _outside()[1]


def resolved(reference: str) -> Any:
    """What a reference "module:name" names, loaded."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


@cache
def _outside() -> tuple[tuple[CatalogueEntry, ...], tuple[str, ...]]:
    """Methods of other distributions, and why some were left out."""
    points = sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)
    names = Counter(point.name for point in points)
    taken = {entry.name for entry in _BUILT_IN}
    found, refused = [], []
    for point in points:
        try:
            if point.name in taken:
                raise ConfigError("flower-privsyn has a method of that name")
            if names[point.name] > 1:
                # Which of them a run is of must not depend on the order of a path.
                raise ConfigError("another distribution has a method of that name")
            found.append(_loaded(point))
        except Exception as error:  # whatever a module of somebody else may raise
            owner = point.dist.name if point.dist is not None else "unknown"
            kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
            refused.append(
                f'The method "{point.name}" of the distribution {owner} is left out: {kind}{error}.'
            )
    return tuple(found), tuple(refused)


def _loaded(point: metadata.EntryPoint) -> CatalogueEntry:
    entry = point.load()
    if not isinstance(entry, CatalogueEntry):
        raise ConfigError(f"{point.value} is a {type(entry).__name__} and no CatalogueEntry")
    if entry.name != point.name:
        raise ConfigError(f'its entry calls itself "{entry.name}"')
    cls, base = (
        resolved(entry.strategy),
        resolved("flower_privsyn.run.strategy:PrivateSumStrategy"),
    )
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ConfigError(f"{entry.strategy} is no {base.__name__}")
    return entry
