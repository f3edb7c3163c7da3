"""A released joint sketch: what it says of each token and bigram, how surely, and of any text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from flower_privsyn.models.bias import LogitBias, bigram_table
from flower_privsyn.queries import Broadcast, Cohort, JointSketch
from flower_privsyn.queries.joint_sketch import Block, ItemMoments
from flower_privsyn.report.sketch_file import write_sketch
from flower_privsyn.run.method import SumOfUsers, added_up
from flower_privsyn.training.selection import LogRatioScorer, surprisal_weights

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

#: A release that tells this share of what there is to tell (`BlockReading.told`) is trusted whole.
_TOLD_ENOUGH: Final = 0.5

#: Numbers worked on at a time.
_CELLS: Final = 2**22


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockReading:
    """What a release says of the items of one block.

    Attributes:
        keys: (num_items,) first * vocabulary + second of each bigram; None of tokens.
        public: (num_items,) mean amount with pseudo-users, > 0: unseen items have half an
            occurrence.
        rate: (num_items,) posterior mean of the amount, > 0.
        log_ratio: (num_items,) posterior mean of log(private / public), relative to what holds for
            all items alike: 0 for an item that is used as in public text.
        standard_error: (num_items,) posterior standard deviation of it.
        centre: what holds for all items alike.
    """

    keys: IntArray | None
    public: Float64Array
    rate: Float64Array
    log_ratio: Float64Array
    standard_error: Float64Array
    centre: float

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
class TokenSketch:
    """What a federation released of the tokens of its users' text.

    Formal guarantee:
        Post-processing of one or several accounted releases and public text.

    Attributes:
        vocabulary: tokens of the public tokenizer.
        tokens: what is said of every token.
        bigrams: of pairs of them; None where tokens alone were asked for.
        num_users: users in the releases, > 0; their expected number where it is secret.
        noise_std: standard deviation of the noise in each number of their sum.
        tokens_per_user: of the pseudo-users it was read against.
    """

    vocabulary: int
    tokens: BlockReading
    bigrams: BlockReading | None
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
    ) -> Self:
        """Read the releases of several rounds together.

        Args:
            query: asked in all of them.
            broadcast: with which.
            releases: of each round, at least one.
            documents: tokens of public texts, of which pseudo-users are made: what the users' text
                is told from.
            tokens_per_user: how much those write; 0 for what the release says.
        """
        released = added_up(releases)
        if released is None:
            raise RuntimeError("a run that released nothing has no result")
        written = tokens_per_user or length_written(query, broadcast, released, documents=documents)
        public = pseudo_users(documents, tokens_per_user=written)
        moments = query.item_moments(public, broadcast)
        vocabulary = int(broadcast["vocabulary"][0])
        readings: dict[str, BlockReading] = {}
        for block in query.blocks(broadcast):
            counted = released.users * block.weight
            observed = _Observed.of(
                block,
                moments[block.name],
                means=released.total[block.columns] / counted,
                sample=released.sample,
                noise=released.noise_std / counted,
            )
            readings[block.name] = _read_block(block, observed, readings.get("tokens"), vocabulary)
        return cls(
            vocabulary=vocabulary,
            tokens=readings["tokens"],
            bigrams=readings.get("bigrams"),
            num_users=released.users,
            noise_std=released.noise_std,
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
        told = self.tokens.told(self.tokens.public * surprisal_weights(_seen(self.tokens)))
        return min(1.0, told / _TOLD_ENOUGH)

    def scorer(self) -> LogRatioScorer:
        """How much a row of public text is like the users' text.

        Tokens weigh by their surprisal in public text: how often a row has the frequent ones is
        style more than subject.

        Returns:
            Of rows of tokens of `vocabulary`.
        """
        tokens, bigrams, trust = self.tokens, self.bigrams, self.trust
        return LogRatioScorer(
            tokens=tokens.ranking(trust),
            bigram_keys=None if bigrams is None else bigrams.keys,
            bigrams=None if bigrams is None else bigrams.ranking(trust),
            weights=surprisal_weights(_seen(tokens)),
        )

    def bias(self) -> LogitBias:
        """The log-ratios as a bias of a model's logits, with weights 1.

        With r the log-ratios, a token b after a token a is as much likelier as r(ab) - r(a) says:
        r(b), which every b gets, and what the bigram says beyond both of its tokens.
        """
        bigrams, size, ratios = self.bigrams, self.vocabulary, self.tokens.log_ratio
        pairs = None
        if bigrams is not None and bigrams.keys is not None:
            first, second = np.divmod(bigrams.keys, size)
            # Not bounded as in a score (`LogRatioScorer`): of scores the largest are chosen, and
            # with them the errors of such differences; a bias weighs on all that a model says.
            beyond = bigrams.log_ratio - ratios[first] - ratios[second]
            pairs = bigram_table(first, second, beyond, vocabulary=size)
        return LogitBias(tokens=ratios.astype(np.float32), bigrams=pairs)

    def save(self, folder: Path, *, tokenizer: Any) -> None:
        """Write `sketch.parquet` (`flower_privsyn.report.sketch_file`).

        Args:
            folder: of the run.
            tokenizer: the ``tokenizers.Tokenizer`` whose tokens they are.
        """
        size = self.vocabulary
        found = []
        for block in (self.tokens, self.bigrams):
            if block is None:
                continue
            keys = np.arange(size) if block.keys is None else block.keys
            kind = "token" if block.keys is None else "bigram"
            items = [[key] if block.keys is None else divmod(key, size) for key in keys.tolist()]
            # A pair as one text: it may be the bytes of one letter.
            texts: list[str] = tokenizer.decode_batch(items, skip_special_tokens=False)
            values = (block.public, block.rate, block.log_ratio, block.standard_error)
            found.append((kind, keys, texts, *values))
        write_sketch(folder, found)


def _seen(tokens: BlockReading) -> Float64Array:
    """How often public text has each token: of what it has least of, half an occurrence."""
    seen: Float64Array = 0.5 * tokens.public / tokens.public.min()
    return seen


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
    """
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
        return _Observed(**{name: values[chosen] for name, values in vars(self).items()})

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
        keys=block.keys,
        public=observed.public,
        rate=observed.public * np.exp(around) * ratio,
        log_ratio=inherited * own + change,
        standard_error=np.sqrt(np.maximum(variance, 0.0) + (left * inherited * own_error) ** 2),
        centre=float(centre),
    )


def _best_centre(observed: _Observed, around: Float64Array) -> tuple[float, float]:
    """The likeliest place of all items together: its log-likelihood, and the place."""
    # Moving the centre by whole cells moves the laws along them; what leaves on one side is lost.
    steps = np.rint(_CENTRES / _STEP).astype(np.int64)
    most, width = int(steps.max()), len(_THETA)
    wide = np.pad(_prior_cells(), ((0, 0), (most, most)))
    moved = np.stack([wide[:, most - by : most - by + width] for by in steps])
    flat = moved.reshape(-1, width).T
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


def _parts(count: int) -> Iterator[slice]:
    """Items in pieces whose cells fit the memory."""
    step = max(1, _CELLS // len(_THETA))
    for start in range(0, count, step):
        yield slice(start, start + step)
