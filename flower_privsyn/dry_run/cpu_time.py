"""How much CPU time a run will take, roughly: operations of its models over this machine's speed.

Counted are two operations for every weight and token of a pass through a model, three passes' worth
for one of training, and the products of votes; all of it over what a product of matrices reaches
here, times the share of that which passes of small models were measured to reach. Texts, libraries
and machines differ: it is right to a factor of two or three.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Final, Literal

import numpy as np

from flower_privsyn.dry_run.shelf import Shelf
from flower_privsyn.generation.api_key import is_address
from flower_privsyn.private_path.settings import PrivateSumConfig
from flower_privsyn.strategies.ctcl import CTCLConfig
from flower_privsyn.strategies.fred import FreDConfig
from flower_privsyn.strategies.hybrid import HybridConfig
from flower_privsyn.strategies.parts.candidate_text import candidate_names
from flower_privsyn.strategies.parts.evolution import EvolutionConfig
from flower_privsyn.strategies.parts.federated_training import FederatedTrainingConfig
from flower_privsyn.strategies.parts.moment_settings import SPACE_TEXTS
from flower_privsyn.strategies.parts.preferences import PreferenceConfig
from flower_privsyn.strategies.parts.public_side import NUM_EXAMPLES
from flower_privsyn.strategies.parts.sketch_settings import (
    JointSketchConfig,
    SketchedStudentConfig,
)
from flower_privsyn.strategies.popri import POPriConfig
from flower_privsyn.strategies.private_evolution import PrivateEvolutionConfig

#: Share of the speed of one large product that passes of a small model over a batch reach, and of
#: writing one token after the other. Measured: all-MiniLM-L6-v2 and privsyn-mlm 53 % (a model
#: that is trained 59 %, docs/speed.md), privsyn-lm 12 % where it writes.
_READING: Final = 0.53
_WRITING: Final = 0.12

#: Tokens in a public text over `max-tokens`, on average: 47 of 64 in the bundled passages.
_FILLED: Final = 0.73

#: Tokens of ten keywords and what stands around them.
_CONDITION: Final = 40.0

#: CPU seconds of Flower, Ray and Python's imports, in all processes of a simulation.
_START_SECONDS: Final = 40.0

#: Tokens that a tokenizer cuts and counts in a second.
_TOKENS_A_SECOND: Final = 3e5

Where = Literal["server", "nodes"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Something a run computes.

    Attributes:
        where: at the server, or on all nodes together.
        operations: of floating-point numbers, as many as a large product would count.
        seconds: of CPU time on any machine.
    """

    where: Where
    operations: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How much text there is.

    Attributes:
        records: samples of all users that take part.
        tokens: in a sample, on average.
        users: that take part.
        users_a_round: who answer a round, on average.
        shelf: says how large models are.
    """

    records: float
    tokens: float
    users: float
    users_a_round: float
    shelf: Shelf

    def reading(self, model: str, texts: float, tokens: float) -> float:
        """Operations of a language model that reads texts."""
        return 2.0 * self.shelf.weights(model) * texts * tokens / _READING

    def embedding(self, model: str, texts: float, tokens: float) -> float:
        """Operations of an embedding model, whose table of tokens is looked up."""
        weights = self.shelf.weights(model, embeds=True)
        table = self.shelf.vocabulary(model) * self.shelf.dimension(model)
        return 2.0 * max(weights - table, table) * texts * tokens / _READING

    def writing(self, model: str, texts: float, new: float, prompt: float) -> float:
        """Operations of a generator in this process; none where it runs elsewhere."""
        if is_address(model):
            return 0.0
        return 2.0 * self.shelf.weights(model) * texts * (new / _WRITING + prompt / _READING)


def speed() -> float:
    """Operations a CPU second of a product of matrices here, in float32."""
    rows = np.ones((384, 384), dtype=np.float32)
    rows @ rows
    begun, products = time.process_time(), 0
    while (spent := time.process_time() - begun) < 0.05:
        rows @ rows
        products += 1
    return 2.0 * 384**3 * products / spent


def cpu_seconds(work: Sequence[Work], *, speed: float) -> dict[Where, float]:
    """CPU seconds at the server and on all nodes together.

    Args:
        work: from `work_of`.
        speed: operations a second.
    """
    found: dict[Where, float] = {"server": _START_SECONDS, "nodes": 0.0}
    for one in work:
        found[one.where] += one.seconds + one.operations / speed
    return found


@singledispatch
def work_of(config: PrivateSumConfig, amount: Amount) -> list[Work]:
    """What a run with these settings computes.

    Args:
        config: the settings; of a method from outside nothing is known.
        amount: how much text there is.

    Raises:
        ModelError: a model is not on this machine.
        NotImplementedError: nobody has said it of such settings.
    """
    raise NotImplementedError(type(config).__name__)


@work_of.register
def _evolution(config: EvolutionConfig, amount: Amount) -> list[Work]:
    population = config.num_candidates
    rounds = config.num_rounds
    embedder = config.embedding_model
    embedded = rounds * max(1, config.lookahead) * population
    copies = max(1, config.num_variations - 1) / config.num_variations
    varied = (rounds * config.lookahead + (rounds - 1) * copies) * population
    server = amount.embedding(embedder, embedded, _length(config))
    if config.variation == "mask-fill":
        masked = varied * config.mask_steps
        server += amount.reading(config.variation_model, masked, _length(config))
    else:
        new = float(config.max_new_tokens)
        server += amount.writing(config.generator, varied, new, _length(config))
    if config.likelihood_quantile > 0:  # each variation is judged as well
        server += amount.reading(config.likelihood_model, varied, _length(config))
    if isinstance(config, PrivateEvolutionConfig) and config.output != "survivors":
        server += _written(config, amount, config.expand_samples)
    votes = 2.0 * amount.records * population * amount.shelf.dimension(embedder) * rounds
    private = amount.embedding(embedder, amount.records, amount.tokens)
    return [
        Work(where="server", operations=server),
        Work(where="nodes", operations=private + votes),
    ]


@work_of.register
def _preferences(config: POPriConfig, amount: Amount) -> list[Work]:
    rounds = config.num_rounds - (config.checkpoint == "fred")
    server = rounds * _preference_round(config, amount)
    server += _written(config, amount, config.synthetic_samples)
    return [Work(where="server", operations=server), _embedded(config, amount)]


@work_of.register
def _training(config: FederatedTrainingConfig, amount: Amount) -> list[Work]:
    a_user = config.local_epochs * amount.records / max(1.0, amount.users)
    if config.local_steps:
        a_user = min(a_user, float(config.local_steps * config.local_batch_size))
    passes = 3.0 * config.num_rounds * amount.users_a_round * a_user
    operations = amount.reading(config.model, passes, amount.tokens)
    return [Work(where="nodes", operations=operations)]


@work_of.register
def _topics(config: CTCLConfig, amount: Amount) -> list[Work]:
    written = amount.writing(
        config.model, config.synthetic_samples, config.max_new_tokens, _CONDITION
    )
    votes = (
        2.0 * amount.records * config.num_topics * amount.shelf.dimension(config.embedding_model)
    )
    return [
        Work(where="server", operations=written),
        Work(where="nodes", operations=votes),
        *_training(config, amount),
        _embedded(config, amount),
    ]


@work_of.register
def _counts(config: JointSketchConfig, amount: Amount) -> list[Work]:
    written = 0.0
    if config.synthesis == "written":
        written = _written(config, amount, config.best_of * config.synthetic_samples)
        rows = float(config.generator_steps * config.student_batch_size)
        written += 3.0 * amount.reading(config.generator, rows, _length(config))
    return [Work(where="server", operations=written), *_student(config, amount)]


@work_of.register
def _counts_and_training(config: HybridConfig, amount: Amount) -> list[Work]:
    return [*_student(config, amount), *_training(config, amount)]


@work_of.register
def _moments(config: FreDConfig, amount: Amount) -> list[Work]:
    texts = SPACE_TEXTS + len(candidate_names(config.candidates)) * config.candidate_texts
    server = amount.embedding(config.embedding_model, float(texts), _length(config))
    return [Work(where="server", operations=server), _embedded(config, amount)]


def _student(config: SketchedStudentConfig, amount: Amount) -> list[Work]:
    """Tokens counted on the nodes, and a student trained on what was chosen."""
    rows = float(config.student_steps * config.student_batch_size)
    server = 3.0 * amount.reading(config.model, rows, _length(config))
    if config.teacher:
        learnt = 3.0 * config.teacher_steps * config.student_batch_size
        server += amount.reading(config.teacher, rows + learnt, _length(config))
    seconds = amount.records * amount.tokens / _TOKENS_A_SECOND
    return [Work(where="server", operations=server), Work(where="nodes", seconds=seconds)]


def _length(config: PrivateSumConfig) -> float:
    """Tokens in a public text, on average."""
    return _FILLED * config.max_tokens


def _written(
    config: PrivateEvolutionConfig | PreferenceConfig | JointSketchConfig,
    amount: Amount,
    texts: int,
) -> float:
    prompt = NUM_EXAMPLES * _length(config)
    return amount.writing(config.generator, texts, config.max_new_tokens, prompt)


def _preference_round(config: PreferenceConfig, amount: Amount) -> float:
    """Responses written and embedded, and adapters trained on a pair of each prompt."""
    responses = config.num_prompts * config.responses_per_prompt
    operations = _written(config, amount, responses)
    operations += amount.embedding(config.embedding_model, responses, _length(config))
    # The chosen and the rejected one: a pass and its gradient, and a pass of the reference.
    passes = 2.0 * (1.0 if config.loss == "sft" else 4.0 / 3.0) * 3.0 * config.training_epochs
    tokens = (NUM_EXAMPLES + 1) * _length(config)
    return operations + amount.reading(config.model_to_train, passes * config.num_prompts, tokens)


def _embedded(config: PrivateSumConfig, amount: Amount) -> Work:
    operations = amount.embedding(config.embedding_model, amount.records, amount.tokens)
    return Work(where="nodes", operations=operations)
