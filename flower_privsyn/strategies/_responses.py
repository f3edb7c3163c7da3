"""Responses of a generator to prompts of public samples, as POPri asks about them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from flower_privsyn.checks import PositiveInt
from flower_privsyn.data import Chunking, public_texts
from flower_privsyn.data.sentences import mostly_whole, whole_sentences
from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.files import append_json_lines, read_json_lines
from flower_privsyn.generation import Expand, TextGenerator, load_prompt, rehearse
from flower_privsyn.generation.backends import at_once, derive_seed
from flower_privsyn.generation.generators import GeneratorSettings
from flower_privsyn.generation.prompts import NUM_EXAMPLES, flattened, unusable
from flower_privsyn.progress import Progress
from flower_privsyn.run.method import State
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.strategies._population import Population

logger = logging.getLogger("flwr.privsyn")


@dataclass(frozen=True, kw_only=True)
class ResponseSettings(GeneratorSettings, PrivateSumConfig):
    """Settings of a method that has a generator respond to prompts of public samples."""

    num_prompts: PositiveInt = 1800
    """Prompts per round (K), each of three random public samples."""
    responses_per_prompt: Annotated[int, Ge(2)] = 10
    """Responses to each prompt (J), cut to `max_tokens` tokens of the embedding model, which is the
    length of the users' own samples, and there at the end of a sentence.
    """
    rejected_rank: Annotated[int, Ge(2)] = 5
    """Rank of the rejected response, 1-based, at most `responses_per_prompt`; the chosen one has
    rank 1. A prompt with fewer usable responses rejects its last.
    """
    prompt: str = "pre-text"
    """The prompt, a bundled name or a JSON file."""
    public_text: str = "bundled"
    """The samples in the prompts: "bundled", or a JSONL file with `text` and no person's data; also
    a folder or a data set by name (docs/own_data.md). Of many documents and more than 16 million
    characters evenly fewer are read.
    """
    synthetic_samples: PositiveInt = 2000
    """Texts to write at the end."""

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.rejected_rank > self.responses_per_prompt:
            raise ConfigError(
                f"rejected-rank = {self.rejected_rank} must be at most responses-per-prompt = "
                f"{self.responses_per_prompt}"
            )


class Responses:
    """A generator, and public samples in the prompts it responds to.

    Args:
        config: the settings.
        tokenizer: of the embedding model, by which samples and responses are cut.
        generator: in place of `config.generator`.

    Attributes:
        generator: the language model that writes.
        prompt: how public samples are laid out for it.
        samples: public ones, of at most `max_tokens` tokens.

    Raises:
        PrivsynError: something is missing or unusable.
    """

    def __init__(
        self, config: ResponseSettings, *, tokenizer: Any, generator: TextGenerator | None = None
    ) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.generator = config.load_generator() if generator is None else generator
        self.prompt = load_prompt(config.prompt).about(config.domain)
        self.samples: Sequence[str] = public_texts(
            config.public_text,
            tokenizer=tokenizer,
            max_tokens=config.max_tokens,
            whole_sentences=True,
            fewest=NUM_EXAMPLES,
            wanted_by=f'prompt = "{config.prompt}"',
        )

    @cached_property
    def whole(self) -> bool:
        """Whether the samples are prose: responses are cut to whole sentences as well."""
        return mostly_whole(self.samples)

    @property
    def ids(self) -> list[str]:
        """Identifiers of the samples, as parents of what is written after them."""
        return [f"public:{index}" for index in range(len(self.samples))]

    def expansion(self) -> Expand:
        """How the generator writes the texts in the end, after prompts of public samples too."""
        return Expand(
            self.generator, prompt=self.prompt, sampling=self.config.sampling_parameters()
        )

    def rehearse(self, adapter: Path | None) -> None:
        """Have the generator write once with an adapter; nothing is kept.

        Raises:
            GenerationError: it cannot do what a run needs.
        """
        rehearse(
            self.generator,
            self.prompt.render(list(self.samples[:NUM_EXAMPLES])),
            num_samples=self.config.responses_per_prompt,
            sampling=self.config.sampling_parameters(
                derive_seed(self.config.seed, "rehearsal", 0), self.prompt.stop
            ),
            adapter=adapter,
        )

    def written(
        self, number: int, *, adapter: Path | None, scratch: Path, progress: Progress
    ) -> State:
        """Write the responses of a round.

        Args:
            number: of the round.
            adapter: folder of the LoRA adapter that writes.
            scratch: a folder for responses as they come.
            progress: where the work reports.

        Returns:
            What `Population.state` has of the (m) that can be used; `group`, (m,) int64, the number
            of the prompt of each; `prompts`, (m) that prompt as the generator got it; `ends`, (m)
            what ended each response and was cut off, "" where it was cut short.

        Raises:
            GenerationError: the generator failed, or no response can be used.
        """
        file = scratch / "responses.jsonl"
        records = self._records(number, adapter, file, progress)
        found = self._usable(number, records)
        if not found["texts"]:
            # A resumed run asks for others: with these it would end here every time.
            file.unlink()
            raise GenerationError(
                f"round {number}: none of the responses to {len(records)} prompts can be used; a "
                "run that is resumed asks for them again"
            )
        return found

    def _records(
        self, number: int, adapter: Path | None, file: Path, progress: Progress
    ) -> list[dict[str, Any]]:
        """One record per prompt: its number, text, examples and raw responses."""
        each = self.config.responses_per_prompt
        records, plan = list(read_json_lines(file)), list(self._prompts(number))
        # One seed for the whole round: a response depends on it, its prompt and its number, and
        # so not on where an earlier attempt stopped.
        sampling = self.config.sampling_parameters(
            derive_seed(self.config.seed, "responses", number), self.prompt.stop
        )
        batch = max(1, at_once(self.generator) // each)
        with progress.stage(f"Round {number}: write responses", len(plan) * each) as stage:
            stage.update(len(records) * each)
            for start in range(len(records), len(plan), batch):
                part = plan[start : start + batch]
                responses = self.generator.generate(
                    [text for _, text in part],
                    num_samples=each,
                    sampling=sampling,
                    adapter=adapter,
                    progress=stage.update,
                )
                fresh = [
                    {"prompt": start + place, "text": text, "examples": examples, "responses": row}
                    for place, ((examples, text), row) in enumerate(
                        zip(part, responses, strict=True)
                    )
                ]
                append_json_lines(file, fresh)
                records += fresh
        return records

    def _prompts(self, number: int) -> Iterator[tuple[list[int], str]]:
        """The prompts of a round, each of three different public samples."""
        chooser = np.random.default_rng(derive_seed(self.config.seed, "examples", number))
        for _ in range(self.config.num_prompts):
            size = len(self.samples)
            drawn = chooser.choice(size, size=NUM_EXAMPLES, replace=False).tolist()
            yield drawn, self.prompt.render([self.samples[index] for index in drawn])

    def _usable(self, number: int, records: Sequence[dict[str, Any]]) -> State:
        """Parse and cut the responses; leave out what cannot be a candidate, and say how many."""
        raw = [
            self.prompt.parse(response) for record in records for response in record["responses"]
        ]
        # Cut as the users' samples are.
        cut = Chunking(max_tokens=self.config.max_tokens).pieces(raw, tokenizer=self.tokenizer)
        pieces = iter(zip(raw, [own[0] if own else "" for own in cut], strict=True))
        end = "\n" + self.prompt.marker.replace("{number}", str(NUM_EXAMPLES + 2))
        ids, rows, dropped = self.ids, list[tuple[str, dict[str, Any], str]](), Counter[str]()
        for record in records:
            examples = {flattened(self.samples[index]) for index in record["examples"]}
            seen: set[str] = set()
            for _ in record["responses"]:
                whole, text = next(pieces)
                text = (whole_sentences(text) or text) if self.whole else text
                if reason := unusable(text, examples=examples, known=seen):
                    dropped[reason] += 1
                else:
                    seen.add(flattened(text))
                    # The end of a text that was cut is no end, and must not be taught as one.
                    rows.append((text, record, end if whole.endswith(text) else ""))
        if dropped:
            logger.info(
                "round %d: %d of %d responses are left out (%s)",
                number,
                dropped.total(),
                len(raw),
                ", ".join(f"{count} {reason}" for reason, count in dropped.most_common()),
            )
        population = Population.create(
            [text for text, _, _ in rows],
            round_number=number,
            source="generated",
            parents=[[ids[index] for index in record["examples"]] for _, record, _ in rows],
        )
        return {
            **population.state(),
            "group": np.array([record["prompt"] for _, record, _ in rows], dtype=np.int64),
            "prompts": [record["text"] for _, record, _ in rows],
            "ends": [ending for _, _, ending in rows],
        }


def rank_pairs(
    scores: npt.NDArray[np.float64],
    group: npt.NDArray[np.int64],
    texts: Sequence[str],
    *,
    rejected_rank: int,
) -> tuple[list[int], list[int], dict[str, int]]:
    """Choose one pair per prompt: rank 1 against rank `rejected_rank`.

    Equal scores are ranked by index, so a text that was written twice is two candidates with two
    ranks. A prompt with fewer candidates than `rejected_rank` rejects its last.

    Args:
        scores: (m,) float64, finite, higher is better.
        group: (m,) int64, the prompt of each candidate, in any order.
        texts: (m) the candidates.
        rejected_rank: 1-based, >= 2.

    Returns:
        (p) indices of the chosen candidates, (p) of the rejected ones of the same prompts, and how
        many prompts gave no pair, by reason: "one-response" (chosen and rejected are the same
        candidate), "equal-text".

    References:
        Hou et al. 2025 (POPri), Algorithm 1: the pairs of a round.
    """
    # Stable in both keys: prompts in ascending order, best first, ties by index.
    order = np.lexsort((-scores, group))
    borders = np.flatnonzero(np.diff(group[order], prepend=group[order][:1] - 1))
    chosen: list[int] = []
    rejected: list[int] = []
    dropped = {"one-response": 0, "equal-text": 0}
    for start, stop in zip(borders, [*borders[1:], len(order)], strict=True):
        best = int(order[start])
        other = int(order[min(start + rejected_rank, stop) - 1])
        if best == other:
            dropped["one-response"] += 1
        elif texts[best] == texts[other]:
            dropped["equal-text"] += 1
        else:
            chosen.append(best)
            rejected.append(other)
    return chosen, rejected, dropped
