"""What methods are compared with: floor, public text alone, and ceiling. Nobody is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flower_privsyn.comparison.measures import Job, Measures
from flower_privsyn.comparison.plan import Plan
from flower_privsyn.comparison.teachers import able, check_here, teaching
from flower_privsyn.evaluation.run import random_public_text
from flower_privsyn.files import located

if TYPE_CHECKING:
    from flower_privsyn.training.distillation import Distillation

#: Of what asks nobody.
_NO_COSTS: Final[Mapping[str, float]] = {
    "rounds": 0,
    "floats_up": 0,
    "bytes_up": 0,
    "floats_down": 0,
    "bytes_down": 0,
    "client_cpu_seconds": 0.0,
    "server_seconds": 0.0,
}


def floor(job: Job, plan: Plan, measures: Measures) -> dict[str, Any]:
    """The downstream model as it is."""
    quality = measures.quality(job, plan.downstream)
    return {"quality": quality, "texts": None, "costs": dict(_NO_COSTS), "samples": []}


def ceiling(job: Job, plan: Plan, measures: Measures) -> dict[str, Any]:
    """The model fine-tuned on the private text itself."""
    # No costs: the text itself is what leaves. No samples: they would be the users' own.
    own = measures.samples(plan.people.private).texts
    return {
        "quality": measures.tuned(job, own),
        "distilled": measures.distilled(job, own),
        "texts": None,
        "costs": None,
        "samples": [],
    }


def expanded_public(job: Job, plan: Plan, measures: Measures) -> dict[str, Any]:
    """The model fine-tuned on public text that the generator has expanded."""
    from flower_privsyn.data import public_texts

    begun, values = time.monotonic(), job.values
    known = public_texts(
        located(str(values["public-text"])),
        tokenizer=measures.embedder(values).tokenizer,
        max_tokens=int(values["max-tokens"]),
    )
    texts = _expanded(job, known, source="public")
    costs = {**_NO_COSTS, "server_seconds": time.monotonic() - begun}
    writer = able(str(values["generator"]), plan.downstream)
    return measures.of_text(job, texts, costs, writer=writer)


def expanded_private(job: Job, plan: Plan, measures: Measures) -> dict[str, Any]:
    """The same of the private text itself: the ceiling of private evolution, without privacy.

    Raises:
        ConfigError: The generator is not on this machine.
    """
    generator = str(job.values["generator"])
    check_here(generator)
    own = measures.samples(plan.people.private).texts
    texts = _expanded(job, own, source="private")
    found = measures.of_text(job, texts, {}, writer=able(generator, plan.downstream))
    # No costs, and no samples, as for the ceiling: a generator may repeat what it was shown.
    return {**found, "costs": None, "samples": []}


def random_text(job: Job, plan: Plan, measures: Measures) -> dict[str, Any]:
    """The model fine-tuned on public text that nobody chose."""
    return _random_text(job, plan, measures, distillation=None)


def distilled(job: Job, plan: Plan, measures: Measures) -> dict[str, Any]:
    """The same, taught by the larger public model that teaches the joint sketch's student.

    Raises:
        ConfigError: The app of the comparison names no `teacher`.
    """
    return _random_text(job, plan, measures, distillation=teaching(job.values))


def paraphrases(job: Job, plan: Plan, measures: Measures) -> dict[str, Any]:
    """The model fine-tuned on users' texts in other words, each told by its owner (DP-Prompt).

    The epsilon is pure, local and of one sample of text, and follows from the `temperature`:
    `flower_privsyn.comparison.paraphrase`. As many samples are told as other methods write texts
    (`expand-samples`), drawn among all users' by the seed.

    Raises:
        ConfigError: The generator is no model that runs here, or cannot hold the text.
    """
    from flower_privsyn.comparison.paraphrase import Paraphraser, TokenChoice
    from flower_privsyn.data import public_texts
    from flower_privsyn.embedding import load_tokenizer
    from flower_privsyn.privacy.randomness import SecureRandom

    values = job.values
    samples = measures.samples(plan.people.private, max_tokens=int(values["max-tokens"]))
    random = np.random.default_rng([job.cell.seed, 4])
    wanted = min(int(values["expand-samples"]), len(samples))
    drawn = np.sort(random.choice(len(samples), wanted, replace=False)).tolist()
    begun = time.process_time()
    paraphraser = Paraphraser(
        located(str(values["generator"])),
        max_document_tokens=int(values["max-tokens"]),
        max_new_tokens=int(values["max-new-tokens"]),
    )
    public = public_texts(tokenizer=load_tokenizer("privsyn-lm")[0], max_tokens=64)
    low, high = paraphraser.logit_bounds(public)
    choice = TokenChoice(
        low=low,
        high=high,
        temperature=float(values["temperature"]),
        vocabulary=paraphraser.vocabulary,
    )
    epsilon = paraphraser.epsilon(choice)
    chosen, texts = [samples.texts[place] for place in drawn], []
    with job.progress.stage("Tell the users' text in other words", wanted) as stage:
        for batch in paraphraser.paraphrase(chosen, choice, random=SecureRandom()):
            texts += batch
            stage.update(len(batch))
    costs = {
        **_NO_COSTS,
        # A message of the text itself; of those whose text was not drawn, none.
        "bytes_up": round(sum(len(text.encode()) for text in texts) / len(plan.people.private)),
        "client_cpu_seconds": (time.process_time() - begun) / len(plan.people.private),
    }
    most = int(np.bincount(samples.owners[drawn]).max(initial=0))
    local = {"sample": epsilon, "user": most * epsilon}
    writer = able(str(values["generator"]), plan.downstream)
    found = measures.of_text(job, [text for text in texts if text], costs, writer=writer)
    return {**found, "local_epsilon": local}


#: The part of a cell's record that says what was measured, by the method's name.
REFERENCES: Final[Mapping[str, Callable[[Job, Plan, Measures], dict[str, Any]]]] = {
    "public-only": floor,
    "expand-only": expanded_public,
    "random-public": random_text,
    "distill-public": distilled,
    "dp-prompt": paraphrases,
    "expand-private": expanded_private,
    "finetune-private": ceiling,
}


def _random_text(
    job: Job, plan: Plan, measures: Measures, *, distillation: Distillation | None
) -> dict[str, Any]:
    """As many rows of public text as fine-tuning reads, drawn by the seed."""
    begun = time.monotonic()
    with job.progress.stage("Read the public text"):
        texts = random_public_text(
            located(str(job.values["public-text"])),
            plan.downstream,
            settings=plan.training,
            seed=job.cell.seed,
        )
    model = measures.trained(job, texts, distillation)
    costs = {**_NO_COSTS, "server_seconds": time.monotonic() - begun}
    return {"quality": measures.quality(job, model), "texts": None, "costs": costs, "samples": []}


def _expanded(job: Job, known: Sequence[str], *, source: str) -> list[str]:
    """Text, expanded by the generator: what private evolution does without any votes.

    Args:
        job: the cell.
        known: texts to show the generator, of which as many as there are candidates are drawn.
        source: what they are called.
    """
    from flower_privsyn.generation import Expand, SamplingParameters, load_prompt
    from flower_privsyn.generation.generators import ExpandingSettings
    from flower_privsyn.strategies._synthesis import expand_resumably

    values, kept = job.values, job.folder / "expanded.jsonl"
    kept.touch(mode=0o600)  # for its owner's eyes, whatever it is made of
    seed = int(values["seed"])
    drawn = np.random.default_rng([seed, 1]).permutation(len(known))
    seeds = [known[index] for index in drawn[: int(values["num-candidates"])]]

    def seed_of(purpose: int) -> int:
        return int(np.random.SeedSequence([seed, 2, purpose]).generate_state(1, np.uint64)[0])

    # Of a comparison that was begun before they were, these have their defaults.
    settings = ExpandingSettings(
        **{
            name: values[key]
            for name in ExpandingSettings.declared
            if (key := name.replace("_", "-")) in values
        }
    )
    prompt = load_prompt(located(str(values["prompt"])))
    expand = Expand(
        settings.writer(prompt),
        prompt=prompt,
        sampling=SamplingParameters(
            seed=seed_of(0),
            max_new_tokens=int(values["max-new-tokens"]),
            temperature=float(values["temperature"]),
            top_p=float(values["top-p"]),
        ),
    )
    records, _ = expand_resumably(
        expand,
        seeds,
        ids=[f"{source}-{index}" for index in drawn[: len(seeds)]],
        num_samples=int(values["expand-samples"]),
        kept=kept,
        seed=seed_of(1),
        round_number=0,
        source="expanded",
        stage=f"Expand {source} text",
        progress=job.progress,
    )
    return [str(record["text"]) for record in records]
