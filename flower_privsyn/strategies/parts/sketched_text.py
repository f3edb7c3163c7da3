"""Public text, what users are asked about its tokens, and what their answers choose of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located, replacing
from flower_privsyn.private_path.method import Question, RecordSource, RunContext
from flower_privsyn.strategies.parts.token_sketch import (
    PUBLIC_TOKENS,
    TokenSketch,
)

if TYPE_CHECKING:
    from flower_privsyn.data.public_rows import PublicRows
    from flower_privsyn.private_path.release import SumOfUsers
    from flower_privsyn.strategies.parts.sketch_settings import SketchedStudentConfig
    from flower_privsyn.training.selection import Rows, Selection

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
        from flower_privsyn.queries.bigrams import frequent_bigrams

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
        from flower_privsyn.training.selection import Rows

        config, public = self._config, self.public

        def chunks(report: Any) -> Iterator[Rows]:
            for chunk in public.chunks():
                yield Rows(tokens=chunk)
                report.update(len(chunk))

        with self.place.progress.stage("Choose public text", len(public)) as report:
            return config.choose(chunks(report), sketch, num_rows=len(public))

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
