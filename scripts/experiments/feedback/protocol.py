"""The sizes of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What is asked of whom; the defaults are those of docs/feedback_experiment.md.

    Attributes:
        users: numbers of users who are asked, ascending.
        epsilons: budgets.
        at: the number of users and the epsilon of every figure but the share in the right order.
        rounds: releases of the methods that ask in every round (T).
        size: candidates of a prompt (J).
        rejected_rank: of the pair; its other member has rank 1.
        held_out: users of every domain whose text the answers are held against.
        donors: users of every domain whose text is mixed into the candidates.
        max_tokens: of a sample.
        max_samples: of a user, by domain; 8 where it is not named.
        public: "bundled", or a file with public text.
        public_texts: how many of them are drawn.
        generator_prompts: prompts that the language model continues.
        donor_share: of the candidates, in equal parts of every domain of a setting.
        public_share: of the candidates; the rest is what the language model wrote.
        minority: share of the second domain where two are mixed.
        draws: of the noise, per seed.
    """

    users: tuple[int, ...] = (300, 1000, 3000, 10_000)
    epsilons: tuple[float, ...] = (0.1, 1.0, 7.0)
    at: tuple[int, float] = (3000, 1.0)
    rounds: int = 20
    size: int = 10
    rejected_rank: int = 5
    held_out: int = 600
    donors: int = 600
    max_tokens: int = 64
    max_samples: Mapping[str, int] = field(default_factory=lambda: {"abstracts": 1, "speech": 2})
    public: str = "bundled"
    public_texts: int = 3000
    generator_prompts: int = 100
    donor_share: float = 0.2
    public_share: float = 0.3
    minority: float = 0.1
    draws: int = 3

    def cap(self, domain: str) -> int:
        """Most samples of one user of a domain."""
        return self.max_samples.get(domain, 8)

    def shares(self, setting: str, domains: tuple[str, ...]) -> dict[str, float]:
        """The users' shares by domain in a setting: one domain alone, or "mixed" of the first two.

        They sum to 1; of two the second is the minority.
        """
        if setting != "mixed":
            return {setting: 1.0}
        return {domains[0]: 1.0 - self.minority, domains[1]: self.minority}
