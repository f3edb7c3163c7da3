"""A released joint sketch at the server: what it says, and what is made of it without a price."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from flower_privsyn.files import replacing
from flower_privsyn.private_path.release import SumOfUsers, added_up
from flower_privsyn.queries import Broadcast, JointSketch
from flower_privsyn.runs.sketch_file import COLUMNS, SKETCH_FILE, TRUST_KEY
from flower_privsyn.strategies.parts.sketch_reading import (
    BlockReading,
    SketchReading,
    length_written,
    pseudo_users,
    read_sketch,
)

if TYPE_CHECKING:
    from flower_privsyn.models.bias import LogitBias
    from flower_privsyn.training.selection import LogRatioScorer, Scorer

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
    from flower_privsyn.training.selection import Rows

    def score(texts: list[str]) -> npt.NDArray[np.float64]:
        rows = token_ids(tokenizer, texts)
        return scorer(Rows(tokens=[np.array(row, dtype=np.int64) for row in rows]))

    return score
