"""The node policy: a TOML file in which the owner of a node says what may be asked of it."""

from __future__ import annotations

import json
import math
import re
import stat
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Final

from annotated_types import Ge, Gt, Le, Lt

from flower_privsyn.checks import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Settings,
    wrong_value,
)
from flower_privsyn.client_apps.known import is_query_name
from flower_privsyn.errors import ConfigError, NotAllowedError
from flower_privsyn.files import read_toml
from flower_privsyn.privacy import NeighboringRelation
from flower_privsyn.queries import QUERIES
from flower_privsyn.run_config import toml
from flower_privsyn.secure_aggregation.terms import Terms

#: What stands for a policy that nobody wrote.
DEFAULTS: Final = "the defaults"

BUNDLED_QUERIES: Final = tuple(query.name for query in QUERIES)
_HEADING: Final = """\
# What the owner of this node allows. A key that is left out keeps the value shown here; the last
# one, max-epsilon, must be there, so that a file that was half saved is no policy.
"""
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")  # a node's key has as many digits
_EMBEDDING_MODELS = {"all-MiniLM-L6-v2": "", "sentence-transformers/all-MiniLM-L6-v2": ""}
_TRAINED_MODELS = {"privsyn-lm": "", "privsyn-tiny": "", "privsyn-lstm": ""}


@dataclass(frozen=True, kw_only=True)
class NodePolicy(Settings):
    """What the owner of a node allows.

    Raises:
        ConfigError: A value is out of range.
    """

    min_noise_multiplier: NonNegativeFloat = 0.0
    """Least noise: standard deviation over the clip norm of a round; of rounds with correlated
    noise, that of all of them together.
    """
    max_clip_norm: Annotated[float, Gt(0), Le(math.inf)] = math.inf
    """Largest norm of one user's answer."""
    max_rounds: PositiveInt = 10_000
    """Most rounds of one run."""
    max_epsilon: Annotated[float, Gt(0), Le(math.inf)] = 10.0
    """Most that one user may lose over all runs of all servers on one data set. The account is kept
    by this node (`privsyn node ledger`) from noise multipliers.
    """
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-6
    """At which `max-epsilon` is computed, whatever a run claims."""
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    """Neighbouring relation under which `max-epsilon` is computed, whatever a run claims."""
    queries: tuple[str, ...] = BUNDLED_QUERIES
    """Questions that are answered. One that an app or another package brings is answered only where
    it is named here.
    """
    servers: tuple[str, ...] = ()
    """Servers that may ask, by the name that --node-config 'server="..."' gives the server of a
    SuperNode; empty for any.
    """
    dataset: str = ""
    """Name of the data set whose account is kept, where --node-config 'dataset="..."' gives none;
    empty for the path of the node's own `data`.
    """
    embedding_models: Mapping[str, str] = field(default_factory=lambda: dict(_EMBEDDING_MODELS))
    """Embedding models that a server may name, with the SHA-256 of their files (`privsyn node
    digest FOLDER`), or "" for whatever stands under the name. Others are refused before they are
    loaded.
    """
    trained_models: Mapping[str, str] = field(default_factory=lambda: dict(_TRAINED_MODELS))
    """The same for models that are trained on the node."""
    require_secure_aggregation: bool = False
    """Answer under secure aggregation alone, so that no server sees this node's own sums."""
    node_keys: tuple[str, ...] = ()
    """Keys of all nodes that this one aggregates securely with, its own among them, as `privsyn
    node key` prints them on each; got from their owners and not from the server. Without them no
    question of secure aggregation is answered: the nodes could be the server's own.
    """
    min_roster: Annotated[int, Ge(3)] = 3
    """Fewest nodes on the roster of a round of secure aggregation."""
    min_honest_nodes: Annotated[int, Ge(2)] = 2
    """Fewest honest nodes in a securely aggregated sum: least-nodes less colluding-nodes."""
    min_colluding: NonNegativeInt = 1
    """Fewest nodes that a run must assume to collude with its server (colluding-nodes)."""
    source: str = DEFAULTS
    """The file the policy comes from."""

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        for query in self.queries:
            # Any name: the file is read where the apps that bring questions are not known. One
            # that is misspelt allows nothing.
            if not is_query_name(query):
                raise wrong_value(
                    self._called("queries"), "names of questions, such as joint_sketch", query
                )
        for key in self.node_keys:
            if not _SHA256.fullmatch(key):
                raise wrong_value(self._called("node_keys"), "64 hexadecimal digits each", key)
        for name in ("embedding_models", "trained_models"):
            for model, digest in getattr(self, name).items():
                if digest and not _SHA256.fullmatch(digest):
                    raise wrong_value(
                        f"{self._called(name)}.{model}", '64 hexadecimal digits or ""', digest
                    )

    def _called(self, name: str) -> str:
        return f"{self.source}: {name.replace('_', '-')}"

    # ---- what is refused

    def refusal(self, key: str, sentence: str) -> NotAllowedError:
        """The error of something a key of this policy does not allow."""
        return NotAllowedError(f"{sentence} ({key} in {self.source}).")

    def _within(self, name: str, value: float, told: str) -> None:
        """Refuse what is more than a key that is called `max_...` says, or less than another."""
        allowed: float = getattr(self, name)
        most = name.startswith("max_")
        if value > allowed if most else value < allowed:
            raise self.refusal(
                name.replace("_", "-"),
                f"{told}; the owner allows at {'most' if most else 'least'} {allowed:g}",
            )

    def check_run(self, server: str, num_rounds: int) -> None:
        """Refuse a server that is not on the list, and a run of too many rounds.

        What is computed of a run grows with its rounds.

        Raises:
            NotAllowedError: The owner does not allow it.
        """
        if self.servers and server not in self.servers:
            told = f'"{server}"' if server else "a server without a name (node-config key `server`)"
            listed = ", ".join(f'"{name}"' for name in self.servers)
            raise self.refusal("servers", f"This node answers {told}; its owner allows {listed}")
        self._within("max_rounds", num_rounds, f"The run plans {num_rounds} rounds")

    def check_question(
        self, *, query: str, clip_norm: float, noise_multiplier: float | None, secure: bool
    ) -> None:
        """Refuse a question, whatever was spent so far.

        Args:
            query: The name of the query.
            clip_norm: The bound on the norm of one user's answer.
            noise_multiplier: Of the round, or of all rounds together where their noise is
                correlated; None when it is not known yet.
            secure: Whether it is asked under secure aggregation, or shows a server this node's own
                sum.

        Raises:
            NotAllowedError: The owner does not allow it.
        """
        if self.require_secure_aggregation and not secure:
            raise self.refusal(
                "require-secure-aggregation",
                f"The run asks {query} in the clear; the owner allows secure aggregation alone "
                "(secure-aggregation = true)",
            )
        if query not in self.queries:
            allowed = ", ".join(self.queries) or "none"
            raise self.refusal("queries", f"The run asks {query}; the owner allows {allowed}")
        asks = f"The run asks {query} with"
        self._within("max_clip_norm", clip_norm, f"{asks} clip norm {clip_norm:g}")
        if noise_multiplier is not None:
            told = f"{asks} noise multiplier {noise_multiplier:g}"
            self._within("min_noise_multiplier", noise_multiplier, told)

    def check_terms(self, terms: Terms, nodes: int) -> None:
        """Refuse a round of secure aggregation with too few nodes, or too much trust in them.

        Args:
            terms: Of the round.
            nodes: On its roster.

        Raises:
            NotAllowedError: The owner does not allow it.
        """
        self._within("min_roster", nodes, f"The roster of the round has {nodes} nodes")
        self._within(
            "min_honest_nodes",
            terms.honest,
            f"The round is for sums of at least {terms.least_nodes} nodes of which "
            f"{terms.colluding} may collude, so {terms.honest} honest ones",
        )
        self._within(
            "min_colluding",
            terms.colluding,
            f"The round assumes that {terms.colluding} nodes collude with the server",
        )

    # ---- as a file

    @classmethod
    def read(cls, path: Path) -> NodePolicy:
        """Read a policy file; keys that are left out keep their defaults, save `max-epsilon`.

        Raises:
            ConfigError: The file is missing, can be written by all, is no TOML, lacks
                `max-epsilon` or holds an unknown key or a value that is not allowed.
        """
        values = read_toml(path, called="The node policy")
        _refuse_others(path)
        known = {item.name.replace("_", "-"): item.name for item in fields(cls)}
        del known["source"]
        for key in values.keys() - known:
            raise ConfigError(f'{path}: unknown key "{key}"; known are {", ".join(sorted(known))}.')
        policy = cls(**{known[key]: value for key, value in values.items()}, source=str(path))
        if "max-epsilon" not in values:
            # A file that was half saved would else be a policy that allows more.
            raise ConfigError(
                f"{path} has no max-epsilon, which every policy must state: a number above 0 (inf "
                "for no limit). Was the file saved as a whole?"
            )
        return policy


def _refuse_others(path: Path) -> None:
    """Refuse a policy that every user of the machine can write: they would say what it allows.

    Raises:
        ConfigError: The file, or its folder, can be written by all.
    """
    for place, sticky in ((path, 0), (path.resolve().parent, stat.S_ISVTX)):
        mode = place.stat().st_mode
        if mode & stat.S_IWOTH and not mode & sticky:
            raise ConfigError(
                f"The node policy {path} is not taken: {place} can be written by every user of "
                f"this machine (mode {stat.S_IMODE(mode):04o}); chmod o-w it."
            )


def policy_text(policy: NodePolicy | None = None) -> str:
    """A policy as a commented TOML file; the comments are the words of the declarations."""
    policy = policy or NodePolicy()
    keys = [key for name, key in NodePolicy.declared.items() if name != "source"]
    keys.sort(key=lambda key: key.name == "max_epsilon")  # last, so that half a file has none
    parts = [_HEADING]
    for key in keys:
        bounded = bool(key.choices or str(key.bounds))
        comment = textwrap.fill(
            key.words + (f" Allowed: {key.allowed}." if bounded else ""),
            width=100,
            initial_indent="# ",
            subsequent_indent="# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        name, value = key.name.replace("_", "-"), getattr(policy, key.name)
        if isinstance(value, Mapping) and value:
            lines = toml({f"{name}.{json.dumps(model)}": digest for model, digest in value.items()})
        else:
            lines = toml({name: value})
        parts.append(f"{comment}\n{lines}\n")
    return "\n".join(parts)
