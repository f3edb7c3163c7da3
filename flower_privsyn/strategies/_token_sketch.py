"""A released joint sketch at the server: what it says, and what is made of it without a price."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import OrZero
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located, replacing
from flower_privsyn.generation.generators import ExpandingSettings
from flower_privsyn.models import BUNDLED_MODELS
from flower_privsyn.queries import Broadcast, Cohort, JointSketch
from flower_privsyn.queries import JointSketch as JointSketchQuery
from flower_privsyn.queries.joint_sketch import Block, ItemMoments
from flower_privsyn.run.method import (
    ChosenRows,
    Look,
    NeededModel,
    Needs,
    Outline,
    Question,
    RecordSource,
    RunContext,
    SumOfUsers,
    added_up,
)
from flower_privsyn.run.sketch_file import COLUMNS, SKETCH_FILE, TRUST_KEY
from flower_privsyn.strategies._student import StudentConfig

if TYPE_CHECKING:
    from flower_privsyn.data.public_rows import PublicRows
    from flower_privsyn.models.bias import LogitBias
    from flower_privsyn.run.method import SumOfUsers
    from flower_privsyn.training.causal import FineTuning
    from flower_privsyn.training.distillation import Distillation
    from flower_privsyn.training.selection import LogRatioScorer, Scorer, Selection


Float64Array = npt.NDArray[np.float64]

IntArray = npt.NDArray[np.int64]

#: theta less its centre, in cells: within one, 1.4 % of an item's use, nothing is told apart.
_STEP: Final = 0.05

_THETA: Final[Float64Array] = np.linspace(-120 * _STEP, 120 * _STEP, 241)

#: Standard deviations of the normal laws that theta is a mixture of; 0 is "as in public text".
_SPREADS: Final = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)

#: Where all items may lie together, private users being wordier or briefer than pseudo-users.
_CENTRES: Final = np.arange(-10, 11) * 2 * _STEP

#: Standard deviation of that, expected beforehand.
_CENTRE_SPREAD: Final = 0.3

#: How much of its tokens' log-ratios a bigram may have.
_INHERITED: Final = (0.0, 0.25, 0.5, 0.75, 1.0)

#: Items that decide on centre and inheritance: the most frequent ones.
_DECIDING: Final = 4096

#: Groups of items of like public frequency, and how many items the common weights count for.
_GROUPS: Final = 6

_COMMON_ITEMS: Final = 200.0

#: Items that count as seen under each spread beforehand. With few items or much noise the likeliest
#: weights would be too sure of themselves.
_BEFOREHAND: Final[Float64Array] = np.full(len(_SPREADS), 4.0)

#: How often spreads and centre are fitted in turn.
_TURNS: Final = 3

_ITERATIONS: Final = 100

_SETTLED: Final = 1e-4

#: What pseudo-users may write, in tokens, up to as many as count.
LENGTHS: Final[tuple[int, ...]] = tuple(round(2.0 ** (power / 2)) for power in range(8, 29))

#: Numbers worked on at a time.
_CELLS: Final = 2**22


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockReading:
    """What a release says of the items of one block.

    Attributes:
        name: "tokens" or "bigrams".
        keys: (num_items,) first * vocabulary + second of each bigram; None of tokens.
        public: (num_items,) mean amount with pseudo-users, > 0: unseen items have half an
            occurrence.
        estimate: (num_items,) mean amount with private users: unbiased, and as noisy as it came.
        estimate_error: (num_items,) its standard deviation, users aside.
        rate: (num_items,) posterior mean of the amount, > 0.
        log_ratio: (num_items,) posterior mean of log(private / public), relative to what holds for
            all items alike: 0 for an item that is used as in public text.
        standard_error: (num_items,) posterior standard deviation of it.
        centre: what holds for all items alike.
        inherited: share of its tokens' log-ratios that a bigram is expected to have; 0 of tokens.
    """

    name: str
    keys: IntArray | None
    public: Float64Array
    estimate: Float64Array
    estimate_error: Float64Array
    rate: Float64Array
    log_ratio: Float64Array
    standard_error: Float64Array
    centre: float
    inherited: float = 0.0

    @property
    def predictive(self) -> Float64Array:
        """(num_items,) log of the posterior mean of private / public, as `log_ratio` relative.

        What a new occurrence counts for whoever must tell private from public text. It is larger
        than `log_ratio` where little is known, so among items without a known log-ratio those that
        might have a large one stand out: better for ranking text than for saying what is known.
        """
        predictive: Float64Array = np.log(self.rate / self.public) - self.centre
        return predictive

    def told(self, weights: Float64Array) -> float:
        """How much of what tells private from public text the release says, in [0, 1].

        Args:
            weights: (num_items,) of the items' log-ratios, >= 0, not all 0.

        Returns:
            The variance of what is known of them over that and the variance of what is not: 0 for a
            release that is all noise, 1 for one that leaves nothing open.
        """
        known = float(np.average(self.log_ratio, weights=weights))
        varying = float(weights @ (self.log_ratio - known) ** 2)
        open_still = float(weights @ self.standard_error**2)
        return varying / (varying + open_still) if varying > 0 else 0.0

    def ranking(self, trust: float) -> Float64Array:
        """What an occurrence of each item counts when text is ranked: (num_items,).

        Expected ratios rank better than expected logarithms, which rare items have few of. But the
        less is told, the less may an item gain by what it might be: with nothing known but of the
        commonest words, every text of rare words would stand above the others, whoever the users
        are.

        Args:
            trust: in [0, 1], the share of `predictive`; the rest is `log_ratio`.
        """
        return trust * self.predictive + (1.0 - trust) * self.log_ratio


@dataclass(frozen=True, kw_only=True, eq=False)
class SketchReading:
    """What a release says, block by block.

    Formal guarantee:
        Post-processing of one accounted release and public text.

    Attributes:
        vocabulary: tokens of the public tokenizer.
        tokens: None where bigrams alone were asked for.
        bigrams: None where tokens alone were.
    """

    vocabulary: int
    tokens: BlockReading | None
    bigrams: BlockReading | None


def pseudo_users(documents: Iterable[npt.NDArray[np.int64]], *, tokens_per_user: int) -> Cohort:
    """Public text in the hands of users who write as much as the private ones may.

    Args:
        documents: the tokens of public documents, in an order of their own: neighbours share a
            user.
        tokens_per_user: how much one has, >= 1. Whoever cannot be filled is left out, unless there
            would be nobody.

    Returns:
        Users of consecutive documents; the one that passes the limit is cut there, and what is
        left of it begins the next user.

    Raises:
        ValueError: `tokens_per_user` is below 1.
    """
    if tokens_per_user < 1:
        raise ValueError(f"tokens_per_user must be at least 1, got {tokens_per_user}")
    records: list[npt.NDArray[np.int64]] = []
    owners: list[int] = []
    user, room = 0, tokens_per_user
    for document in documents:
        rest = np.asarray(document, dtype=np.int64)
        while len(rest):
            records.append(rest[:room])
            owners.append(user)
            rest, room = rest[room:], room - len(records[-1])
            if room == 0:
                user, room = user + 1, tokens_per_user
    if user and room < tokens_per_user:
        kept = owners.index(user)
        records, owners = records[:kept], owners[:kept]
    num_users = owners[-1] + 1 if owners else 0
    return Cohort.of(records, owners, num_users)


def length_written(
    query: JointSketch,
    broadcast: Broadcast,
    released: SumOfUsers,
    *,
    documents: Sequence[npt.NDArray[np.int64]],
) -> int:
    """How many tokens users write, as far as they count: told by the sum of a release's numbers.

    Counts that are brought to length 1 add up to the more the more items there are, whatever the
    items: the amounts of all items together, of pseudo-users of every length in turn, say which
    length fits. The noise of so many numbers is small against their sum.

    Args:
        query: what was asked.
        broadcast: what it was asked with.
        released: (answer_length,) numbers, summed over users.
        documents: public texts, for pseudo-users; at least one token.

    Returns:
        Tokens per user, of `LENGTHS` or as many as count: the latter where the noise of the sum is
        half of it.

    Raises:
        ValueError: the documents hold no token.
    """
    block = query.blocks(broadcast)[0]
    most = query.max_tokens_per_user
    counted = released.users * block.weight
    amount = float(released.total[block.columns].sum()) / counted
    noise = released.noise_std * math.sqrt(block.num_items) / counted
    if amount < 2 * noise:
        return most
    asked, sent = query, broadcast
    if block.keys is None:
        # The same tokens and the same moments without the bigrams' block.
        asked, sent = replace(query, bigram_share=0.0), {"vocabulary": broadcast["vocabulary"]}
    lengths = [*(length for length in LENGTHS if length < most), most]
    amounts = [
        float(
            asked.item_moments(pseudo_users(documents, tokens_per_user=length), sent)[
                block.name
            ].mean.sum()
        )
        for length in lengths
    ]
    return lengths[int(np.argmin(np.abs(np.log(np.array(amounts) / amount))))]


def read_sketch(
    query: JointSketch,
    broadcast: Broadcast,
    released: SumOfUsers,
    *,
    public: Cohort,
) -> SketchReading:
    """Read a release.

    Args:
        query: what was asked.
        broadcast: what it was asked with.
        released: (answer_length,) numbers, summed over users.
        public: pseudo-users (`pseudo_users`), at least one.

    Raises:
        ValueError: shapes do not fit, or a number is out of range.
    """
    total, num_users, noise_std = np.asarray(released.total), released.users, released.noise_std
    if total.shape != (query.answer_length(broadcast),) or not np.isfinite(total).all():
        raise ValueError(
            f"the release must be ({query.answer_length(broadcast)},) and finite, got {total.shape}"
        )
    if not (math.isfinite(num_users) and num_users > 0):
        raise ValueError(f"num_users must be finite and > 0, got {num_users}")
    if not (math.isfinite(noise_std) and noise_std >= 0):
        raise ValueError(f"noise_std must be finite and >= 0, got {noise_std}")
    moments = query.item_moments(public, broadcast)
    vocabulary = int(broadcast["vocabulary"][0])
    readings: dict[str, BlockReading] = {}
    for block in query.blocks(broadcast):
        observed = _Observed.of(
            block,
            moments[block.name],
            means=total[block.columns] / (num_users * block.weight),
            sample=released.sample,
            noise=noise_std / (num_users * block.weight),
        )
        readings[block.name] = _read_block(block, observed, readings.get("tokens"), vocabulary)
    return SketchReading(
        vocabulary=vocabulary, tokens=readings.get("tokens"), bigrams=readings.get("bigrams")
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Observed:
    """One block as it was released, item by item; all (num_items,).

    Attributes:
        estimate: of each item's amount.
        public: p, > 0.
        constant: variance of the estimate whatever theta is, of the noise.
        linear: what exp(theta) multiplies in the variance.
        quadratic: what exp(2 theta) multiplies, beside what the width of a cell adds.
    """

    estimate: Float64Array
    public: Float64Array
    constant: Float64Array
    linear: Float64Array
    quadratic: Float64Array

    @classmethod
    def of(
        cls,
        block: Block,
        moments: ItemMoments,
        *,
        means: Float64Array,
        sample: tuple[float, float],
        noise: float,
    ) -> _Observed:
        """What a block says of each of its items.

        Args:
            block: which one.
            moments: of pseudo-users.
            means: (num_items,) the released mean, without the block's weight.
            sample: n and b, as the sum has them.
            noise: standard deviation of `means`.
        """
        seen = moments.mean > 0
        once = float(np.median(moments.square[seen] / moments.mean[seen])) if seen.any() else 1.0
        public = moments.mean + 0.5 * once / moments.num_users
        square = moments.square + 0.5 * once**2 / moments.num_users
        varying = np.maximum(square - public**2, 1e-6 * square)
        num_users, by_coins = sample
        return cls(
            estimate=means,
            public=public,
            constant=np.full(block.num_items, noise**2),
            linear=varying / num_users,
            quadratic=varying / moments.num_users
            + public**2 * _STEP**2 / 12.0
            + public**2 * by_coins,
        )

    def among(self, chosen: IntArray | slice) -> _Observed:
        """The same for some of the items."""
        return _Observed(
            estimate=self.estimate[chosen],
            public=self.public[chosen],
            constant=self.constant[chosen],
            linear=self.linear[chosen],
            quadratic=self.quadratic[chosen],
        )

    def likelihood(self, centre: Float64Array) -> Float64Array:
        """Of theta in each cell around an item's centre: (num_items, cells), largest 1."""
        factor = np.exp(centre[:, None] + _THETA)
        variance = self.quadratic[:, None] * factor
        variance += self.linear[:, None]
        variance *= factor
        variance += self.constant[:, None]
        off = self.estimate[:, None] - self.public[:, None] * factor
        off *= off
        off /= variance
        off += np.log(variance)
        off *= -0.5
        off -= off.max(axis=1, keepdims=True)
        likelihood: Float64Array = np.exp(off, out=off)
        return likelihood


def _read_block(
    block: Block, observed: _Observed, tokens: BlockReading | None, vocabulary: int
) -> BlockReading:
    """The posterior of every item."""
    deciding = np.argsort(-observed.public, kind="stable")[:_DECIDING]
    few = observed.among(deciding)
    if block.keys is None or tokens is None:
        own, own_error = np.zeros(block.num_items), np.zeros(block.num_items)
        inherited, centre = 0.0, _best_centre(few, own[deciding])[1]
    else:
        first, second = np.divmod(block.keys, vocabulary)
        own = tokens.log_ratio[first] + tokens.log_ratio[second]
        own_error = np.hypot(tokens.standard_error[first], tokens.standard_error[second])
        found = [(*_best_centre(few, share * own[deciding]), share) for share in _INHERITED]
        _, centre, inherited = max(found, key=lambda entry: entry[0])
    around = centre + inherited * own
    group, weights = _grouped_weights(observed, around)
    cells = _prior_cells()
    change = np.empty(block.num_items)
    variance, ratio = np.empty_like(change), np.empty_like(change)
    for part in _parts(block.num_items):
        posterior = observed.among(part).likelihood(around[part])
        posterior *= weights[group[part]] @ cells
        posterior /= posterior.sum(axis=1, keepdims=True)
        change[part] = posterior @ _THETA
        variance[part] = posterior @ _THETA**2 - change[part] ** 2
        ratio[part] = posterior @ np.exp(_THETA)
    # What is not known of a centre counts as far as the release leaves an item at its centre.
    before = (weights @ np.square(_SPREADS))[group]
    left = np.minimum(variance / np.maximum(before, 1e-12), 1.0)
    return BlockReading(
        name=block.name,
        keys=block.keys,
        public=observed.public,
        estimate=observed.estimate,
        estimate_error=np.sqrt(observed.constant),
        rate=observed.public * np.exp(around) * ratio,
        log_ratio=inherited * own + change,
        standard_error=np.sqrt(np.maximum(variance, 0.0) + (left * inherited * own_error) ** 2),
        centre=float(centre),
        inherited=inherited,
    )


def _best_centre(observed: _Observed, around: Float64Array) -> tuple[float, float]:
    """The likeliest place of all items together: its log-likelihood, and the place."""
    # Moving the centre by whole cells moves the laws along them.
    cells = _prior_cells()
    moved = np.stack([_moved(cells, round(centre / _STEP)) for centre in _CENTRES])
    flat = moved.reshape(-1, len(_THETA)).T
    marginals = np.concatenate(
        [observed.among(part).likelihood(around[part]) @ flat for part in _parts(len(around))]
    ).reshape(len(around), len(_CENTRES), len(_SPREADS))
    # Spreads and centre in turn: the centre hardly depends on the spreads.
    place, score = len(_CENTRES) // 2, -math.inf
    for _ in range(_TURNS):
        weights = _fitted(marginals[:, place], _BEFOREHAND)
        scores = np.log(np.maximum(marginals @ weights, 1e-300)).sum(axis=0)
        scores -= 0.5 * (_CENTRES / _CENTRE_SPREAD) ** 2
        place = int(np.argmax(scores))
        score = float(scores[place])
    return score, float(_CENTRES[place])


def _grouped_weights(observed: _Observed, around: Float64Array) -> tuple[IntArray, Float64Array]:
    """Each item's group of like public frequency, and the weights of the spreads in each.

    Frequent words differ less between kinds of text than rare ones. A group that knows nothing of
    its own, its items drowned in noise, has the weights of all.

    Returns:
        (num_items,) in `range(_GROUPS)`, and (_GROUPS, spreads).
    """
    cells = _prior_cells()
    count = len(around)
    marginal = np.concatenate(
        [observed.among(p).likelihood(around[p]) @ cells.T for p in _parts(count)]
    )
    common = _fitted(marginal, _BEFOREHAND)
    group = np.empty(count, dtype=np.int64)
    group[np.argsort(-observed.public, kind="stable")] = np.arange(count) * _GROUPS // max(count, 1)
    weights = np.stack(
        [_fitted(marginal[group == g], _COMMON_ITEMS * common) for g in range(_GROUPS)]
    )
    return group, weights


def _fitted(marginal: Float64Array, beforehand: Float64Array) -> Float64Array:
    """The weights of the spreads that make the items likeliest (expectation maximisation).

    Args:
        marginal: (items, spreads) likelihood of each item under each.
        beforehand: (spreads,) items that count as seen under each.
    """
    weights: Float64Array = np.full(len(beforehand), 1.0 / len(beforehand))
    for _ in range(_ITERATIONS):
        shares = marginal * weights
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
        before, weights = weights, shares.sum(axis=0) + beforehand
        weights /= weights.sum()
        if float(np.abs(weights - before).max()) < _SETTLED:
            break
    return weights


def _prior_cells() -> Float64Array:
    """How much of each normal law lies in each cell, (spreads, cells)."""
    edges = np.concatenate((_THETA - _STEP / 2, _THETA[-1:] + _STEP / 2))
    rows = []
    for spread in _SPREADS:
        scale = max(spread, 1e-9) * math.sqrt(2.0)
        below = np.array([0.5 * (1.0 + math.erf(edge / scale)) for edge in edges.tolist()])
        row = np.diff(below)
        rows.append(row / row.sum())
    return np.array(rows)


def _moved(cells: Float64Array, by: int) -> Float64Array:
    """The laws, `by` cells to the right; what leaves on one side is lost."""
    moved = np.zeros_like(cells)
    if by >= 0:
        moved[:, by:] = cells[:, : cells.shape[1] - by]
    else:
        moved[:, :by] = cells[:, -by:]
    return moved


def _parts(count: int) -> Iterator[slice]:
    """Items in pieces whose cells fit the memory."""
    step = max(1, _CELLS // len(_THETA))
    for start in range(0, count, step):
        yield slice(start, start + step)


#: A release that tells this share of what there is to tell (`BlockReading.told`) is trusted whole.
_TOLD_ENOUGH: Final = 0.5

#: Public tokens that are put into the hands of pseudo-users: more change the third digit.
PUBLIC_TOKENS: Final = 4_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenSketch:
    """What a federation released of the tokens of its users' text.

    Formal guarantee:
        Post-processing of one or several accounted releases and public text.

    Attributes:
        reading: log-ratios and their errors.
        num_users: users in the releases, > 0; their expected number where it is secret.
        noise_std: standard deviation of the noise in each number of their sum.
        tokens_per_user: of the pseudo-users it was read against.
    """

    reading: SketchReading
    num_users: float
    noise_std: float
    tokens_per_user: int

    @classmethod
    def of(
        cls,
        query: JointSketch,
        broadcast: Broadcast,
        releases: Sequence[SumOfUsers],
        *,
        documents: Sequence[npt.NDArray[np.int64]],
        tokens_per_user: int = 0,
    ) -> Self | None:
        """Read the releases of several rounds together; None without any.

        Args:
            query: asked in all of them.
            broadcast: with which.
            releases: of each round.
            documents: tokens of public texts, of which pseudo-users are made: what the users' text
                is told from.
            tokens_per_user: how much those write; 0 for what the release says.

        Raises:
            ValueError: a release is of another length than the question's, or the documents hold no
                token.
        """
        added = added_up(releases)
        if added is None:
            return None
        written = tokens_per_user or length_written(query, broadcast, added, documents=documents)
        reading = read_sketch(
            query, broadcast, added, public=pseudo_users(documents, tokens_per_user=written)
        )
        return cls(
            reading=reading,
            num_users=added.users,
            noise_std=added.noise_std,
            tokens_per_user=written,
        )

    @property
    def trust(self) -> float:
        """How far to go by more than what is known, in [0, 1].

        The release tells some of what tells private from public text (`BlockReading.told`). Where
        that is half of it or more, text ranks by all that its words might be, and a model gets the
        whole bias. Where it is less, both fade: to choose text of rare words, or to teach a model
        how often the words of text come that noise has chosen, does harm.
        """
        from flower_privsyn.training.selection import surprisal_weights

        tokens, bigrams = self.reading.tokens, self.reading.bigrams
        if tokens is not None:
            told = tokens.told(tokens.public * surprisal_weights(_seen(tokens)))
        else:
            told = 0.0 if bigrams is None else bigrams.told(bigrams.public)
        return min(1.0, told / _TOLD_ENOUGH)

    def scorer(self) -> LogRatioScorer:
        """How much a row of public text is like the users' text.

        Tokens weigh by their surprisal in public text: how often a row has the frequent ones is
        style more than subject.

        Returns:
            Of rows of tokens of `reading.vocabulary`.
        """
        from flower_privsyn.training.selection import LogRatioScorer, surprisal_weights

        tokens, bigrams = self.reading.tokens, self.reading.bigrams
        trust = self.trust
        ratios, weights = np.zeros(self.reading.vocabulary), None
        if tokens is not None:
            ratios = tokens.ranking(trust)
            weights = surprisal_weights(_seen(tokens))
        if bigrams is None or bigrams.keys is None:
            return LogRatioScorer(tokens=ratios, weights=weights)
        return LogRatioScorer(
            tokens=ratios,
            bigram_keys=bigrams.keys,
            bigrams=bigrams.ranking(trust),
            weights=weights,
        )

    def bias(self, unlearnt: npt.NDArray[np.float64] | None = None) -> LogitBias:
        """The log-ratios as a bias of a model's logits, with weights 1.

        Args:
            unlearnt: (V',), V' >= V, log-ratios of the text that was read against to what the
                model says (`flower_privsyn.training.bias.unlearnt`); None for a model that says it
                as often.

        Returns:
            Of V tokens, those of `reading.vocabulary`.

        With r the log-ratios, a token b after a token a is as much likelier as r(ab) - r(a) says:
        r(b), which every b gets, and what the bigram says beyond both of its tokens.
        """
        from flower_privsyn.models.bias import Bigrams, LogitBias

        tokens, bigrams, size = self.reading.tokens, self.reading.bigrams, self.reading.vocabulary
        ratios = np.zeros(size) if tokens is None else tokens.log_ratio
        own = np.zeros(size) if unlearnt is None else unlearnt[:size]
        pairs = None
        if bigrams is not None and bigrams.keys is not None:
            first, second = np.divmod(bigrams.keys, size)
            # Not bounded as in a score (`LogRatioScorer`): of scores the largest are chosen, and
            # with them the errors of such differences; a bias weighs on all that a model says.
            beyond = bigrams.log_ratio - ratios[first] - ratios[second]
            pairs = Bigrams.of_pairs(first, second, beyond, vocabulary=size)
        return LogitBias(tokens=(ratios + own).astype(np.float32), bigrams=pairs)

    def save(self, folder: Path, *, tokenizer: Any) -> None:
        """Write `sketch.parquet`: a row per token and bigram, with what is said of it.

        How far all of it is trusted is in the file's metadata.

        Args:
            folder: of the run.
            tokenizer: the ``tokenizers.Tokenizer`` whose tokens they are.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        size = self.reading.vocabulary
        words = token_texts(tokenizer, size)
        tables = []
        for block in (self.reading.tokens, self.reading.bigrams):
            if block is None:
                continue
            keys = np.arange(size) if block.keys is None else block.keys
            if block.keys is None:
                texts = [words[key] for key in keys.tolist()]
            else:
                texts = [words[key // size] + words[key % size] for key in keys.tolist()]
            kind = "token" if block.keys is None else "bigram"
            columns = (
                pa.array([kind] * len(keys)).dictionary_encode(),
                pa.array(keys),
                pa.array(texts),
                *(
                    pa.array(np.asarray(values, dtype=np.float32))
                    for values in (block.public, block.rate, block.log_ratio, block.standard_error)
                ),
            )
            tables.append(pa.table(dict(zip(COLUMNS, columns, strict=True))))
        with replacing(folder / SKETCH_FILE) as temporary:
            table = pa.concat_tables(tables)
            pq.write_table(table.replace_schema_metadata({TRUST_KEY: repr(self.trust)}), temporary)


def _seen(tokens: BlockReading) -> npt.NDArray[np.float64]:
    """How often public text has each token: of what it has least of, half an occurrence."""
    seen: npt.NDArray[np.float64] = 0.5 * tokens.public / tokens.public.min()
    return seen


def token_texts(tokenizer: Any, size: int) -> list[str]:
    """The text of every token by itself, its blank before it where it has one.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
        size: tokens of it.
    """
    texts: list[str] = tokenizer.decode_batch(
        [[token] for token in range(size)], skip_special_tokens=False
    )
    return texts


def what_is_lacking(
    query: JointSketch,
    broadcast: Broadcast,
    releases: Sequence[SumOfUsers],
    *,
    model: str | Path,
    chosen: Sequence[npt.NDArray[np.int64]],
    sketch: TokenSketch,
    seed: int,
) -> LogitBias:
    """What a model must say more often to say each token as often as users do.

    The users' text is told from the chosen text, whose kind it is nearly of; and what the model
    says there is compared with that text, which it was trained on for some steps or not at all.
    All of it as far as the release is to be trusted (`TokenSketch.trust`).

    Formal guarantee:
        Post-processing of the releases and of public text.

    Args:
        query: asked in all releases.
        broadcast: with which.
        releases: as for `TokenSketch.of`.
        model: a bundled short name, a folder or a hub name, of the sketch's tokens.
        chosen: tokens of the texts that were chosen, on which it may have been trained.
        sketch: the releases, read against all public text.
        seed: of the texts that it reads.

    Raises:
        ModelError: the model cannot be used.
        ValueError: there is no release, or no token was chosen.
    """
    from flower_privsyn.training.bias import unlearnt

    told = TokenSketch.of(
        query,
        broadcast,
        releases,
        documents=chosen,
        tokens_per_user=sketch.tokens_per_user,
    )
    if told is None:
        raise ValueError("there is no release to read")
    trust = sketch.trust
    return told.bias(unlearnt(model, chosen, seed=seed)).scaled(trust, trust)


def text_scorer(scorer: Scorer, tokenizer: Any) -> Callable[[list[str]], npt.NDArray[np.float64]]:
    """A score of rows of tokens as a score of texts.

    Args:
        scorer: of rows.
        tokenizer: the ``tokenizers.Tokenizer`` of those tokens.
    """
    from flower_privsyn.data.cut import token_ids

    def score(texts: list[str]) -> npt.NDArray[np.float64]:
        rows = token_ids(tokenizer, texts)
        return scorer([np.array(row, dtype=np.int64) for row in rows])

    return score


@dataclass(frozen=True, kw_only=True)
class SketchedStudentConfig(StudentConfig):
    """Settings of what is asked, of the public text that is chosen, and of the student."""

    delta: float = 3e-6
    max_samples: int = 64
    model: Annotated[
        str,
        "student: a bundled name, a folder or a hub name of a causal language model. The sketch "
        "counts its tokens.",
    ] = "privsyn-tiny"
    max_tokens_per_user: Annotated[
        int, Ge(1), Le(2**24), "tokens of one user that count, the first ones over all samples."
    ] = 1024
    max_occurrences: Annotated[
        int,
        OrZero("no bound"),
        Ge(1),
        "times that one token or pair of a user counts: what every text repeats leaves more of an "
        "answer's length to what differs.",
    ] = 4
    num_bigrams: Annotated[
        int,
        OrZero("tokens alone"),
        Ge(2),
        Le(2**22),
        "most frequent bigrams of the public text that are counted; their table travels down.",
    ] = 16_384
    bigram_share: Annotated[
        float, Ge(0), Le(1), "the bigrams' part of the squared norm of an answer; 0 without any."
    ] = 0.5
    public_text: Annotated[
        str,
        'text to choose from: "bundled", or a JSONL file with `text` and no person\'s data; of any '
        "size. Also a folder or a data set by name (docs/own_data.md).",
    ] = "bundled"
    select_share: Annotated[
        float,
        Gt(0),
        Le(1),
        "share of the public rows that are chosen.",
    ] = 0.015
    least_selected: Annotated[
        int,
        Ge(1),
        "rows that are chosen at least, where there are so many: a student that reads few rows "
        "again and again learns them by heart.",
    ] = 2000
    least_row_tokens: Annotated[
        int,
        Ge(1),
        "rows with fewer tokens are not chosen, and written texts are the last to be kept: their "
        "scores are the noisiest.",
    ] = 32
    most_overlap: Annotated[
        float,
        Gt(0),
        Le(1),
        "a row of whose 8-grams more than this share are in rows chosen before is left out.",
    ] = 0.5
    teacher: Annotated[
        str,
        'causal language model with the student\'s tokens that teaches it on the chosen text; "" '
        "for none.",
    ] = "privsyn-lm"
    teacher_steps: Annotated[
        int,
        OrZero("the teacher as it is"),
        Ge(1),
        "steps in which the teacher itself first learns from the chosen text; then it gets what it "
        "lacks in its logits, as the student does.",
    ] = 0
    token_bias: Annotated[
        float,
        Ge(0),
        "what is added to the student's logits, times this: the log-ratios of how often users "
        "write each token to how often the student does. A release that tells little is trusted "
        "less, and adds less.",
    ] = 1.0
    bigram_bias: Annotated[float, Ge(0), "the same of the bigrams' log-ratios."] = 1.0

    def __post_init__(self) -> None:
        """Check the values against one another."""
        super().__post_init__()
        if bool(self.num_bigrams) != (self.bigram_share > 0):
            raise ConfigError(
                "num-bigrams and bigram-share go together: both 0 for tokens alone; got num-bigrams"
                f" = {self.num_bigrams} and bigram-share = {self.bigram_share:g}"
            )
        if self.teacher_steps and not self.teacher:
            raise ConfigError(
                f'teacher-steps = {self.teacher_steps} needs a teacher, got teacher = ""'
            )
        self.sketch_question()

    def sketch_question(self) -> JointSketchQuery:
        """The query these settings ask."""
        return JointSketchQuery(
            bigram_share=self.bigram_share,
            max_tokens_per_user=self.max_tokens_per_user,
            max_occurrences=self.max_occurrences,
        )

    def distillation(self) -> Distillation | None:
        """What the student is taught by; None for nothing but the text."""
        from flower_privsyn.training.distillation import Distillation

        return Distillation(located(self.teacher)) if self.teacher else None

    def scorer_of_long_rows(self, sketch: TokenSketch) -> Scorer:
        """How much a text is like the users'; -inf for fewer tokens than `least_row_tokens`.

        Args:
            sketch: what was released.
        """
        scorer = sketch.scorer()

        def score(rows: Sequence[IntArray]) -> npt.NDArray[np.float64]:
            short = np.array([len(row) < self.least_row_tokens for row in rows])
            return np.where(short, -np.inf, scorer(rows))

        return score

    def chosen_rows(self) -> ChosenRows:
        """Which rows of the public text may be chosen, and how many are at least."""
        return ChosenRows(
            model=self.model,
            max_tokens=self.max_tokens,
            least_tokens=self.least_row_tokens,
            fewest=self.least_selected,
        )


@dataclass(frozen=True, kw_only=True)
class JointSketchConfig(ExpandingSettings, SketchedStudentConfig):
    """Settings of `JointSketch`.

    `num_rounds` counts releases: one by default, with the whole budget. The defaults were set on
    public text alone (research/README.md has the figures).
    """

    # How public text is chosen, the student made of it, and what `synthetic.jsonl` is to hold.
    afterwards = frozenset(
        {
            "select-share",
            "least-selected",
            "least-row-tokens",
            "most-overlap",
            "student-steps",
            "student-batch-size",
            "student-learning-rate",
            "teacher",
            "teacher-steps",
            "token-bias",
            "bigram-bias",
            "synthesis",
            "synthetic-samples",
            "generator",
            "generator-interface",
            "generator-parameters",
            "best-of",
            "generator-steps",
            "generator-bias",
            "prompt",
            "temperature",
            "top-p",
            "max-new-tokens",
        }
    )

    num_rounds: int = 1
    synthesis: Annotated[
        Literal["selected", "written"],
        "what synthetic.jsonl holds: the best of the chosen public rows, or text that `generator` "
        "wrote after them, of which the best by the same score are kept.",
    ] = "selected"
    synthetic_samples: Annotated[int, Ge(1), "texts of synthetic.jsonl."] = 2000
    generator: Annotated[
        str,
        'causal language model that writes, for synthesis = "written": a name, a folder, '
        '"gguf:FILE", or "http://host:port/v1#model".',
    ] = "smollm2-135m"
    best_of: Annotated[
        int, Ge(1), "texts that are written for each one that is kept; 1 keeps all of them."
    ] = 2
    generator_steps: Annotated[
        int,
        OrZero("the generator as it is"),
        Ge(1),
        "steps in which the generator first learns from whole sentences of the chosen text, for a "
        "model that runs in this process: LoRA adapters, or all weights of a bundled model.",
    ] = 0
    generator_bias: Annotated[
        float,
        Ge(0),
        "what is added to the generator's logits, times this, where its tokens are the student's: "
        "how much more often users write each token than it does.",
    ] = 1.0
    prompt: Annotated[
        str,
        "the generator's prompt, a bundled name or a JSON file; it is shown whole sentences of the "
        'chosen text. "" for a generator that learnt from them (`generator-steps`): it begins anew '
        "every time, and what repeats itself or holds no whole sentence is dropped.",
    ] = "pre-text"
    temperature: Annotated[float, Gt(0), "sampling temperature of the generator."] = 1.0
    top_p: Annotated[float, Gt(0), Le(1), "nucleus of the generator."] = 1.0
    max_new_tokens: Annotated[int, Ge(1), "tokens of the generator per text."] = 85

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.synthesis == "written" and not (self.prompt or self.generator_steps):
            raise ConfigError(
                'prompt = "" is for a generator that learns from the chosen text first: give '
                'generator-steps above 0, or prompt = "pre-text"'
            )
        if not self.prompt and self.generator_interface == "chat":
            raise ConfigError(
                'generator-interface = "chat" answers a prompt, got prompt = "": give "pre-text"'
            )


#: Of so many chosen rows one must hold whole sentences.
_LEAST_WHOLE: Final = 10


class SketchedText:
    """What a joint sketch asks and chooses, whatever is made of the choice.

    Args:
        config: the settings of the sketch.
        place: of the run.

    Attributes:
        place: of the run.
        tokenizer: the ``tokenizers.Tokenizer`` whose tokens are counted.
        public: the public text.
        question: what users are asked.
        source: what makes their records.

    Raises:
        PrivsynError: the model or the public text is missing or unusable.
    """

    def __init__(self, config: SketchedStudentConfig, place: RunContext) -> None:
        from flower_privsyn.data.public_rows import PublicRows
        from flower_privsyn.embedding import load_tokenizer

        self._config, self.place = config, place
        self.tokenizer, fingerprint = load_tokenizer(located(config.model))
        with place.progress.stage("Read the public text", total=None):
            self.public: PublicRows = PublicRows.of(
                located(config.public_text),
                tokenizer=self.tokenizer,
                max_tokens=config.max_tokens,
                setting="public-text",
            )
            self.question = Question(config.sketch_question(), self._broadcast())
        self.source = RecordSource(
            fingerprint=fingerprint,
            dimension=self.public.vocabulary,
            reads="tokens",
            model=config.model,
        )

    def refuse_short_rows(self) -> None:
        """Refuse public text of which nothing could be chosen, before anybody is asked.

        Raises:
            ConfigError: no row is long enough.
        """
        config = self._config
        self.public.long_enough(config.least_row_tokens, source=config.public_text)

    def longest(self, count: int) -> list[str]:
        """The rows of the most tokens, at most so many: no prompt of others is longer than theirs.

        Args:
            count: >= 1.
        """
        places = np.argsort(-self.public.lengths, kind="stable")[:count]
        return [self.public.text_of(int(place)) for place in places]

    def _broadcast(self) -> dict[str, Any]:
        from flower_privsyn.queries.joint_sketch import frequent_bigrams

        config, bigrams, public = self._config, None, self.public
        if config.num_bigrams:
            # Kept, so that a resumed run asks the same whatever became of the file since.
            file = self.place.run.path / "bigrams.npy"
            if not file.exists():
                found = frequent_bigrams(
                    map(public.row, range(len(public))),
                    vocabulary=public.vocabulary,
                    most=config.num_bigrams,
                )
                if not len(found):
                    raise ConfigError(
                        f'num-bigrams = {config.num_bigrams}: public-text = "{config.public_text}" '
                        "has no two tokens beside one another; give other text, or num-bigrams = 0 "
                        "and bigram-share = 0"
                    )
                with replacing(file) as temporary, temporary.open("wb") as opened:
                    np.save(opened, found)
            bigrams = np.load(file)
        return config.sketch_question().broadcast(public.vocabulary, bigrams)

    def read(self, releases: Sequence[SumOfUsers]) -> TokenSketch:
        """What the releases say together; also written to `sketch.parquet`.

        Args:
            releases: at least one.
        """
        with self.place.progress.stage("Read the release", total=None):
            documents = list(self.public.documents(most_tokens=PUBLIC_TOKENS))
            sketch = TokenSketch.of(
                self._config.sketch_question(),
                self.question.broadcast,
                releases,
                documents=documents,
            )
            if sketch is None:
                raise RuntimeError("a run that released nothing has no result")
            sketch.save(self.place.run.path, tokenizer=self.tokenizer)
        return sketch

    def select(self, sketch: TokenSketch) -> Selection:
        """The rows of public text that are most like the users' text, as they were chosen."""
        from flower_privsyn.training.selection import select

        config, public = self._config, self.public
        count = max(1, round(config.select_share * len(public)), config.least_selected)

        def chunks(report: Any) -> Iterator[list[IntArray]]:
            for chunk in public.chunks():
                yield chunk
                report.update(len(chunk))

        with self.place.progress.stage("Choose public text", len(public)) as report:
            scorer = config.scorer_of_long_rows(sketch)
            return select(chunks(report), scorer, count=count, most_overlap=config.most_overlap)

    def sentences_of(self, selection: Selection) -> list[tuple[int, str]]:
        """The place of each row that holds whole sentences, and these.

        All rows as they are, where hardly any does, as in text without punctuation.
        """
        places = [int(index) for index in selection.indices]
        cut = [(index, text) for index in places if (text := self.public.sentences_of(index))]
        if len(cut) * _LEAST_WHOLE >= len(places):
            return cut
        return [(index, self.public.text_of(index)) for index in places]

    def texts_of(self, selection: Selection) -> list[str]:
        """The rows as text."""
        return [self.public.text_of(int(index)) for index in selection.indices]


#: Folder of a teacher that learnt from the chosen text, beside the student's.
_TEACHER: Final = "teacher"

#: How a generator learns by adapters; set by what SmolLM2-135M makes of some 400 sentences.
_ADAPTERS: Final[dict[str, Any]] = {
    "lora_rank": 16,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "warmup_steps": 4,
    "precision": "float32",
}


def check_student(config: SketchedStudentConfig, begins: str) -> None:
    """Refuse a model that could not become the student, before anybody is asked.

    Args:
        config: the settings.
        begins: the model that is trained, whose tokens are those of `config.model`.

    Raises:
        ConfigError: the teacher has other tokens, one of them cannot read a row of `max_tokens`,
            or the model predicts fewer tokens than it has.
        ModelError: a model is not on this machine, is no causal language model, or has a bias where
            it is to get one.
    """
    from flower_privsyn.training.bias import load_plain
    from flower_privsyn.training.distillation import check_same_tokens, load_teacher
    from flower_privsyn.training.tokens import check_window

    network, tokenizer = load_plain(located(begins))
    predicted = int(network.get_output_embeddings().weight.shape[0])
    if len(tokenizer) > predicted:
        raise ConfigError(
            f'model = "{begins}" has {len(tokenizer)} tokens and predicts {predicted} of them: a '
            "student needs a number for each"
        )
    length = config.max_tokens  # of a row, at most
    check_window(network, length, called=f'model = "{begins}"', max_tokens=length)
    if config.teacher:
        teacher = located(config.teacher)
        check_same_tokens(located(begins), teacher, setting="teacher")
        load_teacher(teacher, longest=length, max_tokens=length)
        if config.teacher_steps:
            load_plain(teacher)  # it gets a bias


class SketchedStudent:
    """What is made of such a release.

    Made again from the same releases it chooses the same rows, and trains the same weights.

    Formal guarantee:
        All of it is post-processing of the releases and of public text.

    Args:
        config: the settings.
        text: what was asked, and the public text.
        releases: at least one.

    Attributes:
        sketch: what was released.
        selection: the rows that were chosen.
        texts: of these rows, in the order in which they were chosen.
        sentences: the whole sentences of these rows that hold some, and their place in public text.
    """

    def __init__(
        self, config: SketchedStudentConfig, text: SketchedText, releases: Sequence[SumOfUsers]
    ) -> None:
        self._config, self._text, self._releases = config, text, releases
        self.sketch = text.read(releases)
        self.selection = text.select(self.sketch)
        self.texts = text.texts_of(self.selection)
        self.sentences = text.sentences_of(self.selection)

    @property
    def figures(self) -> dict[str, Any]:
        """What was released and chosen, for the end of the run."""
        return {
            "public_rows": self.selection.num_rows,
            "selected_rows": len(self.selection.indices),
            "overlapping_rows": self.selection.overlapping,
            "least_score": float(self.selection.scores.min()),
            "users": self.sketch.num_users,
            "noise_std": self.sketch.noise_std,
            "trust": self.sketch.trust,
            "tokens_per_user": self.sketch.tokens_per_user,
        }

    def train(self, model: str, output: Path) -> dict[str, Any]:
        """Train a model on what was chosen, taught by the teacher; free where it was done before.

        Args:
            model: that begins.
            output: the folder of the one that it becomes.

        Returns:
            Figures for the end of the run.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        training = self._fine_tune(
            model,
            output,
            who="student",
            steps=self._config.student_steps,
            distillation=self._distillation(output.with_name(_TEACHER)),
        )
        return {"student_steps": training.steps, "student_epochs": training.epochs}

    def _distillation(self, folder: Path) -> Distillation | None:
        """What the student is taught by; a teacher that is to learn first has done so."""
        config = self._config
        taught = config.distillation()
        if taught is None or not config.teacher_steps:
            return taught
        plain = self.trained(config.teacher, steps=config.teacher_steps, output=folder)
        if not (config.token_bias or config.bigram_bias):
            return replace(taught, teacher=plain)
        biased = folder.with_name(f"{folder.name}-biased")
        self.add_bias(plain, biased, who="teacher")
        return replace(taught, teacher=biased)

    def trained(self, model: str, *, steps: int, output: Path) -> Path:
        """Train a model that teaches or writes on what was chosen; free where it was done before.

        Args:
            model: that begins, a public one.
            steps: of the student's batch size and rate.
            output: the folder of the one that it becomes, named after what it does.

        Returns:
            That folder.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        self._fine_tune(model, output, who=output.name, steps=steps)
        return output

    def trained_writer(self, model: str, *, steps: int, output: Path) -> Path:
        """Train a generator on the whole sentences that were chosen; free where it was done before.

        All weights of a bundled model, at the student's rate; LoRA adapters of a larger one, whose
        weights a few hundred sentences would rather harm.

        Args:
            model: that begins, a public one.
            steps: of training.
            output: the folder of the one that it becomes.

        Returns:
            That folder.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        adapters: dict[str, Any] = {} if model in BUNDLED_MODELS else _ADAPTERS
        self._fine_tune(
            model,
            output,
            who="generator",
            steps=steps,
            texts=[text for _, text in self.sentences],
            learn_ends=True,  # a whole sentence is one
            **adapters,
        )
        return output

    def _fine_tune(
        self,
        model: str,
        output: Path,
        *,
        who: str,
        steps: int,
        texts: Sequence[str] | None = None,
        distillation: Distillation | None = None,
        **otherwise: Any,
    ) -> FineTuning:
        from flower_privsyn.training.causal import fine_tune

        config = self._config
        output.parent.mkdir(exist_ok=True)
        with self._text.place.progress.stage(f"Train the {who}", steps) as stage:
            return fine_tune(
                located(model),
                self.texts if texts is None else texts,
                settings=replace(config.student_training(), max_steps=steps, **otherwise),
                output=output,
                seed=config.seed,
                progress=stage.reach,
                distillation=distillation,
            )

    def add_bias(self, plain: Path, output: Path, *, who: str = "student") -> None:
        """Write a model with what it lacks in its logits, as much of it as the settings say.

        Args:
            plain: folder of the model, trained on what was chosen and on whatever else.
            output: folder of the one with the bias inside.
            who: what the model is called where the work reports.

        Raises:
            ModelError: the model cannot be loaded, or `output` holds something else.
        """
        from flower_privsyn.training.bias import save_biased

        save_biased(plain, output, self.bias_of(plain, who=who))

    def bias_of(self, plain: Path, *, who: str = "student") -> LogitBias:
        """What a model lacks in its logits, as much of it as the settings say.

        Args:
            plain: folder of the model, trained on what was chosen and on whatever else.
            who: what the model is called where the work reports.

        Raises:
            ModelError: the model cannot be loaded.
        """
        config = self._config
        with self._text.place.progress.stage(f"Read what the {who} lacks", total=None):
            return self.lacking(plain).scaled(config.token_bias, config.bigram_bias)

    def lacking(self, model: str | Path) -> LogitBias:
        """What a model must say more often to say each token as often as users do.

        Args:
            model: a bundled short name, a folder or a hub name, of the sketch's tokens.
        """
        return what_is_lacking(
            self._config.sketch_question(),
            self._text.question.broadcast,
            self._releases,
            model=model,
            chosen=self.selection.tokens,
            sketch=self.sketch,
            seed=self._config.seed,
        )


def sketch_needs(
    *,
    model: str,
    teacher: str,
    generator: str,
    public_text: str,
    rows: ChosenRows,
    prompt: str,
) -> Needs:
    """The student of a joint sketch, its teacher, public text; and what writes.

    Args:
        model: the student.
        teacher: "" for none.
        generator: "" where nothing is written.
        public_text: what is chosen from.
        rows: of it.
        prompt: of the generator.
    """
    models = [NeededModel(setting="model", name=model, kind="causal")]
    if teacher:
        models.append(NeededModel(setting="teacher", name=teacher, kind="causal"))
    if generator:
        models.append(NeededModel(setting="generator", name=generator, kind="generator"))
    return Needs(
        models=tuple(models),
        libraries=("tokenizers", "torch", "transformers"),
        public_text=public_text,
        rows=rows,
        prompt=prompt if generator else "",
    )


def about_tokens(query: JointSketch, *, num_bigrams: int, model: str, look: Look) -> Outline:
    """Counts of tokens and of bigrams, in every round.

    Which bigrams are frequent, public text says when it is read; here they lie evenly among all
    pairs, and take no less room on their way than those that are close together.

    Args:
        query: what is asked about them.
        num_bigrams: how many are counted; 0 for tokens alone.
        model: whose tokens they are.
        look: what the files of models say of their sizes.

    Raises:
        ModelError: the model is not on this machine.
    """
    vocabulary = look.vocabulary(model)
    bigrams = None
    if num_bigrams:
        most = min(num_bigrams, vocabulary**2)
        bigrams = np.linspace(0, vocabulary**2 - 1, most).astype(np.int64)
    question = Question(query, query.broadcast(vocabulary, bigrams))
    source = RecordSource(fingerprint="", dimension=vocabulary, reads="tokens", model=model)
    return Outline(sources=(source,), question=lambda _: question, at_most=bool(num_bigrams))
