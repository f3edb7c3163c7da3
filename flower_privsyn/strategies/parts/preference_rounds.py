"""The server's half of POPri's rounds: write responses, rank them by scores, train on the pairs.

Nothing here sees anything private but the scores that were released.

Papers:
    Hou, Wang, Zhu, Lazar, Fanti: "Private Federated Learning using Preference-Optimized Synthetic
    Data" (POPri, ICML 2025), Algorithm 1.
    Rafailov et al.: "Direct Preference Optimization: Your Language Model is Secretly a Reward
    Model" (NeurIPS 2023).
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import GenerationError
from flower_privsyn.files import append_json_lines, located, read_json_lines, write_json
from flower_privsyn.generation.api_key import is_address
from flower_privsyn.runs.rounds import EXPANDED, RoundFiles
from flower_privsyn.strategies.parts.candidates import Candidates
from flower_privsyn.strategies.parts.population import Population
from flower_privsyn.strategies.parts.preferences import PreferenceConfig, PreferenceTrainer
from flower_privsyn.strategies.parts.public_side import NUM_EXAMPLES, PublicSide
from flower_privsyn.strategies.parts.ranking import rank_pairs

if TYPE_CHECKING:
    from flower_privsyn.generation import SamplingParameters
    from flower_privsyn.host.progress import Progress
    from flower_privsyn.runs import RunDirectory

logger = logging.getLogger("flwr.privsyn")

#: Responses asked of a server at a time, after which they are written down: of many requests the
#: slowest ends much later than most.
_SERVER_BATCH = 4096


class PreferenceRounds:
    """What the server does in a round: write responses, rank them, train on pairs of them.

    Responses are written down as they come, and an adapter is not trained again once it is there:
    so a run that is killed goes on where it was.

    Args:
        config: the settings.
        public: models and public text.
        run: the run directory.
        progress: where long work reports its steps.
        trainer: in place of `flower_privsyn.training.train_preferences`.
    """

    def __init__(
        self,
        config: PreferenceConfig,
        public: PublicSide,
        *,
        run: RunDirectory,
        progress: Progress,
        trainer: PreferenceTrainer | None = None,
    ) -> None:
        self._config = config
        self._public = public
        self._run = run
        self._progress = progress
        self._trainer = trainer

    def _adapter(self, number: int) -> Path | None:
        """The adapter that a round trained; None for round 0."""
        return self._run.rounds.files(number).adapter if number else None

    # ------------------------------------------------------------------ before the first release

    def rehearse(self) -> None:
        """Train an adapter on nothing and write with it, so that what cannot work fails early.

        A server that is down or loads no adapters, a model that cannot be trained, or a folder
        that server and run do not share would else be found after a release was paid for.

        Raises:
            PrivsynError: the generator or the training cannot do what the run needs.
        """
        from flower_privsyn.generation import rehearse
        from flower_privsyn.training import train_preferences

        config, public = self._config, self._public
        folder, adapter = self._run.rounds.folder / ".rehearsal", None
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        try:
            with self._progress.stage("Try the generator", total=None):
                if self._trainer is None:
                    adapter = folder / "adapter"
                    train_preferences(
                        located(config.model_to_train),
                        (),
                        adapter=None,
                        output=adapter,
                        settings=config.training(),
                        seed=0,
                    )
                rehearse(
                    public.generator,
                    public.prompt.render(list(public.seeds[:NUM_EXAMPLES])),
                    num_samples=config.responses_per_prompt,
                    sampling=self._sampling("rehearsal", 0),
                    adapter=adapter,
                )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _sampling(self, purpose: str, number: int) -> SamplingParameters:
        """How responses are drawn, with a seed of its own for a purpose and a round."""
        from flower_privsyn.generation import SamplingParameters

        config = self._config
        return SamplingParameters(
            seed=self.seed(purpose, number),
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            stop=(self._public.prompt.stop,),
        )

    @property
    def _batch_size(self) -> int:
        from flower_privsyn.generation.backends import at_once

        remote = is_address(self._config.generator)
        return _SERVER_BATCH if remote else at_once(self._public.generator)

    # ------------------------------------------------------------------ writing

    def candidates(self, number: int, *, by: int, scratch: Path) -> Candidates:
        """Write and embed the candidates of a round.

        Args:
            number: of the round.
            by: the round whose adapter writes; 0 for none.
            scratch: a folder for responses as they come.

        Raises:
            GenerationError: the generator failed, or no response can be used.
        """
        responses = scratch / "responses.jsonl"
        records = self._responses(number, self._adapter(by), responses)
        if (usable := self._usable(number, records)) is None:
            # A resumed run asks for others: with these it would end here every time.
            responses.unlink()
            raise GenerationError(
                f"round {number}: none of the responses to {len(records)} prompts can be used; a "
                "run that is resumed asks for them again"
            )
        return self._embed(number, usable)

    def _responses(self, number: int, adapter: Path | None, file: Path) -> list[dict[str, Any]]:
        """One record per prompt: its number, text, examples and raw responses."""
        config, public = self._config, self._public
        records = list(read_json_lines(file))
        plan = list(self._prompts(number))
        # One seed for the whole round: a response depends on it, its prompt and its number, and
        # so not on where an earlier attempt stopped.
        sampling = self._sampling("responses", number)
        batch = max(1, self._batch_size // config.responses_per_prompt)
        total = config.num_prompts * config.responses_per_prompt
        with self._progress.stage(f"Round {number}: write responses", total) as stage:
            stage.update(len(records) * config.responses_per_prompt)
            for start in range(len(records), len(plan), batch):
                part = plan[start : start + batch]
                responses = public.generator.generate(
                    [text for _, text in part],
                    num_samples=config.responses_per_prompt,
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
        """The prompts of a round, each of three different public samples, no two alike."""
        seeds, prompt = self._public.seeds, self._public.prompt
        chooser = np.random.default_rng(self.seed("examples", number))
        seen: set[tuple[int, ...]] = set()
        for _ in range(self._config.num_prompts):
            # With hardly any public text the same prompt is asked twice rather than never.
            for _ in range(16):
                drawn = chooser.choice(len(seeds), size=NUM_EXAMPLES, replace=False).tolist()
                if tuple(drawn) not in seen:
                    break
            seen.add(tuple(drawn))
            yield drawn, prompt.render([seeds[index] for index in drawn])

    def _usable(self, number: int, records: Sequence[dict[str, Any]]) -> Candidates | None:
        """Parse and cut the responses; leave out what cannot be a candidate, and say how many."""
        prompt, seeds = self._public.prompt, self._public.seeds
        ids = self._public.seed_ids
        raw = [prompt.parse(response) for record in records for response in record["responses"]]
        pieces = iter(zip(raw, self._cut(raw), strict=True))
        end = "\n" + prompt.marker.replace("{number}", str(NUM_EXAMPLES + 2))
        texts: list[str] = []
        parents: list[tuple[str, ...]] = []
        group: list[int] = []
        prompts: list[str] = []
        ends: list[str] = []
        dropped: Counter[str] = Counter()
        for record in records:
            examples = {_flat(seeds[index]) for index in record["examples"]}
            seen: set[str] = set()
            for _ in record["responses"]:
                whole, text = next(pieces)
                flat = _flat(text)
                if not flat:
                    dropped["empty"] += 1
                elif "\ufffd" in text:
                    dropped["broken-character"] += 1
                elif flat in examples:
                    dropped["copy-of-example"] += 1
                elif flat in seen:
                    dropped["duplicate"] += 1
                else:
                    seen.add(flat)
                    texts.append(text)
                    parents.append(tuple(ids[index] for index in record["examples"]))
                    group.append(int(record["prompt"]))
                    prompts.append(record["text"])
                    # The end of a text that was cut is no end, and must not be taught as one.
                    ends.append(end if whole.endswith(text) else "")
        if dropped:
            logger.info(
                "round %d: %d of %d responses are left out (%s)",
                number,
                dropped.total(),
                len(raw),
                _counted(dropped),
            )
        if not texts:
            return None
        return Candidates(
            population=Population.create(
                texts, round_number=number, source="generated", parents=parents
            ),
            group=np.asarray(group, dtype=np.int64),
            prompts=tuple(prompts),
            ends=tuple(ends),
        )

    def _cut(self, texts: Sequence[str]) -> list[str]:
        """The first `max_tokens` tokens of each text, cut as the users' samples are."""
        from flower_privsyn.data import Cut

        cut = Cut(max_tokens=self._config.max_tokens)
        pieces = cut.pieces(texts, tokenizer=self._public.embedder.tokenizer)
        return [own[0] if own else "" for own in pieces]

    def _embed(self, number: int, candidates: Candidates) -> Candidates:
        with self._progress.stage(f"Round {number}: embed candidates", len(candidates)) as stage:
            embeddings = self._public.embedder.embed(
                candidates.population.texts, progress=stage.update
            )
        # As they travel, where they do: scores are of the very numbers that nodes have seen.
        sent = embeddings.astype(self._config.broadcast_precision).astype(np.float32)
        return replace(candidates, population=candidates.population.with_embeddings(sent))

    # ------------------------------------------------------------------ learning

    def learn(
        self, number: int, candidates: Candidates, scores: npt.NDArray[np.float64], *, by: int
    ) -> dict[str, Any]:
        """Rank the candidates of a round, keep the pairs, and train the next adapter on them.

        Args:
            number: the round.
            candidates: that were asked about.
            scores: (m,) float64, one per candidate, higher is better.
            by: the round whose adapter is trained on; 0 for none.

        Returns:
            What was done: `pairs`, `dropped`, and where training ran its `steps`, `loss`,
            `margin`, `accuracy` and `too_long`. Also in `training.json`, which is
            written last; a round that has it is not learned from again.

        Raises:
            PrivsynError: training failed; the adapter of the round before is untouched.
        """
        from flower_privsyn.training import PreferencePair, train_preferences

        config, texts = self._config, candidates.population.texts
        files = RoundFiles(self._run.round_dir(number))
        if record := files.record("training"):
            return record
        ranked = rank_pairs(scores, candidates.group, texts, rejected_rank=config.rejected_rank)
        m = len(candidates)
        candidates.to_parquet(
            files.candidates,
            score=scores.tolist(),
            chosen=np.isin(np.arange(m), ranked.chosen).tolist(),
            rejected=np.isin(np.arange(m), ranked.rejected).tolist(),
        )
        record = {"pairs": len(ranked.chosen), "dropped": ranked.dropped}
        if len(ranked.chosen) == 0:
            logger.warning("round %d: no prompt gave a pair; the generator stays", number)
        else:
            pairs = [
                PreferencePair(
                    prompt=candidates.prompts[best],
                    chosen=texts[best],
                    rejected=texts[other],
                    chosen_end=candidates.ends[best],
                    rejected_end=candidates.ends[other],
                )
                for best, other in zip(ranked.chosen, ranked.rejected, strict=True)
            ]
            train = self._trainer or train_preferences
            passes = config.training_epochs * len(pairs)
            with self._progress.stage(f"Round {number}: train on pairs", passes) as stage:
                report = train(
                    located(config.model_to_train),
                    pairs,
                    adapter=self._adapter(by),
                    output=files.adapter,
                    settings=config.training(),
                    seed=self.seed("training", number),
                    progress=stage.update,
                )
            if report.too_long:
                logger.warning(
                    "round %d: %d of %d pairs are too long to train on",
                    number,
                    len(report.too_long),
                    len(pairs),
                )
            record |= {
                "steps": report.steps,
                "loss": report.loss,
                "margin": report.margin,
                "accuracy": report.accuracy,
                "too_long": len(report.too_long),
            }
        write_json(files.training, record)
        return record

    # ------------------------------------------------------------------ choosing and finishing

    def corpus(self, *, round_number: int, by: int) -> dict[str, Any]:
        """Write `synthetic.jsonl` with an adapter.

        Args:
            round_number: in which the adapter writes; stored with every text.
            by: the round that trained it; 0 for none.

        Returns:
            `synthetic_texts` and `dropped`, for the end of the run.

        Raises:
            GenerationError: the generator failed, or nothing that it wrote can be kept; a resumed
                run goes on with what is there.
        """
        from flower_privsyn.strategies.parts.synthesis import expand_resumably, refuse_nothing

        config, public = self._config, self._public
        run = self._run
        kept = run.path / EXPANDED
        records, dropped = expand_resumably(
            public.expansion(config, batch_size=self._batch_size),
            public.seeds,
            ids=public.seed_ids,
            num_samples=config.synthetic_samples,
            kept=kept,
            seed=self.seed("corpus", 0),
            round_number=round_number,
            source="generated",
            stage="Write synthetic texts",
            progress=self._progress,
            adapter=self._adapter(by),
        )
        refuse_nothing(
            records,
            dropped,
            num_samples=config.synthetic_samples,
            generator=public.generator.name,
        )
        run.write_synthetic(records)
        kept.unlink(missing_ok=True)
        return {"synthetic_texts": len(records), "dropped": dropped}

    def seed(self, *purpose: str | int) -> int:
        """A seed of public randomness, different for every purpose and round."""
        from flower_privsyn.generation.streams import derive_seed

        return derive_seed(self._config.seed, *purpose)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common()) or "none"
