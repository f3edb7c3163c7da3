"""Expansion: a few texts in a numbered list, and a language model that writes the next one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from flower_privsyn.data.sentences import WORD, is_fragment, mostly_whole, whole_sentences
from flower_privsyn.errors import GenerationError
from flower_privsyn.generation import streams
from flower_privsyn.generation.backends import (
    SamplingParameters,
    TextGenerator,
    at_once,
    derive_seed,
    rehearse,
)
from flower_privsyn.generation.prompted import below_heading
from flower_privsyn.generation.prompts import (
    NUM_EXAMPLES,
    QUOTE,
    Prompt,
    flattened,
    load_prompt,
    opened,
    quoted,
    unusable,
)

BatchCallback = Callable[[Sequence[str], Sequence[tuple[int, ...]], int], None]
"""Called with the texts just kept, for each the indices of the seeds in its prompt, and how many
continuations were asked for by then."""


#: Continuations that are asked for at most, for each text that is wanted.
_MOST_ATTEMPTS: Final = 4

#: Quotations that a generator which has learnt some is shown before it opens its own.
_NUM_QUOTED: Final = 2

#: Triples of words for every one that may stand there a second time: a short text repeats itself or
#: does not, and most long ones of people say "one of the" twice.
_TRIPLES_TO_A_REPEAT: Final = 30

_NO_SEED: Final = "expansion needs at least one seed that is not empty"

DROP_REASONS = ("empty", "broken-character", "duplicate", "copy-of-example", "surplus")


class Expand:
    """The last step of PrE-Text: released texts become many synthetic ones.

    Every prompt holds ``num_examples`` different random seeds; the model's continuation up to the
    next marker line is the new text. Empty ones, exact duplicates, copies of an example and texts
    with a broken character are dropped and counted, and generation goes on until enough are kept
    or the attempts are used up. Where most seeds are whole sentences a text is cut at the end of
    its last one, and dropped where that leaves no sentence of eight words or more, or the same
    three words twice.

    Attributes:
        generator: The language model, which is asked for as many texts at a time as it says
            (`flower_privsyn.generation.backends.at_once`).
        num_examples: Seeds in a prompt.

    Formal guarantee:
        Post-processing of the seeds: where they are released or public texts, nothing is spent.

    References:
        Hou et al., PrE-Text, ICML 2024, section 3 (Expand) and figure 3: 3 seeds, LLaMA-2-7B,
        temperature 1, top-p 1, 85 new tokens. Their code keeps empty and repeated texts, and cuts
        at the letters "Orig".
    """

    def __init__(
        self,
        generator: TextGenerator,
        *,
        prompt: Prompt | str | Path | None = "pre-text",
        sampling: SamplingParameters | None = None,
        domain: str = "text",
        chat: bool = False,
    ) -> None:
        """Choose how to expand.

        Args:
            generator: The language model.
            prompt: A bundled prompt's name, the path of a prompt file, or a prompt; None for a
                generator that has learnt quotations: it opens one after those of two seeds.
            sampling: How continuations are drawn; None takes the paper's settings. Its seed is
                replaced by the one of `run`, its stop strings are joined by the prompt's.
            domain: What the texts are, in public words, for a generator without a prompt
                (`flower_privsyn.generation.prompts.quoted`).
            chat: Whether the generator answers messages: every prompt is one, after its
                `instruction` as the system's. Headings that the model repeats and quotes around
                what it writes are no part of the text.

        Raises:
            ConfigError: The prompt cannot be read.
        """
        self.generator = generator
        if isinstance(prompt, str | Path):
            prompt = load_prompt(prompt)
        self._prompt = prompt
        self.num_examples = _NUM_QUOTED if prompt is None else NUM_EXAMPLES
        sampling = SamplingParameters(seed=0) if sampling is None else sampling
        self._domain = domain
        end = QUOTE if prompt is None else prompt.stop
        # Not sent to a chat model: they stand in thoughts, and before a heading that it repeats.
        stop = () if chat else tuple(dict.fromkeys((*sampling.stop, end)))
        self._sampling = replace(sampling, stop=stop)
        self._system = prompt.instruction if chat and prompt is not None else None

    def rehearse(self, seeds: Sequence[str]) -> None:
        """Have the generator write once, after a prompt of these texts; nothing is kept.

        Args:
            seeds: Texts of the kind that `run` gets, at least one of them not empty.

        Raises:
            GenerationError: There is no text, or the generator cannot do what `run` needs.
        """
        examples = [text for text in seeds if flattened(text)][: self.num_examples]
        if not examples:
            raise GenerationError(_NO_SEED)
        rehearse(
            self.generator,
            self._rendered(examples),
            sampling=self._sampling,
            system=self._system,
        )

    def run(
        self,
        seeds: Sequence[str],
        *,
        num_samples: int,
        seed: int,
        adapter: Path | None = None,
        on_batch: BatchCallback | None = None,
        kept: int = 0,
        attempts: int = 0,
        known: Sequence[str] = (),
    ) -> Expanded:
        """Write new texts.

        Args:
            seeds: The texts to stand in the prompts, never one twice in the same prompt. A text
                that is given several times is drawn more often; empty ones are passed over. With
                fewer different texts than ``num_examples`` every prompt holds them all. Without a
                prompt there may be none: the generator opens a quotation and is shown nothing.
            num_samples: How many texts to keep, those kept before included, >= 0.
            seed: 0 <= seed < 2**64; the same seeds, settings and seed give the same texts.
            adapter: The folder of a LoRA adapter for the generator.
            on_batch: Called after every batch with what it kept (never with nothing), so that
                finished texts can be written down before the next batch is begun.
            kept: Texts that an interrupted call with the same arguments kept: this one writes those
                that are missing, which are those that it would have written.
            attempts: Continuations that it asked for.
            known: Texts that are not to be written again.

        Returns:
            The texts kept now; fewer than ``num_samples`` when the attempts were used up.

        Raises:
            GenerationError: There is no seed with any text, or the generator failed.
        """
        flat = [flattened(text) for text in seeds]
        pool = [place for place, text in enumerate(flat) if text]
        if not pool and self._prompt is not None:
            raise GenerationError(_NO_SEED)
        num_chosen = min(self.num_examples, len({flat[index] for index in pool}))
        max_attempts = num_samples * _MOST_ATTEMPTS
        missing = max(0, num_samples - kept)
        found = Expanded(missing, whole=mostly_whole(flat), known=known)
        while found.missing and attempts < max_attempts:
            # As many as will probably be missing, given the share kept so far.
            share = max(kept + len(found.texts), 1) / attempts if attempts else 1.0
            likely = max(1, round(found.missing / share))
            size = min(at_once(self.generator), likely, max_attempts - attempts)
            chosen = [
                _choose(pool, flat, num_chosen, seed, attempts + number) if pool else ()
                for number in range(size)
            ]
            prompts = [self._rendered([seeds[index] for index in group]) for group in chosen]
            continuations = self.generator.generate(
                prompts,
                sampling=replace(self._sampling, seed=derive_seed(seed, "continuation", attempts)),
                system=self._system,
                adapter=adapter,
            )
            attempts += size
            first = len(found.texts)
            for group, prompt, (text,) in zip(chosen, prompts, continuations, strict=True):
                examples = {flat[index] for index in group}
                found.take(self._parsed(prompt, text), group, examples)
            if len(found.texts) > first and on_batch is not None:
                on_batch(found.texts[first:], found.parents[first:], attempts)
        return found

    def _rendered(self, examples: Sequence[str]) -> str:
        if self._prompt is not None:
            return self._prompt.render(examples)
        shown = [quoted(self._domain, flattened(text)) for text in examples]
        return "\n\n".join([*shown, opened(self._domain)])

    def _parsed(self, prompt: str, text: str) -> str:
        if self._prompt is None:
            return text.strip()
        if self._system is not None:
            text = below_heading(prompt.rstrip("\n").rpartition("\n")[2], text)
        return self._prompt.parse(text)


class Expanded:
    """What an expansion has written, and why it left other texts out.

    Args:
        wanted: how many texts are wanted.
        whole: whether a text is cut to whole sentences, and dropped below `LEAST_WORDS` words of
            them, or where it says the same three words twice; else every text is kept.
        known: texts that are not to be kept again.

    Attributes:
        texts: The kept texts, in the order they were kept.
        parents: For each text the indices (into the seeds as given) that stood in its prompt.
        dropped: How many continuations were dropped, by reason: ``"empty"``,
            ``"broken-character"`` (tokens that make up no whole character), ``"duplicate"`` (of a
            text kept before, white space aside), ``"copy-of-example"`` (of a seed in its own
            prompt), ``"surplus"`` (generated in the last batch, but no longer wanted) and, where
            the seeds are whole sentences, ``"no-sentence"`` (it begins in the middle of one, ends
            none or has fewer than eight words) and ``"repetition"`` (of three words, more than one
            triple in thirty).
    """

    def __init__(self, wanted: int, *, whole: bool, known: Sequence[str]) -> None:
        self._wanted = wanted
        self._whole = whole
        self._known = set(map(flattened, known))
        self.texts: list[str] = []
        self.parents: list[tuple[int, ...]] = []
        reasons = [*DROP_REASONS, *["no-sentence", "repetition"] * whole]
        self.dropped: Counter[str] = Counter(dict.fromkeys(reasons, 0))

    @property
    def missing(self) -> int:
        """How many texts are still wanted."""
        return self._wanted - len(self.texts)

    def take(self, text: str, parents: tuple[int, ...], examples: set[str]) -> None:
        """Keep a new text, or count why it is dropped.

        Args:
            text: as the generator wrote it.
            parents: places of the seeds in its prompt.
            examples: those seeds, normalised.
        """
        cut = whole_sentences(text) if self._whole else text
        if reason := self._reason(text, cut, examples):
            self.dropped[reason] += 1
            return
        self._known.add(flattened(cut))
        self.texts.append(cut)
        self.parents.append(parents)

    def _reason(self, text: str, cut: str, examples: set[str]) -> str:
        """Why a text is dropped, of which `cut` may be kept; "" where it is kept."""
        if not self.missing:
            return "surplus"
        reason = unusable(cut or text, examples=examples, known=self._known)
        if reason or not self._whole:
            return reason
        if is_fragment(cut):
            return "no-sentence"
        words = WORD.findall(cut)
        triples = list(zip(words, words[1:], words[2:], strict=False))
        repeated = len(triples) - len(set(triples))
        return "repetition" if repeated > len(triples) // _TRIPLES_TO_A_REPEAT else ""


def _choose(
    pool: Sequence[int], flat: Sequence[str], size: int, seed: int, attempt: int
) -> tuple[int, ...]:
    """Draw the examples of one prompt: ``size`` different texts, repeated ones more often."""
    random = streams.stream(derive_seed(seed, "examples", attempt))
    chosen: dict[str, int] = {}
    for _ in range(16):
        for place in random.integers(len(pool), size=2 * size).tolist():
            index = pool[place]
            chosen.setdefault(flat[index], index)
            if len(chosen) == size:
                return tuple(chosen.values())
    # A few texts make up nearly all of the pool: go through it once in random order instead.
    for place in random.permutation(len(pool)).tolist():
        chosen.setdefault(flat[pool[place]], pool[place])
        if len(chosen) == size:
            break
    return tuple(chosen.values())
