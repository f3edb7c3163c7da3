"""From a trained network to what the package ships: shards, tokenizer, samples, card, curves."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from corpus import (
    BOS,
    BOS_TOKEN,
    CONTEXT,
    DOCUMENT_TYPES,
    EOS,
    EOS_TOKEN,
    FIM_TOKENS,
    MASK_TOKEN,
    MASKED_ROWS,
    PAD,
    PAD_TOKEN,
    PROMPT_ROW,
    SAMPLE_TOKENS,
    SPECIAL,
    UNK_TOKEN,
    VOCABULARY,
    Corpus,
)
from networks import Recipe, masked_logits
from private import WINDOW

from flower_privsyn.generation.prompts import load_prompt
from flower_privsyn.generation.topics import condition
from flower_privsyn.models.library import quiet_transformers

SHARD_BYTES = 15 * 2**20  # so that a copy over a narrow line, or a review, never meets a big file
_ATTRIBUTION = Path(__file__).with_name("ATTRIBUTION.md")


# ------------------------------------------------------------------------------- loadable folders


def wrap_tokenizer(kind: str, work: Path) -> Any:
    """The same vocabulary for all; the masked LM's puts `<s>` and `</s>` around a text.

    All markers are special tokens, those of other objectives as extra ones: whoever excludes
    special tokens from generation, and from decoding, excludes them too.
    """
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_file(str(work / "bpe.json"))
    if kind != "masked":
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token=PAD_TOKEN,
            bos_token=EOS_TOKEN,
            eos_token=EOS_TOKEN,
            unk_token=UNK_TOKEN,
            extra_special_tokens=[BOS_TOKEN, MASK_TOKEN, *FIM_TOKENS],
            model_max_length=CONTEXT,
            padding_side="left",
            clean_up_tokenization_spaces=False,
        )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BOS_TOKEN} $A {EOS_TOKEN}",
                pair=f"{BOS_TOKEN} $A {EOS_TOKEN} $B {EOS_TOKEN}",
                special_tokens=[(BOS_TOKEN, BOS), (EOS_TOKEN, EOS)],
            ),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        bos_token=BOS_TOKEN,
        eos_token=EOS_TOKEN,
        cls_token=BOS_TOKEN,
        sep_token=EOS_TOKEN,
        unk_token=UNK_TOKEN,
        mask_token=MASK_TOKEN,
        extra_special_tokens=list(FIM_TOKENS),
        model_max_length=MASKED_ROWS[-1],
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def complete(folder: Path, recipe: Recipe, work: Path) -> None:
    """Add to a folder of weights what `from_pretrained` and `generate` want beside them."""
    from transformers import GenerationConfig

    tokenizer = wrap_tokenizer(recipe.kind, work)
    tokenizer.save_pretrained(folder)
    # As compact as JSON goes: the vocabulary is half a megabyte otherwise.
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    # Under the names that Transformers 4 reads as well.
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    # Stored as float16, loaded as float32: half precision is slow and coarse on CPUs.
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if recipe.kind != "masked":
        GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,  # the default is the 50 likeliest tokens; the methods want them all
            top_p=1.0,
            max_new_tokens=85,
            pad_token_id=PAD,
            bos_token_id=EOS,
            eos_token_id=EOS,
            suppress_tokens=[number for number in range(len(SPECIAL)) if number != EOS],
        ).save_pretrained(folder)


def load(folder: Path, recipe: Recipe) -> Any:
    """Load a model in float32 for evaluation, as users do."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    from flower_privsyn.models import resolve_model

    auto = AutoModelForMaskedLM if recipe.kind == "masked" else AutoModelForCausalLM
    with quiet_transformers():
        return auto.from_pretrained(resolve_model(folder)).eval()


def export(
    recipe: Recipe, work: Path, output: Path, *, hardware: str, shard_bytes: int = SHARD_BYTES
) -> None:
    """Put one model where the package looks for it.

    Args:
        recipe: which model.
        work: the folder of the run; `unseen.json` and `evaluation.json` go into the card
            where they exist.
        output: the folder of all models; the model's own folder in it is written anew.
        hardware: what the card says about the machine when the training log does not.
        shard_bytes: no file of weights is larger.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    from flower_privsyn.models import resolve_model

    trained, folder = work / recipe.name, output / recipe.name
    complete(trained, recipe, work)
    if folder.exists():
        shutil.rmtree(folder)
    auto = AutoModelForMaskedLM if recipe.kind == "masked" else AutoModelForCausalLM
    with quiet_transformers():
        stored = auto.from_pretrained(resolve_model(trained), dtype=torch.float16)
        stored.save_pretrained(folder, max_shard_size=shard_bytes)
    for weights in folder.glob("*.safetensors"):
        weights.chmod(0o644)  # Transformers leaves them to their owner alone
    complete(folder, recipe, work)
    log = json.loads((trained / "training_log.json").read_text())
    log["hardware"] = log.get("hardware") or hardware
    (folder / "training_log.json").write_text(json.dumps(log) + "\n")
    if (trained / "evaluation.json").exists():
        shutil.copyfile(trained / "evaluation.json", folder / "evaluation.json")
    model, tokenizer = load(folder, recipe), AutoTokenizer.from_pretrained(folder)
    if recipe.kind == "masked":
        samples = show_masked(model, tokenizer, work)
    else:
        # Without a cache the LSTM reads its text again for each token.
        samples = show_causal(model, tokenizer, work, prompts=8 if recipe.kind == "lstm" else 64)
    (folder / "README.md").write_text(card(recipe, log, work, samples), encoding="utf-8")
    size = sum(file.stat().st_size for file in folder.iterdir()) / 2**20
    print(f"[export] {folder}: {size:.1f} MiB", flush=True)


# -------------------------------------------------------------------------------------- samples


def quote(text: str) -> str:
    """Show a sample as one Markdown quotation, whatever it holds."""
    flat = " ".join(text.split())
    for mark in "\\<>*_`[]#":
        flat = flat.replace(mark, "\\" + mark)
    return "> " + flat


def show_causal(model: Any, tokenizer: Any, work: Path, *, prompts: int) -> str:
    """Sample continuations, unchosen, and how often a sample ends at the next marker line.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer.
        work: the folder of the prepared corpus.
        prompts: expansion prompts to continue, >= 3; three are shown.
    """
    import torch

    prompt = load_prompt("pre-text")
    corpus = Corpus(work, "held_out", seed=2)
    torch.manual_seed(0)

    def sample(prompts: list[str], length: int) -> list[str]:
        batch = tokenizer(prompts, return_tensors="pt", padding=True)
        batch.pop("token_type_ids", None)
        with torch.inference_mode():
            out = model.generate(**batch, max_new_tokens=length)
        continuations = out[:, batch["input_ids"].shape[1] :]
        return list(tokenizer.batch_decode(continuations, skip_special_tokens=True))

    opened = ["The city is", "In this paper, we", "Mr. Speaker, I rise to", "It was a"]
    parts = ["Plain continuations (temperature 1, the whole vocabulary):", ""]
    for start, end in zip(opened, sample(opened, 60), strict=True):
        parts += [quote(f"{start}{end}"), ""]
    headers = [
        condition(
            ["energy", "reaction", "water", "molecules"], document_type=DOCUMENT_TYPES["openstax"]
        ),
        condition(["foreign", "treaty", "congress"], document_type=DOCUMENT_TYPES["usgov"]),
    ]
    parts += ["A document for a type and keywords:", ""]
    for header, end in zip(headers, sample(headers, 60), strict=True):
        parts += [quote(header), ">", quote(end), ""]
    given = [
        tuple(samples_of(tokenizer.decode(ids, skip_special_tokens=True))[:3])
        for ids in corpus.prompts(prompts)
    ]
    rendered = [prompt.render(examples) for examples in given]
    written = [text for i in range(0, prompts, 32) for text in sample(rendered[i : i + 32], 85)]
    ended = sum(prompt.parse(text) != text.strip() for text in written)
    parts += [
        f"The expansion prompt with three samples of a held-out document ({ended} of {prompts} "
        "such continuations ended within 85 tokens, at the next marker line):",
        "",
    ]
    for i in range(3):
        parts += [f"Examples {i + 1}:", ""]
        for example in given[i]:
            parts += [quote(example), ">"]
        parts += ["", "Written:", "", quote(prompt.parse(written[i])), ""]
    return "\n".join(parts)


def samples_of(document: str) -> list[str]:
    """The samples of a rendered expansion prompt: every second line after the heading."""
    return document.split("\n")[2:13:2]


def show_masked(model: Any, tokenizer: Any, work: Path) -> str:
    """Fill 30 % of a few held-out texts, sampled at temperature 1."""
    import torch

    corpus = Corpus(work, "held_out", seed=2)
    torch.manual_seed(0)
    ids, places, targets = (torch.from_numpy(array) for array in corpus.masked(4, MASKED_ROWS[0]))
    with torch.no_grad():
        logits = masked_logits(model, ids, places)
    logits[:, : len(SPECIAL)] = -torch.inf
    drawn = torch.distributions.Categorical(logits=logits).sample()
    filled, original = ids.clone().reshape(-1), ids.clone().reshape(-1)
    used = targets >= 0
    filled[places[used]], original[places[used]] = drawn[used], targets[used]
    parts = []
    for before, after in zip(original.view_as(ids), filled.view_as(ids), strict=True):
        for name, row in (("Text", before), ("Filled", after)):
            parts += [f"{name}:", "", quote(tokenizer.decode(row, skip_special_tokens=True)), ""]
    return "\n".join(parts)


# ----------------------------------------------------------------------------------------- card


def card(recipe: Recipe, log: dict[str, Any], work: Path, samples: str) -> str:
    """Write the model card; every number comes from the run.

    Args:
        recipe: the model.
        log: its training log.
        work: the folder of the run.
        samples: Markdown.
    """
    facts = json.loads((work / "facts.json").read_text())
    evaluation = _read(work / recipe.name / "evaluation.json")
    unseen = _read(work / "unseen.json")
    base = {
        "causal": "Llama-style decoder",
        "masked": "RoBERTa-style encoder, layer norm first",
        "lstm": "LSTM language model",
    }[recipe.kind]
    auto = "AutoModelForMaskedLM" if recipe.kind == "masked" else "AutoModelForCausalLM"
    role = {
        "privsyn-lm": "it stands in for the public language model of a server where no larger one "
        "can be had",
        "privsyn-mlm": "it stands in for the masked language model that varies texts at a server "
        "where no larger one can be had",
        "privsyn-tiny": "it is the model of the tests and the smallest of those that stand for "
        "what a device trains",
        "privsyn-lstm": "it stands for the recurrent model that keyboards train on devices",
    }[recipe.name]
    groups = ", ".join(f"{group} {count:,}" for group, count in sorted(facts["groups"].items()))
    machine = (
        f"{log['hardware']}, shared with other work; {log['threads']} thread. **No GPU was used**"
    )
    muon = log["optimiser"]["muon_lr"]
    optimiser = f"Muon ({muon}) inside the blocks, AdamW ({log['optimiser']['adamw_lr']}) elsewhere"
    if not muon:
        optimiser = f"AdamW ({log['optimiser']['adamw_lr']})"
    precision = "float32" if recipe.kind == "lstm" else "bfloat16 autocast"
    lines = [
        "---",
        "license: cc-by-sa-4.0",
        "language: en",
        f"pipeline_tag: {'fill-mask' if recipe.kind == 'masked' else 'text-generation'}",
        "library_name: transformers",
        "---",
        "",
        f"# {recipe.name}",
        "",
        f"A small English {base} for offline runs, examples and tests of flower-privsyn: {role}. "
        "It is trained on public text only. **It is small and trained briefly: its texts are "
        "locally fluent and hold no dependable facts.** On a machine with a GPU name a real model "
        "instead; the code path is the same.",
        "",
        f"- Parameters: {log['parameters']:,} ({_shape(recipe)}); weights stored in float16.",
        f"- Tokenizer: byte-level BPE, {VOCABULARY:,} tokens, trained on the training split; the "
        "same for all bundled models.",
        f'- Load: `flower_privsyn.models.resolve_model("{recipe.name}")` gives the folder for '
        f"`AutoTokenizer` and `{auto}`"
        + (", and makes them know the architecture." if recipe.kind == "lstm" else "."),
        "",
        "## Training",
        "",
        "| | |",
        "|---|---|",
        f"| corpus | {facts['train']['documents']:,} documents, {facts['train']['tokens']:,} "
        "tokens |",
        f"| held out | {facts['held_out']['documents']:,} documents, "
        f"{facts['held_out']['tokens']:,} tokens (2 % of the works, by a hash of the name) |",
        f"| steps | {log['steps']:,} |",
        f"| tokens seen | {log['tokens']:,} ({log['passes']:.2f} passes) |",
        f"| optimiser | {optimiser}; {precision}; gradient norm clipped at 1 |",
        "| schedule | warm-up 2 %, constant to 40 %, then linear to zero, by the share of the time "
        "that is spent |",
        f"| hardware | {machine} |",
        f"| CPU time | {log['train_minutes']} minutes (preparation for all models: "
        f"{log['prepare_cpu_minutes']}) |",
        f"| wall time | {log['wall_minutes']} minutes |",
        f"| speed | {log['tokens_per_second']:,} tokens per second of CPU time, "
        f"{100 * log['share_of_matmul_peak']:.0f} % of the measured matrix-product peak |",
        f"| seed | {log['seed']} |",
        "",
        _objective(recipe),
        "",
        "Embeddings start from a factorisation of token co-occurrences in the training split. The "
        "loss curve is in `training_log.json`. Because the schedule follows the clock, a rerun "
        "gives a model of the same quality, not the same bits.",
        "",
    ]
    if evaluation is not None:
        lines += _evaluation_part(evaluation, recipe)
    if unseen is not None:
        lines += _unseen_part(unseen)
    lines += [
        "## Samples, not chosen",
        "",
        samples,
        "## Intended use, and what it must not be used for",
        "",
        "Intended: trying the methods of flower-privsyn end to end without a network or a GPU, "
        "tests, and comparisons in which every method has the same models.",
        "",
        "It must not be used where its text is read as true, for advice of any kind, for text "
        "shown to the public as if a person wrote it, for decisions about people, or to claim "
        "privacy for the corpus itself: the training was *not* differentially private, all of its "
        "text is public, and the model can repeat passages and names from it. Biases of the "
        "sources are not removed.",
        "",
        "## Data, licences and attribution",
        "",
        f"Documents per group: {groups}.",
        "",
        _ATTRIBUTION.read_text(encoding="utf-8").rstrip("\n"),
        "",
    ]
    return "\n".join(lines)


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _shape(recipe: Recipe) -> str:
    if recipe.kind == "lstm":
        return (
            f"{recipe.blocks} layer of {recipe.hidden} units, embeddings and projection of "
            f"{recipe.width}"
        )
    shape = f"{recipe.blocks} blocks, width {recipe.width}, {recipe.width // 64} heads of 64, "
    if recipe.kind == "causal":
        return shape + (
            f"SwiGLU {recipe.hidden:,}, rotary positions, context {CONTEXT} (trained on rows of "
            f"at most {PROMPT_ROW}), tied embeddings"
        )
    return shape + (
        f"feed-forward {recipe.hidden:,}, learned positions, at most {MASKED_ROWS[-1]} tokens with "
        "the two special ones, tied embeddings"
    )


def _objective(recipe: Recipe) -> str:
    if recipe.kind == "masked":
        return (
            "Masked tokens, 30 % of each text, always replaced by `<mask>`, on texts of at most "
            f"{MASKED_ROWS[0] - 2} and {MASKED_ROWS[1] - 2} tokens."
        )
    first, second = recipe.rows
    return (
        "Next token, loss on every token. Half of each step is the `pre-text` expansion prompt "
        f"with six samples of one document ({first} rows; at most {SAMPLE_TOKENS} tokens a sample, "
        "closed by the end token), so that the model learns to imitate the examples and to end a "
        f"sample at the next marker line; the other half ({second} rows) is four parts plain "
        "packed text, two parts documents after their type and keywords, and one part texts with "
        "a hole, which is filled at the end (`<fim_prefix>`, `<fim_suffix>`, `<fim_middle>`). "
        "The loss is the mean of both halves."
    )


def _evaluation_part(evaluation: dict[str, Any], recipe: Recipe) -> list[str]:
    accuracy = "accuracy" if recipe.kind == "masked" else "next-token accuracy"
    lines = [
        "## Held-out and zero-shot figures",
        "",
        f"| corpus | objective | nats per token | bits per byte | {accuracy} | tokens |",
        "|---|---|---|---|---|---|",
    ]
    for corpus, objectives in evaluation.items():
        if corpus == "drawn":
            continue
        name = "held out" if corpus == "held_out" else f"{corpus} (private, zero-shot)"
        for objective, found in objectives.items():
            lines.append(
                f"| {name} | {objective.replace('_', ' ')} | {found['nats_per_token']:.3f} | "
                f"{found['bits_per_byte']:.3f} | {found['accuracy']:.3f} | {found['tokens']:,} |"
            )
    drawn = ", ".join(
        f"{name}: {counts['documents']:,} of {counts['of_documents']:,} documents, drawn at random"
        for name, counts in evaluation["drawn"].items()
    )
    lines += [
        "",
        f"Uniform guessing costs {math.log(VOCABULARY):.2f} nats per token. "
        + (
            "Bits per byte here count masked tokens and their bytes only. "
            if recipe.kind == "masked"
            else "Rows of 256 tokens of packed text without context from before the row; after a "
            "keyword header only the document counts, and of a text with a hole only what is "
            "written into it. "
        )
        + (f"Private corpora: {drawn}." if drawn else ""),
        "",
    ]
    return lines


def _unseen_part(unseen: dict[str, Any]) -> list[str]:
    training = unseen["training"]
    lines = [
        "## Unseen",
        "",
        f"The token stream that was trained on, decoded: {training['documents']:,} documents, "
        f"{training['windows']:,} windows of {WINDOW} words (letters and digits, case aside). The "
        "script hashes them and the private corpora, and refuses to go on when a private document, "
        "or half of its windows, occurs. Single windows in common are counted below; what they are "
        "was not looked at.",
        "",
        "| private corpus | documents | identical | half seen | with any window | windows | seen |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in unseen.items():
        if name != "training":
            lines.append(
                f"| {name} | {found['documents']:,} | {found['identical_documents']:,} | "
                f"{found['half_seen_documents']:,} | {found['documents_with_a_window']:,} | "
                f"{found['windows']:,} | {found['windows_seen']:,} |"
            )
    return [*lines, ""]


# --------------------------------------------------------------------------------------- curves

#: Okabe and Ito's colours, which people with any colour vision tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_LINES = {"prompt": "-", "mixed": (0, (4, 2)), "masked": "-"}


def draw_curves(logs: Sequence[Path], target: Path) -> None:
    """Draw all models' training losses over the tokens they saw.

    Args:
        logs: `training_log.json` files.
        target: the PNG.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.8), dpi=120, layout="constrained")
    for path, colour in zip(logs, _COLOURS, strict=False):
        log = json.loads(path.read_text())
        tokens = np.asarray([point["tokens"] for point in log["curve"]]) / 1e6
        losses = np.asarray([point["loss"] for point in log["curve"]])
        for index, name in enumerate(log["loss_names"]):
            axes.plot(
                tokens,
                losses[:, index],
                color=colour,
                linestyle=_LINES[name],
                linewidth=1.6,
                label=f"{log['name']}, {name} {losses[-1, index]:.2f}",
            )
    axes.set_xlabel("tokens seen, millions")
    axes.set_ylabel("training loss, nats per token")
    axes.set_ylim(bottom=3.0, top=8.0)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, title="model, text, last value")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Software": None})
    pyplot.close(figure)
