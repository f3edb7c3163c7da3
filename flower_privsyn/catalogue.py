"""The one list of methods: names, titles, papers and classes; and strategies by name.

Everything that names a method reads it here: the command line, comparisons, reports, costs, the
tables of the documentation, and apps in which the run configuration chooses the method.

A method from outside the package is named by its class, as `strategy = "my_package:MyMethod"`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, Literal

from flower_privsyn.errors import ConfigError
from flower_privsyn.run_config import unfolded

if TYPE_CHECKING:
    from flower_privsyn.run.settings import PrivateSumConfig
    from flower_privsyn.run.strategy import PrivateSumStrategy

Kind = Literal[
    "public text",
    "synthetic text",
    "chosen text",
    "on-device training",
    "distances",
    "local text",
    "private text",
]


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """One way from users' text to a model, or the lack of one: a line of a comparison.

    Attributes:
        name: as on the command line; of a strategy, as settings name it with the key `strategy`.
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
        import_path: of the strategy, as "module:Class"; its settings are its `config_class`. ""
            for a paper's settings of another one, and for what asks nobody.
        paper: where the strategy was published, as "Hou et al., ICML 2025"; else whose it is.
    """

    name: str
    title: str
    kind: Kind
    seeded: bool = True
    by_default: bool = True
    import_path: str = ""
    paper: str = ""

    @property
    def asks_users(self) -> bool:
        """Whether it has runs, whose ledgers say what they spent; the others are references."""
        return self.kind in ("synthetic text", "chosen text", "on-device training", "distances")

    @cached_property
    def strategy(self) -> type[PrivateSumStrategy]:
        """The strategy, imported when it is first asked for: a list of methods needs no Flower."""
        found: type[PrivateSumStrategy] = resolve_name(self.import_path)
        return found


_OURS = "of this package"
#: In the order of a table, from the floor to the ceiling.
_BUILT_IN: Final[tuple[CatalogueEntry, ...]] = (
    CatalogueEntry(name="public-only", title="public model", kind="public text", seeded=False),
    CatalogueEntry(name="expand-only", title="public text, expanded", kind="public text"),
    CatalogueEntry(name="random-public", title="public text, at random", kind="public text"),
    CatalogueEntry(name="distill-public", title="random text, distilled", kind="public text"),
    CatalogueEntry(
        name="told-domain",
        title="text of the writer, told the domain",
        kind="public text",
        seeded=False,
    ),
    CatalogueEntry(
        name="prompt-chosen",
        title="public text, chosen by the writer's",
        kind="public text",
        seeded=False,
    ),
    CatalogueEntry(
        name="private-evolution",
        title="private evolution",
        kind="synthetic text",
        import_path="flower_privsyn.strategies.private_evolution:PrivateEvolution",
        paper="Hou et al., ICML 2024 (PrE-Text); Lin et al. 2023",
    ),
    CatalogueEntry(name="pre-text", title="PrE-Text", kind="synthetic text"),
    CatalogueEntry(
        name="aug-pe",
        title="Aug-PE",
        kind="synthetic text",
        import_path="flower_privsyn.strategies.aug_pe:AugPE",
        paper="Xie et al., ICML 2024",
    ),
    CatalogueEntry(name="pe-sft", title="PE + SFT", kind="synthetic text"),
    CatalogueEntry(
        name="popri",
        title="POPri",
        kind="synthetic text",
        import_path="flower_privsyn.strategies.popri:POPri",
        paper="Hou et al., ICML 2025",
    ),
    CatalogueEntry(
        name="joint-sketch",
        title="joint sketch",
        kind="chosen text",
        import_path="flower_privsyn.strategies.joint_sketch:JointSketch",
        paper=_OURS,
    ),
    CatalogueEntry(
        name="ctcl",
        title="CTCL",
        kind="synthetic text",
        import_path="flower_privsyn.strategies.ctcl:CTCL",
        paper="Tan et al. 2025",
    ),
    CatalogueEntry(
        name="dp-fedavg",
        title="DP-FedAvg",
        kind="on-device training",
        import_path="flower_privsyn.strategies.dp_fedavg:DPFedAvg",
        paper="McMahan et al., ICLR 2018; Andrew et al., NeurIPS 2021",
    ),
    CatalogueEntry(
        name="dp-ftrl",
        title="DP-FTRL",
        kind="on-device training",
        import_path="flower_privsyn.strategies.dp_ftrl:DPFTRL",
        paper="Kairouz et al., ICML 2021; Dvijotham et al. 2024",
    ),
    CatalogueEntry(
        name="hybrid",
        title="hybrid",
        kind="on-device training",
        import_path="flower_privsyn.strategies.hybrid:Hybrid",
        paper=_OURS,
    ),
    CatalogueEntry(
        name="public-mid-training",
        title="public mid-training",
        kind="on-device training",
        import_path="flower_privsyn.strategies.public_mid_training:PublicMidTraining",
        paper="Wang et al., NAACL 2024",
        by_default=False,
    ),
    CatalogueEntry(
        name="fred",
        title="FreD",
        kind="distances",
        import_path="flower_privsyn.strategies.fred:FreD",
        paper="Hou et al. 2023",
        by_default=False,
    ),
    CatalogueEntry(name="dp-prompt", title="DP-Prompt", kind="local text", by_default=False),
    CatalogueEntry(
        name="expand-private",
        title="private text, expanded, no privacy",
        kind="private text",
        by_default=False,
    ),
    CatalogueEntry(name="finetune-private", title="private text, no privacy", kind="private text"),
)


def entries() -> Mapping[str, CatalogueEntry]:
    """Every strategy of the package, by the name that settings have for it."""
    return {name: entry for name, entry in compared().items() if entry.import_path}


@cache
def compared() -> Mapping[str, CatalogueEntry]:
    """Everything that tables and pictures show, by name, from the floor to the ceiling.

    The strategies, the papers' settings of them, and what they are compared with.
    """
    return {entry.name: entry for entry in _BUILT_IN}


# ---- the strategy that a run configuration names ------------------------------------------------


def configuration_of(
    run_config: Mapping[str, Any], *, other_keys: Collection[str] = ()
) -> PrivateSumConfig:
    """The settings of the strategy that the key `strategy` names.

    Args:
        run_config: `context.run_config` of an app that declares `strategy`.
        other_keys: Keys that belong to the rest of your app.

    Raises:
        ConfigError: There is no such strategy, it has no such key, or a value has the wrong type or
            is out of range.
    """
    return strategy_named(unfolded(run_config).get("strategy")).config_class.from_run_config(
        run_config, other_keys={"strategy", *other_keys}
    )


def strategy_of(
    run_config: Mapping[str, Any], *, other_keys: Collection[str] = (), **parts: Any
) -> PrivateSumStrategy:
    """The strategy that the key `strategy` names, with its settings from the run configuration.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            strategy_of(context.run_config, other_keys=["fraction-fit"]).start(grid)
        ```

    Args:
        run_config: See `configuration_of`.
        other_keys: The same.
        parts: What the strategy takes beside its settings, such as `generator`.

    Raises:
        ConfigError: The same.
    """
    strategy = strategy_named(unfolded(run_config).get("strategy"))
    return strategy(configuration_of(run_config, other_keys=other_keys), **parts)


def strategy_named(name: object) -> type[PrivateSumStrategy]:
    """The strategy that the key `strategy` names: one of the list, or "module:Class".

    Args:
        name: the key's value.

    Raises:
        ConfigError: There is no such strategy.
    """
    from flower_privsyn.run.strategy import PrivateSumStrategy

    known, found = entries(), None
    if name in known:
        return known[str(name)].strategy
    if ":" in str(name):
        try:
            found = resolve_name(str(name))
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"strategy {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, PrivateSumStrategy)):
        raise ConfigError(
            f'strategy must be {listed_strategies()}, or "module:Class" of a PrivateSumStrategy, '
            f"got {name!r}"
        )
    return found


def listed_strategies() -> str:
    """The names to choose from, in words."""
    return "one of " + ", ".join(f'"{name}"' for name in entries())
