"""The server's half of POPri's rounds: write responses, rank them by scores, train on the pairs.

Where the scores come from is the caller's: a release in every round (`POPri`), or one kernel sketch
for all of them (`KernelSketch`). Nothing here sees anything private.

Papers:
    Hou, Wang, Zhu, Lazar, Fanti: "Private Federated Learning using Preference-Optimized Synthetic
    Data" (POPri, ICML 2025), Algorithm 1.
    Rafailov et al.: "Direct Preference Optimization: Your Language Model is Secretly a Reward
    Model" (NeurIPS 2023).
"""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ConfigError, DataError, GenerationError, MissingExtraError
from flower_privsyn.files import append_json_lines, located, read_json_lines, write_json
from flower_privsyn.generation.api_key import API_KEY_VARIABLE, check_generator
from flower_privsyn.private_path.settings import (
    PrivateSumConfig,
    check_choice,
    check_integer,
    check_number,
)
from flower_privsyn.queries import KernelMean, mean_features
from flower_privsyn.strategies.parts.population import Population

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.generation import Prompt, SamplingParameters, TextGenerator
    from flower_privsyn.host.progress import Progress
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.strategies.parts.sketch import Sketch
    from flower_privsyn.training import PreferencePair, PreferenceTraining, TrainingReport

logger = logging.getLogger("flwr.privsyn")

#: Public samples in a prompt, as in the paper's figure 5.
NUM_EXAMPLES = 3

#: Responses asked of the generator at a time, after which they are written down: little enough
#: that an interruption costs a minute, enough that a server with a GPU is kept busy.
_LOCAL_BATCH, _SERVER_BATCH = 256, 4096


#: What a run may be resumed with when its training did not fit into memory: the rounds so far are
#: paid for, and these change the memory alone.
MEMORY_SETTINGS = frozenset({"training-micro-batch-size", "gradient-checkpointing"})


#: How many texts to write at the end, and how a server lets one in.
FREE_SETTINGS = frozenset({"synthetic-samples", "generator-api-key-env"})

#: What writes the synthetic texts once no release is left to be made.
WRITING_SETTINGS = frozenset(
    {"generator", "training-model", "prompt", "temperature", "top-p", "max-new-tokens"}
)


class PreferenceTrainer(Protocol):
    """What turns pairs into the next adapter: `flower_privsyn.training.train_preferences`."""

    def __call__(
        self,
        model: str | Path,
        pairs: Sequence[PreferencePair],
        *,
        adapter: Path | None,
        output: Path,
        settings: PreferenceTraining,
        seed: int,
        progress: Callable[[int], None] | None = None,
    ) -> TrainingReport:
        """Write the adapter `output` and say what was done."""
        ...


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig(PrivateSumConfig):
    """Settings of every strategy that trains a generator on preferences among its own texts.

    Attributes:
        max_samples: samples of one user that count, a random subset fixed per user and seed; 0 for
            all of them, as in the paper: the clip bounds a user whatever their number. The default
            bounds the time a user's answer takes, which nothing noises: 64 samples of 64 tokens are
            about 3,000 words, and the mean over so many has an eighth of one sample's spread.
        num_prompts: prompts per round (K), >= 1, each of three random public samples.
        responses_per_prompt: responses to each prompt (J), >= 2.
        rejected_rank: rank of the rejected response, 1-based, in [2, responses_per_prompt]; the
            chosen one has rank 1. A prompt with fewer usable responses rejects its last.
        loss: "dpo", "ipo", or "sft": cross-entropy on the chosen responses alone, the PE+SFT
            baseline of the paper.
        beta: DPO's beta or IPO's tau, > 0; 0.01 in the authors' code.
        lora_rank: rank of the adapter, >= 1; 4 printed, 16 in the authors' code.
        lora_alpha: its scale times its rank, >= 1; 8 printed, 16 in the authors' code.
        learning_rate: peak rate of AdamW, > 0. The default suits `privsyn-lm`; for LLaMA-3-8B the
            paper has 3e-7 to 8e-7.
        learning_rate_schedule: "cosine" to zero, or "constant".
        warmup_steps: steps of linear warm-up, >= 0.
        training_epochs: passes over a round's pairs, >= 1.
        training_batch_size: pairs per step, >= 1.
        training_micro_batch_size: at most this many pairs go through the model at a time, >= 1. It
            changes memory, not the result, so a resumed run may have another one.
        gradient_checkpointing: recompute activations in the backward pass, for large models; a
            resumed run may have it otherwise.
        reference: what the loss measures against: "base", the public model, or "previous", the
            adapter the round began with.
        temperature: sampling temperature, > 0; 1.0 was best in the paper's ablation.
        top_p: nucleus, in (0, 1].
        max_new_tokens: tokens of the generator per response, >= 1. Responses are cut to
            `max_tokens` tokens of the embedding model, the length of the users' own samples.
        prompt: the prompt, a bundled name or a JSON file.
        generator: causal language model that writes; a name, a path, or
            "http://host:port/v1#model" for an OpenAI-compatible server such as vLLM's.
        generator_api_key_env: the environment variable of the ServerApp that holds the server's
            key; the key itself is never a setting. No key is sent where the usual one is not set.
        training_model: the same model as a local folder or hub name, to train adapters on; "" for
            `generator` itself, unless that is a server.
        public_text: the samples in the prompts: "bundled", or a JSONL file with `text` and no
            person's data.
        synthetic_samples: texts to write at the end, >= 1.
        checkpoint: which round's adapter writes them: "last"; "sketch-mmd": the one whose
            responses have the smallest squared distance to a released kernel mean; "validation",
            for research only: to the private text in `validation_text`, outside the budget.
        research: allow what the ledger does not cover, and stamp the run with it. Needed for
            `checkpoint = "validation"` and for nothing else.
        validation_text: for "validation", a JSONL file with `text`.
        patience: end the rounds when the responses have not come nearer to that mean for so many
            of them, >= 1; 0 for never. Needs `checkpoint = "sketch-mmd"`.
        num_features: random features of the kernel mean (D), even, >= 2.
        bandwidth: of its Gaussian kernel, > 0; 0 for the median heuristic on public text.
        embedding_weight: share of the embedding itself in the features, in [0, 1].

    References:
        Hou et al. 2025 (POPri), section 4 and appendix; values above are from there unless said.
    """

    delta: float = 3e-6
    max_samples: int = 64
    num_prompts: int = 1800
    responses_per_prompt: int = 10
    rejected_rank: int = 5
    loss: Literal["dpo", "ipo", "sft"] = "dpo"
    beta: float = 0.1
    lora_rank: int = 4
    lora_alpha: int = 8
    learning_rate: float = 1e-3
    learning_rate_schedule: Literal["cosine", "constant"] = "cosine"
    warmup_steps: int = 0
    training_epochs: int = 2
    training_batch_size: int = 24
    training_micro_batch_size: int = 8
    gradient_checkpointing: bool = False
    reference: Literal["base", "previous"] = "base"
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 85
    prompt: str = "pre-text"
    generator: str = "privsyn-lm"
    generator_api_key_env: str = API_KEY_VARIABLE
    training_model: str = ""
    public_text: str = "bundled"
    synthetic_samples: int = 2000
    checkpoint: Literal["last", "sketch-mmd", "validation"] = "last"
    research: bool = False
    validation_text: str = ""
    patience: int = 0
    num_features: int = 4096
    bandwidth: float = 0.0
    embedding_weight: float = 0.0

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        check_generator(self.generator, self.generator_api_key_env)
        for key, low in (
            ("num_prompts", 1),
            ("responses_per_prompt", 2),
            ("rejected_rank", 2),
            ("lora_rank", 1),
            ("lora_alpha", 1),
            ("warmup_steps", 0),
            ("training_epochs", 1),
            ("training_batch_size", 1),
            ("training_micro_batch_size", 1),
            ("max_new_tokens", 1),
            ("synthetic_samples", 1),
            ("patience", 0),
            ("num_features", 2),
        ):
            check_integer(key.replace("_", "-"), getattr(self, key), low=low)
        for key in ("beta", "learning_rate", "temperature"):
            check_number(key.replace("_", "-"), getattr(self, key), low=0, low_open=True)
        check_number("top-p", self.top_p, low=0, high=1, low_open=True)
        check_number("bandwidth", self.bandwidth, low=0)
        check_number("embedding-weight", self.embedding_weight, low=0, high=1)
        check_choice("loss", self.loss, ("dpo", "ipo", "sft"))
        check_choice("learning-rate-schedule", self.learning_rate_schedule, ("cosine", "constant"))
        check_choice("reference", self.reference, ("base", "previous"))
        check_choice("checkpoint", self.checkpoint, ("last", "sketch-mmd", "validation"))
        by_validation = self.checkpoint == "validation"
        if by_validation != self.research or by_validation != bool(self.validation_text):
            raise ConfigError(
                'checkpoint = "validation", research = true and validation-text go together: the '
                "choice uses private text outside the budget. Got checkpoint = "
                f'"{self.checkpoint}", research = {str(self.research).lower()} and '
                f'validation-text = "{self.validation_text}"'
            )
        if self.rejected_rank > self.responses_per_prompt:
            raise ConfigError(
                f"rejected-rank = {self.rejected_rank} must be at most responses-per-prompt = "
                f"{self.responses_per_prompt}"
            )
        if self.patience and self.checkpoint != "sketch-mmd":
            raise ConfigError(
                f'patience = {self.patience} needs checkpoint = "sketch-mmd", got checkpoint = '
                f'"{self.checkpoint}": nothing else that is released says how near a round came'
            )
        if self.num_features % 2:
            raise ConfigError(f"num-features must be even, got {self.num_features}")
        if self.needs_training and not self.model_to_train:
            raise ConfigError(
                f'generator = "{self.generator}" is a server: set training-model to the folder or '
                "hub name of the model it serves, on which the adapters are trained"
            )

    @property
    def needs_training(self) -> bool:
        """Whether a run with these settings trains adapters."""
        return True

    @property
    def model_to_train(self) -> str:
        """The model adapters are trained on; empty when only a server is named."""
        if self.training_model:
            return self.training_model
        if self.generator.startswith(("http://", "https://")):
            return ""
        return self.generator.removeprefix("vllm:")

    def training(self) -> PreferenceTraining:
        """The settings of one round's training."""
        from flower_privsyn.training import PreferenceTraining

        return PreferenceTraining(
            loss=self.loss,
            beta=self.beta,
            lora_rank=self.lora_rank,
            lora_alpha=self.lora_alpha,
            learning_rate=self.learning_rate,
            schedule=self.learning_rate_schedule,
            warmup_steps=self.warmup_steps,
            epochs=self.training_epochs,
            batch_size=self.training_batch_size,
            micro_batch_size=self.training_micro_batch_size,
            gradient_checkpointing=self.gradient_checkpointing,
            max_tokens=_MAX_TRAINING_TOKENS,
            max_new_tokens=self.max_new_tokens,
            reference=self.reference,
        )


#: Prompt and response of four samples of `max_tokens` = 64 stay below it with any tokenizer.
_MAX_TRAINING_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class PublicSide:
    """What the server needs besides releases: models and public text.

    Attributes:
        embedder: the embedding model the nodes use as well.
        generator: the language model that writes.
        prompt: how public samples are laid out for it.
        seeds: public samples of at most `max_tokens` tokens.
    """

    embedder: Embedder
    generator: TextGenerator
    prompt: Prompt
    seeds: tuple[str, ...]

    @classmethod
    def load(
        cls,
        config: PreferenceConfig,
        *,
        embedder: Embedder | None = None,
        generator: TextGenerator | None = None,
        check_training: bool = True,
    ) -> PublicSide:
        """Load and check everything, before any budget is spent.

        Args:
            config: the settings.
            embedder: in place of `config.embedding_model`.
            generator: in place of `config.generator`.
            check_training: whether adapters are trained here, with the package's own training.

        Raises:
            PrivsynError: something is missing or unusable.
        """
        from flower_privsyn.data import public_texts
        from flower_privsyn.embedding import (
            default_cache_directory,
            load_embedder,
            require_company,
        )
        from flower_privsyn.generation import load_generator, load_prompt
        from flower_privsyn.models import resolve_model

        if check_training:
            missing = [name for name in ("trl", "peft") if not importlib.util.find_spec(name)]
            if missing:
                raise MissingExtraError(
                    f"preference training needs {' and '.join(missing)}: "
                    "pip install 'flower-privsyn[training]'"
                )
            resolve_model(located(config.model_to_train))
        prompt = load_prompt(located(config.prompt))
        if prompt.num_samples <= NUM_EXAMPLES:
            raise ConfigError(
                f'prompt = "{config.prompt}" announces {prompt.num_samples} samples; prompts of '
                f"{NUM_EXAMPLES} public samples need one that announces more"
            )
        if embedder is None:
            embedder = load_embedder(
                located(config.embedding_model), precision=config.embedding_precision
            )
        require_company(embedder, default_cache_directory())
        if generator is None:
            generator = load_generator(
                located(config.generator), api_key_env=config.generator_api_key_env
            )
        seeds = public_texts(
            located(config.public_text),
            tokenizer=embedder.tokenizer,
            max_tokens=config.max_tokens,
        )
        if len(seeds) < NUM_EXAMPLES:
            raise ConfigError(
                f'public-text = "{config.public_text}" holds {len(seeds)} texts, prompts need '
                f"{NUM_EXAMPLES} different ones"
            )
        return cls(embedder=embedder, generator=generator, prompt=prompt, seeds=tuple(seeds))

    @property
    def seed_ids(self) -> list[str]:
        """Identifiers of the public samples, as parents of what is written after them."""
        return [f"public:{index}" for index in range(len(self.seeds))]


@dataclass(frozen=True)
class Candidates:
    """The usable responses of a round.

    Attributes:
        population: (m) texts with ids "<round>:<index>", their examples as parents, and their
            embeddings as they travel.
        group: (m,) int64, the number of the prompt a response belongs to.
        prompts: (m) the prompt each response continues, as the generator got it.
        ends: (m) what ended each response and was cut off; "" where the response was cut short.
    """

    population: Population
    group: npt.NDArray[np.int64]
    prompts: tuple[str, ...]
    ends: tuple[str, ...]

    def __len__(self) -> int:
        """Number of responses."""
        return len(self.population)

    @property
    def embeddings(self) -> npt.NDArray[np.float32]:
        """(m, d) float32, exactly what nodes see."""
        if self.population.embeddings is None:
            raise RuntimeError("candidates are embedded when they are made")
        return self.population.embeddings

    def to_parquet(self, path: Path, **columns: Sequence[Any]) -> None:
        """Write the candidates, with extra columns such as their scores."""
        self.population.to_parquet(
            path,
            prompt=self.group.tolist(),
            prompt_text=self.prompts,
            end=self.ends,
            **columns,
        )

    @classmethod
    def from_parquet(cls, path: Path) -> Candidates:
        """Read what `to_parquet` wrote; extra columns are left out."""
        import pyarrow.parquet as pq

        table = pq.read_table(path, columns=["prompt", "prompt_text", "end"])
        return cls(
            population=Population.from_parquet(path),
            group=np.asarray(table.column("prompt").to_pylist(), dtype=np.int64),
            prompts=tuple(table.column("prompt_text").to_pylist()),
            ends=tuple(table.column("end").to_pylist()),
        )


@dataclass(frozen=True)
class RankedPairs:
    """Which candidate of a prompt is preferred to which other.

    Attributes:
        chosen: (p,) int64 indices of candidates.
        rejected: (p,) int64 indices of candidates of the same prompts.
        dropped: how many prompts gave no pair, by reason: "one-response" (chosen and rejected are
            the same candidate), "equal-text".
    """

    chosen: npt.NDArray[np.int64]
    rejected: npt.NDArray[np.int64]
    dropped: dict[str, int]


def rank_pairs(
    scores: npt.NDArray[np.float64],
    group: npt.NDArray[np.int64],
    texts: Sequence[str],
    *,
    rejected_rank: int,
) -> RankedPairs:
    """Choose one pair per prompt: rank 1 against rank `rejected_rank`.

    Equal scores are ranked by index, so a text that was written twice is two candidates with two
    ranks. A prompt with fewer candidates than `rejected_rank` rejects its last.

    Args:
        scores: (m,) float64, higher is better.
        group: (m,) int64, the prompt of each candidate, in any order.
        texts: (m) the candidates.
        rejected_rank: 1-based, >= 2.

    Raises:
        ValueError: the lengths differ, the rank is below 2 or a score is not finite.

    References:
        Hou et al. 2025 (POPri), Algorithm 1: the pairs of a round.
    """
    if not len(scores) == len(group) == len(texts):
        raise ValueError(
            f"{len(scores)} scores, {len(group)} groups and {len(texts)} texts must be one number"
        )
    if rejected_rank < 2:
        raise ValueError(f"rejected_rank must be at least 2, got {rejected_rank}")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    # Stable in both keys: prompts in ascending order, best first, ties by index.
    order = np.lexsort((-np.asarray(scores, dtype=np.float64), group))
    borders = np.flatnonzero(np.diff(group[order], prepend=group[order][:1] - 1))
    chosen: list[int] = []
    rejected: list[int] = []
    dropped: Counter[str] = Counter({"one-response": 0, "equal-text": 0})
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
    return RankedPairs(
        chosen=np.asarray(chosen, dtype=np.int64),
        rejected=np.asarray(rejected, dtype=np.int64),
        dropped=dict(dropped),
    )


class PreferenceRounds:
    """Rounds on disk: `<root>/0001/candidates.parquet`, `adapter/` and `training.json`.

    Every step leaves its result as a whole file or folder and is not done again when that is
    there; responses are written down as they come. So a run that is killed goes on where it was.

    Args:
        config: the settings.
        public: models and public text.
        root: the folder of the rounds.
        progress: where long work reports its steps.
        trainer: in place of `flower_privsyn.training.train_preferences`.
    """

    def __init__(
        self,
        config: PreferenceConfig,
        public: PublicSide,
        *,
        root: Path,
        progress: Progress,
        trainer: PreferenceTrainer | None = None,
    ) -> None:
        self._config = config
        self._public = public
        self._root = root
        self._progress = progress
        self._trainer = trainer

    def folder(self, number: int) -> Path:
        """The folder of a round, which may not exist."""
        return self._root / f"{number:04d}"

    def has_candidates(self, number: int) -> bool:
        """Whether a round has its candidates."""
        return self._candidates_file(number).exists()

    def adapter(self, number: int) -> Path | None:
        """The adapter that writes in a round: the last one trained before it; None for none."""
        for before in range(number - 1, 0, -1):
            if self.trained(before):
                return self._adapter_folder(before)
        return None

    def trained(self, number: int) -> bool:
        """Whether a round ended with an adapter of its own."""
        return (self._adapter_folder(number) / "adapter_config.json").exists()

    # ------------------------------------------------------------------ before the first release

    def rehearse(self, *, training: bool) -> None:
        """Train an adapter on nothing and write with it, so that what cannot work fails early.

        A server that is down or loads no adapters, a model that cannot be trained, or a folder
        that server and run do not share would else be found after a release was paid for.

        Args:
            training: whether the run trains adapters.

        Raises:
            PrivsynError: the generator or the training cannot do what the run needs.
        """
        from flower_privsyn.generation import rehearse
        from flower_privsyn.training import train_preferences

        config, public = self._config, self._public
        folder = self._root.parent / ".rehearsal"
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        done = sorted(self._root.glob("*/adapter/adapter_config.json"))
        adapter = done[-1].parent if done else None
        try:
            with self._progress.stage("Try the generator", total=None):
                if training and self._trainer is None and adapter is None:
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

    # ------------------------------------------------------------------ writing

    def candidates(self, number: int) -> Candidates:
        """The candidates of a round: read, or written and embedded now.

        Raises:
            GenerationError: the generator failed, or no response can be used.
        """
        file = self._candidates_file(number)
        if file.exists():
            return Candidates.from_parquet(file)
        candidates = self._embed(number, self._usable(number, self._responses(number)))
        candidates.to_parquet(file)
        self._responses_file(number).unlink(missing_ok=True)
        return candidates

    def keep(self, number: int) -> None:
        """Give the candidates of a round to the next one as well, under their old ids."""
        candidates = self.candidates(number)
        self.folder(number + 1).mkdir(parents=True, exist_ok=True)
        candidates.to_parquet(self._candidates_file(number + 1))

    def take_back(self, number: int) -> None:
        """Take the candidates that `keep` gave to the round after from it again."""
        self._candidates_file(number + 1).unlink(missing_ok=True)

    def _responses(self, number: int) -> list[dict[str, Any]]:
        """One record per prompt: its number, text, examples and raw responses."""
        config, public = self._config, self._public
        self.folder(number).mkdir(parents=True, exist_ok=True)
        file = self._responses_file(number)
        records = list(read_json_lines(file))
        plan = list(self._prompts(number))
        adapter = self.adapter(number)
        # One seed for the whole round: a response depends on it, its prompt and its number, and
        # so not on where an earlier attempt stopped.
        sampling = self._sampling("responses", number)
        size = _SERVER_BATCH if self._is_remote else _LOCAL_BATCH
        batch = max(1, size // config.responses_per_prompt)
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

    def _usable(self, number: int, records: Sequence[dict[str, Any]]) -> Candidates:
        """Parse and cut the responses; leave out what cannot be a candidate, and say how many."""
        prompt, seeds = self._public.prompt, self._public.seeds
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
                    parents.append(tuple(f"public:{index}" for index in record["examples"]))
                    group.append(int(record["prompt"]))
                    prompts.append(record["text"])
                    # The end of a text that was cut is no end, and must not be taught as one.
                    ends.append(end if whole.endswith(text) else "")
        if not texts:
            raise GenerationError(
                f"round {number}: none of the {len(raw)} responses can be used "
                f"({_counted(dropped)})"
            )
        if dropped:
            logger.info(
                "round %d: %d of %d responses are left out (%s)",
                number,
                dropped.total(),
                len(raw),
                _counted(dropped),
            )
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
        # As they travel: scores are expanded from the very numbers that nodes have seen.
        sent = embeddings.astype(self._config.broadcast_precision).astype(np.float32)
        return Candidates(
            population=candidates.population.with_embeddings(sent),
            group=candidates.group,
            prompts=candidates.prompts,
            ends=candidates.ends,
        )

    # ------------------------------------------------------------------ learning

    def learned(self, number: int) -> dict[str, Any] | None:
        """What `learn` recorded of a round; None while it has not finished."""
        try:
            record: dict[str, Any] = json.loads(self._record_file(number).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return record

    def learn(self, number: int, scores: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Rank the candidates of a round, keep the pairs, and train the next adapter on them.

        Args:
            number: the round.
            scores: (m,) float64, one per candidate, higher is better.

        Returns:
            What was done: `pairs`, `dropped`, and where training ran its `steps`, `loss`,
            `margin`, `accuracy` and `too_long`. Also in `training.json`, which is
            written last; a round that has it is not learned from again.

        Raises:
            PrivsynError: training failed; the adapter of the round before is untouched.
        """
        from flower_privsyn.training import PreferencePair, train_preferences

        if (record := self.learned(number)) is not None:
            return record
        config, candidates = self._config, self.candidates(number)
        texts = candidates.population.texts
        ranked = rank_pairs(scores, candidates.group, texts, rejected_rank=config.rejected_rank)
        m = len(candidates)
        candidates.to_parquet(
            self._candidates_file(number),
            score=scores.tolist(),
            chosen=np.isin(np.arange(m), ranked.chosen).tolist(),
            rejected=np.isin(np.arange(m), ranked.rejected).tolist(),
        )
        record = {"pairs": len(ranked.chosen), "dropped": ranked.dropped}
        if len(ranked.chosen) == 0:
            logger.warning("round %d: no prompt gave a pair; the generator stays", number)
        elif not self.trained(number):
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
                    adapter=self.adapter(number),
                    output=self._adapter_folder(number),
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
        write_json(self._record_file(number), record)
        return record

    # ------------------------------------------------------------------ choosing and finishing

    def validation_sketch(self, query: KernelMean) -> Sketch:
        """The kernel mean of the different texts in `validation_text`: for research, not released.

        Raises:
            DataError: the file cannot be read, or holds no text.
        """
        from flower_privsyn.data import public_texts
        from flower_privsyn.strategies.parts.sketch import Sketch

        config, embedder = self._config, self._public.embedder
        texts = public_texts(
            located(config.validation_text),
            tokenizer=embedder.tokenizer,
            max_tokens=config.max_tokens,
            setting="validation-text",
        )
        if not texts:
            raise DataError(f'validation-text = "{config.validation_text}" holds no text')
        with self._progress.stage("Embed validation text", len(texts)) as stage:
            embeddings = embedder.embed(texts, progress=stage.update)
        return Sketch(
            query=query,
            total=mean_features(embeddings, query=query),
            num_users=1.0,
            noise_std=0.0,
        )

    def distances(self, sketch: Sketch, last: int) -> dict[int, float]:
        """Squared distance of the responses of rounds 1 to `last` to a released kernel mean.

        A round counts when its responses were written in it: candidates that a lost round left to
        the next one would count twice.
        """
        found = {}
        for number in range(1, last + 1):
            if self.has_candidates(number):
                candidates = self.candidates(number)
                if candidates.population.ids[0].startswith(f"{number}:"):
                    found[number] = sketch.squared_mmd(candidates.embeddings)
        return found

    def stops(self, distances: dict[int, float]) -> bool:
        """Whether the best of these distances lies `patience` distances back.

        Not rounds: one that was lost has no responses of its own that could have come nearer.
        """
        patience = self._config.patience
        if not patience or not distances:
            return False
        nearest = best(distances)
        return sum(number > nearest for number in distances) >= patience

    def corpus(
        self,
        run: RunDirectory,
        *,
        round_number: int,
        seeds: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        source: str = "generated",
    ) -> dict[str, Any]:
        """Write `synthetic.jsonl` with the adapter that writes in a round.

        Args:
            run: where to.
            round_number: whose adapter writes; stored with every text.
            seeds: the texts in the prompts; the public samples when left out.
            ids: their identifiers.
            source: stored with every text.

        Returns:
            `synthetic_texts` and `dropped`, for the end of the run.
        """
        from flower_privsyn.generation import Expand, SamplingParameters
        from flower_privsyn.strategies.parts.synthesis import expand_resumably

        config, public = self._config, self._public
        kept = run.path / "expanded.jsonl"
        records, dropped = expand_resumably(
            Expand(
                public.generator,
                prompt=public.prompt,
                num_examples=NUM_EXAMPLES,
                sampling=SamplingParameters(
                    seed=0,
                    max_new_tokens=config.max_new_tokens,
                    temperature=config.temperature,
                    top_p=config.top_p,
                ),
                batch_size=_SERVER_BATCH if self._is_remote else _LOCAL_BATCH,
            ),
            public.seeds if seeds is None else seeds,
            ids=public.seed_ids if ids is None else ids,
            num_samples=config.synthetic_samples,
            kept=kept,
            seed_after=lambda count: self.seed("corpus", count),
            round_number=round_number,
            source=source,
            stage="Write synthetic texts",
            progress=self._progress,
            adapter=self.adapter(round_number),
        )
        run.write_synthetic(records)
        kept.unlink(missing_ok=True)
        return {"synthetic_texts": len(records), "dropped": dropped}

    def seed(self, *purpose: str | int) -> int:
        """A seed of public randomness, different for every purpose and round."""
        from flower_privsyn.generation.streams import derive_seed

        return derive_seed(self._config.seed, *purpose)

    # ------------------------------------------------------------------ files

    def _candidates_file(self, number: int) -> Path:
        return self.folder(number) / "candidates.parquet"

    def _responses_file(self, number: int) -> Path:
        """Raw responses kept so far; gone once `candidates.parquet` holds them."""
        return self.folder(number) / "responses.jsonl"

    def _adapter_folder(self, number: int) -> Path:
        return self.folder(number) / "adapter"

    def _record_file(self, number: int) -> Path:
        return self.folder(number) / "training.json"

    @property
    def _is_remote(self) -> bool:
        return self._config.generator.startswith(("http://", "https://", "vllm:"))


def best(distances: dict[int, float]) -> int:
    """The round with the smallest distance, the first of equal ones."""
    return min(distances, key=lambda number: (distances[number], number))


def _flat(text: str) -> str:
    return " ".join(text.split())


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common()) or "none"
