"""Continuations from a language model in this process, through Transformers.

Why a decoding loop of our own: every sample needs its own random stream, samples of one prompt
share its key-value cache, prompts that begin alike that of their beginning, and finished samples
leave the batch; ``generate()`` does none of these.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flower_privsyn.errors import GenerationError
from flower_privsyn.generation import streams
from flower_privsyn.generation.backends import (
    USUAL,
    ProgressCallback,
    SamplingParameters,
    answered,
    derive_seed,
    text_seeds,
)
from flower_privsyn.models.adapters import AdapterSwitch
from flower_privsyn.models.attention import attend_by_products
from flower_privsyn.models.pretrained import (
    Precision,
    accepted_arguments,
    context_of,
    decoder_start_token,
    is_encoder_decoder,
    load_pretrained,
    special_tokens,
)
from flower_privsyn.models.threads import computing, is_small, side_by_side

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("flwr.privsyn")

_MOST: Final = 1024

#: Bytes a sample needs for each token of the vocabulary while one is drawn: logits, probabilities,
#: their sums, and the places they are sorted to.
_DRAWING: Final = 24

#: Tokens of prompt and continuation that memory is kept for.
_TOKENS: Final = 1024

#: Of the device's memory, this share; the model, and whoever else computes there, has the rest.
_SHARE: Final = 0.25

#: What the prompts of some chat templates end with: thoughts have begun there.
_THINKING: Final = "<think>"

#: Tokens that all prompts of a batch begin with, from which on they are read once for all.
_SHARED: Final = 32

# Enough tokens before a continuation to decode its first one in context (a leading blank).
_CONTEXT_TOKENS = 6


class TransformersGenerator:
    """A causal language model of the Hugging Face format, run by PyTorch; or an encoder-decoder.

    The encoder of one reads the prompt, and the decoder writes the continuation.

    Deterministic per seed on one machine and batch size. Every sample has its own random stream,
    so the batch size changes a sample only where rounding does.

    Attributes:
        name: The model's name or path as given.
        at_once: Samples per forward pass.
    """

    def __init__(
        self,
        model: str | Path = "privsyn-lm",
        *,
        device: str | None = None,
        dtype: Precision = "auto",
        batch_size: int | None = None,
        begins_texts: bool = False,
    ) -> None:
        """Load the model.

        Args:
            model: A bundled short name, a folder, or a hub name.
            device: As PyTorch names it; None takes the first GPU, else the CPU.
            dtype: ``"auto"`` takes bfloat16 where the hardware multiplies it natively.
            batch_size: Samples per forward pass, >= 1; None takes 64 on a CPU, and on a GPU up to
                1,024, as many as a quarter of its memory holds, of texts of 1,024 tokens.
            begins_texts: Put the token that texts begin with before every prompt, and nothing else,
                as the training on nodes reads texts; False leaves it to the tokenizer, and that of
                a GPT-2 puts none.

        Raises:
            ModelError: The model cannot be found or is no causal language model.
            MissingExtraError: PyTorch or Transformers is not installed.
        """
        self.name = str(model)
        self._model, self._tokenizer = load_pretrained(
            model, kind="causal or encoder-decoder", dtype=dtype, device=device
        )
        import torch  # which is there: the model was loaded with it

        self.at_once = _samples_of_device(self._model) if batch_size is None else batch_size
        self._reads_apart = is_encoder_decoder(self._model)
        self._begins_texts = begins_texts or self._reads_apart
        self._adapters = AdapterSwitch(self._model, self.name)
        self._end_tokens = self._find_end_tokens()
        self._banned = self._find_banned_tokens()
        self._is_small = is_small(self._model)
        self._accepted = accepted_arguments(self._model)
        # Transformers 5.24 calls it by the first; "" for a model without one.
        names = (name for name in ("cache", "past_key_values") if name in self._accepted)
        self._cache_name = next(names, "")
        # cuDNN's kernels are planned anew for every length, and a text that grows has a length of
        # its own in every step: on an H100 planning took most of each, whatever the batch.
        torch.backends.cuda.enable_cudnn_sdp(False)
        if self._model.dtype.itemsize == 2:
            attend_by_products(self._model)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        num_samples: int = 1,
        sampling: SamplingParameters,
        system: str | None = None,
        adapter: Path | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[list[str]]:
        """Continue every prompt, or answer it by the model's chat template; see `TextGenerator`.

        Args:
            prompts: The texts; those too long for the model lose their beginning, and a warning
                says how many.
            num_samples: Continuations per prompt, >= 1.
            sampling: How they are drawn.
            system: None to continue; else the message of the system, "" for none.
            adapter: The folder of a PEFT LoRA adapter; it is read again when its files change.
            progress: Called with the number of continuations just finished.

        Returns:
            One list of ``num_samples`` continuations per prompt.

        Raises:
            GenerationError: The new tokens leave no room, or there is no chat template for the
                messages, or it refuses them.
            ModelError: The adapter cannot be loaded onto this model.
            MissingExtraError: An adapter is given and PEFT is not installed.
        """
        if system is not None:
            prompts = self._as_messages(prompts, system)
        rows = self._tokenize(prompts, sampling)
        self._adapters.activate(adapter)
        results: list[list[str]] = [[""] * num_samples for _ in prompts]
        prompt_seeds = text_seeds(sampling.seed, prompts)
        size = self.at_once
        if self._is_small:
            # So that every thread has some of them.
            size = max(1, min(size, math.ceil(len(rows) * num_samples / computing())))
        per_pass = min(num_samples, size)
        passes = [
            (batch, range(first, min(first + per_pass, num_samples)))
            for batch in streams.batches([len(row) for row in rows], size // per_pass)
            for first in range(0, num_samples, per_pass)
        ]

        def write(work: tuple[list[int], range]) -> list[list[int]]:
            batch, samples = work
            seeds = [
                derive_seed(prompt_seeds[index], sample) for index in batch for sample in samples
            ]
            return self._continue([rows[index] for index in batch], len(samples), seeds, sampling)

        found = side_by_side(write, passes) if self._is_small else map(write, passes)
        for (batch, samples), written in zip(passes, found, strict=True):
            for place, index in enumerate(batch):
                for offset, sample in enumerate(samples):
                    tokens = written[place * len(samples) + offset]
                    before = [] if self._reads_apart else rows[index]
                    text = self._decode(before, tokens, sampling.stop)
                    if system is not None:
                        begun = prompts[index].rstrip().endswith(_THINKING)
                        text = answered(_THINKING + text if begun else text)
                    results[index][sample] = text
            if progress is not None:
                progress(len(batch) * len(samples))
        silent = 0 if system is None else sum(row.count("") for row in results)
        if silent:
            logger.warning(
                "%d of %d answers of model %s are no text, or all thinking: it needs more "
                "max-new-tokens, or not to think",
                silent,
                len(prompts) * num_samples,
                self.name,
            )
        return results

    def _as_messages(self, messages: Sequence[str], system: str) -> list[str]:
        """What the model goes on with where it is to answer each message, after the system's.

        Without the token that texts begin with where the tokenizer puts one there.

        Raises:
            GenerationError: There is no template, or it refuses the messages.
        """
        from jinja2 import TemplateError

        tokenizer = self._tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise GenerationError(
                f"model {self.name!r} has no chat template: it goes on with beginnings and answers "
                "no messages"
            )
        before = [{"role": "system", "content": system}] if system else []
        talks = [[*before, {"role": "user", "content": message}] for message in messages]
        try:
            prompts = [
                str(tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True))
                for talk in talks
            ]
        except TemplateError as error:
            advice = (
                ': a prompt file whose instruction is "" has no system message' if system else ""
            )
            raise GenerationError(
                f"the chat template of model {self.name!r} refuses the messages ({error}){advice}"
            ) from error
        # Templates write the token that texts begin with, and so does the tokenizer.
        begin = tokenizer.bos_token
        if begin and tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]:
            prompts = [prompt.removeprefix(begin) for prompt in prompts]
        return prompts

    def _tokenize(self, prompts: Sequence[str], sampling: SamplingParameters) -> list[list[int]]:
        """Turn prompts into tokens, cut at the beginning to what the model can still continue."""
        positions = context_of(self._model)
        room = None
        if positions is not None:
            room = positions - sampling.max_new_tokens
            if room < 1:
                raise GenerationError(
                    f"generation setting max_new_tokens must be below the {positions} positions "
                    f"of model {self.name!r}, got {sampling.max_new_tokens}"
                )
        if not prompts:
            return []
        rows: list[list[int]] = self._tokenizer(
            list(prompts),
            add_special_tokens=not self._begins_texts,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        begin, end = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        if self._begins_texts:  # as in training, whatever the template
            around = [[] if token is None else [token] for token in (begin, end)]
            after = around[1] if self._reads_apart else []
            rows = [[*around[0], *row, *after] for row in rows]
        else:  # nobody goes on with a text that a template has ended
            mask = self._tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
            behind = mask[::-1].index(0) if 0 in mask else 0
            rows = [row[: len(row) - behind] for row in rows]
        truncated = 0
        for index, row in enumerate(rows):
            if not row:
                start = begin if begin is not None else next(iter(self._end_tokens), None)
                if start is None:
                    raise GenerationError(
                        f"prompts[{index}] is empty and model {self.name!r} has no token to "
                        "begin with"
                    )
                rows[index] = [start]
            elif room is not None and len(row) > room:
                truncated += 1
                keeps_begin = row[0] == begin and room > 1
                rows[index] = [row[0], *row[-(room - 1) :]] if keeps_begin else row[-room:]
        if truncated:
            logger.warning(
                "%d of %d prompts were longer than the %d tokens that model %s can still "
                "continue: their beginning was cut",
                truncated,
                len(prompts),
                room,
                self.name,
            )
        return rows

    def _continue(
        self,
        rows: Sequence[list[int]],
        num_samples: int,
        seeds: Sequence[int],
        sampling: SamplingParameters,
    ) -> list[list[int]]:
        """Write the tokens of one batch: ``num_samples`` times one list per row, row by row."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        # An encoder counts positions from the left, padding included.
        side = "right" if self._reads_apart else "left"
        uniforms = np.stack(
            [streams.stream(seed).random(sampling.max_new_tokens, np.float32) for seed in seeds]
        )  # (b, new)
        with torch.inference_mode():
            shared, cache = self._beginning(rows)
            read = [torch.tensor(row[shared:]) for row in rows]
            # With any token that has a row: a tokenizer's padding may have none, and none is seen.
            tokens = pad_sequence(read, True, 0, side)  # (p, t)
            seen = pad_sequence([torch.ones_like(row) for row in read], True, 0, side)  # (p, t)
            seen = torch.cat([seen.new_ones(len(seen), shared), seen], dim=1)
            device = self._model.device
            given = tokens.to(device), seen.to(device), torch.from_numpy(uniforms).to(device)
            return self._write(*given, cache, num_samples, sampling)

    def _beginning(self, rows: Sequence[list[int]]) -> tuple[int, Any]:
        """Read what all rows begin with once: how many tokens, and their cache for each row.

        0 and None where that is not worth it, and of models that keep another state than keys and
        values of every token: it goes on by one token at a time, or a window of it holds padding.
        """
        import torch

        if self._reads_apart or not self._cache_name or len(rows) == 1:
            return 0, None
        pairs = zip(min(rows), max(rows), strict=False)  # between which all others lie
        same = list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        shared = min(len(same), min(map(len, rows)) - 1)  # the first logits are of a row's own
        if shared < _SHARED:
            return 0, None
        tokens = torch.tensor([rows[0][:shared]], device=self._model.device)
        _, cache = self._logits(self._first_inputs(tokens, torch.ones_like(tokens)), None)
        if {type(layer).__name__ for layer in getattr(cache, "layers", ())} != {"DynamicLayer"}:
            return 0, None
        cache.batch_repeat_interleave(len(rows))
        return shared, cache

    def _write(
        self,
        tokens: torch.Tensor,
        seen: torch.Tensor,
        uniforms: torch.Tensor,
        cache: Any,
        num_samples: int,
        sampling: SamplingParameters,
    ) -> list[list[int]]:
        """Decode; every prompt is read once, and finished samples leave the batch.

        Args:
            tokens: (p, t) of the prompts.
            seen: (p, c + t), 0 at padding.
            uniforms: (b, new) in [0, 1), b = p times num_samples.
            cache: of the c tokens before; None for none.
            num_samples: of each prompt.
            sampling: how to draw.
        """
        import torch

        given = self._first_inputs(tokens, seen)  # (p, ...) each
        if self._reads_apart:  # as often as there are samples: the decoder begins with one token
            given = _repeated(given, num_samples)
        written: list[list[int]] = [[] for _ in range(len(uniforms))]
        alive = list(range(len(uniforms)))  # which sample each row of the batch is
        running = [True] * len(alive)
        for step in range(sampling.max_new_tokens):
            logits, cache = self._logits(given, cache)  # (p, v) in the first step, then (b, v)
            if len(logits) < len(alive):
                logits = logits.repeat_interleave(num_samples, dim=0)
                given = _repeated(given, num_samples)
                if cache is not None:
                    cache.batch_repeat_interleave(num_samples)
            drawn = self._drawn(logits, uniforms[alive, step], sampling)  # (b,)
            self._note(drawn.tolist(), written, alive, running, sampling.stop)
            num_running = sum(running)
            if num_running == 0 or step + 1 == sampling.max_new_tokens:
                break
            # Copying the cache costs about one step: wait until a quarter of the rows is done.
            if num_running <= 0.75 * len(alive):
                kept = torch.tensor(
                    [row for row, going in enumerate(running) if going], device=drawn.device
                )
                if cache is not None:
                    cache.batch_select_indices(kept)
                given = {name: value[kept] for name, value in given.items()}
                drawn = drawn[kept]
                alive = [sample for sample, going in zip(alive, running, strict=True) if going]
                running = [True] * len(alive)
            given = self._next_inputs(given, drawn[:, None], cache)
        return written

    def _first_inputs(self, tokens: torch.Tensor, seen: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a model is given to write the first tokens: (p, ...) each."""
        import torch

        if not self._reads_apart:
            given = {"input_ids": tokens, "attention_mask": seen}
            if "position_ids" in self._accepted:
                places = (seen.cumsum(-1) - 1).clamp_(min=0)
                given["position_ids"] = places[:, -tokens.shape[1] :]
            return given
        read = self._model.get_encoder()(input_ids=tokens, attention_mask=seen)
        first = decoder_start_token(self._model, self._tokenizer)
        return {
            "decoder_input_ids": torch.full_like(tokens[:, :1], first),
            "encoder_outputs": read.last_hidden_state,
            "attention_mask": seen,
        }

    def _next_inputs(
        self, given: dict[str, torch.Tensor], drawn: torch.Tensor, cache: Any
    ) -> dict[str, torch.Tensor]:
        """What it is given then: (b, 1) new tokens, and the old ones where it gives no cache."""
        import torch

        if self._reads_apart:
            return {**given, "decoder_input_ids": drawn}
        seen = given["attention_mask"]
        grown = {
            "input_ids": drawn,
            "attention_mask": torch.cat([seen, seen.new_ones(len(drawn), 1)], dim=-1),
        }
        if "position_ids" in given:
            grown["position_ids"] = given["position_ids"][:, -1:] + 1
        if cache is None:
            for name in grown.keys() - {"attention_mask"}:
                grown[name] = torch.cat([given[name], grown[name]], dim=-1)
        return grown

    def _logits(self, given: dict[str, torch.Tensor], cache: Any) -> tuple[torch.Tensor, Any]:
        """The logits of the next token, (rows, v), and the cache; None where a model gives none."""
        import torch
        from transformers.modeling_outputs import BaseModelOutput

        arguments: dict[str, Any] = {**given}
        if self._cache_name:
            arguments |= {self._cache_name: cache, "use_cache": True}
        if self._reads_apart:
            states = given["encoder_outputs"]
            arguments["encoder_outputs"] = BaseModelOutput(last_hidden_state=states)
        elif (length := given["input_ids"].shape[1]) > 1 and "logits_to_keep" in self._accepted:
            # As an index, not as the number 1: a slice would make PyTorch copy the whole output
            # matrix for every row of the batch.
            arguments["logits_to_keep"] = torch.tensor([length - 1], device=self._model.device)
        output = self._model(**arguments)
        return output.logits[:, -1], getattr(output, self._cache_name or "cache", None)

    def _drawn(
        self,
        logits: torch.Tensor,
        uniforms: torch.Tensor,
        sampling: SamplingParameters,
    ) -> torch.Tensor:
        """Draw the next token of every sample that goes on.

        Args:
            logits: (b, v); changed.
            uniforms: (b,) in [0, 1).
            sampling: how to draw.

        Raises:
            GenerationError: The model computes what is no number.
        """
        if bool(logits.isnan().any()):
            raise GenerationError(
                f"model {self.name!r} computes what is no number: its weights are broken, or too "
                f"large for {self._model.dtype}; name another model, or another dtype"
            )
        logits[:, self._banned] = float("-inf")
        return streams.sample_tokens(
            logits, uniforms, temperature=sampling.temperature, top_p=sampling.top_p
        )

    def _note(
        self,
        drawn: Sequence[int],
        written: Sequence[list[int]],
        alive: Sequence[int],
        running: list[bool],
        stop: tuple[str, ...],
    ) -> None:
        """Write down what was drawn; mark the samples that end there or complete a stop string."""
        for row, token in enumerate(drawn):
            if running[row] and token in self._end_tokens:
                running[row] = False
            elif running[row]:
                written[alive[row]].append(token)
        left = [row for row, going in enumerate(running) if going]
        if not stop or not left:
            return
        # A token is at least one byte, so the string lies in this many last tokens.
        reach = max(len(text.encode()) for text in stop) + 1
        tails = [written[alive[row]][-reach:] for row in left]
        said = self._tokenizer.batch_decode(tails, skip_special_tokens=True)
        for row, text in zip(left, said, strict=True):
            running[row] = not any(end in text for end in stop)

    def _decode(self, prompt: Sequence[int], tokens: Sequence[int], stop: tuple[str, ...]) -> str:
        """Turn tokens into text as it follows the prompt, and cut it at a stop string."""
        context = list(prompt[-_CONTEXT_TOKENS:])
        both = [context, context + list(tokens)]
        before, full = self._tokenizer.batch_decode(both, skip_special_tokens=True)
        if full.startswith(before):
            text: str = full[len(before) :]
        else:
            # The prompt ends inside a character that the first token completes.
            text = str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
        ends = [end for end in (text.find(item) for item in stop) if end >= 0]
        # The token limit may fall inside a character; a server withholds such a piece as well.
        return text[: min(ends)] if ends else text.rstrip("�")

    def _find_banned_tokens(self) -> torch.Tensor:
        """Collect the token numbers that are never drawn: (k,) int64.

        Special tokens that end nothing (padding, masks, the markers of other objectives) would
        vanish from the text and leave the model in a state that no text leads to. Rows of the
        output matrix that stand for no token are padding for the hardware.
        """
        import torch

        size = int(self._model.get_output_embeddings().weight.shape[0])
        banned = special_tokens(self._tokenizer)
        banned.update(self._model.generation_config.suppress_tokens or ())
        banned.update(range(len(self._tokenizer), size))
        never = {number for number in banned - self._end_tokens if number < size}
        return torch.tensor(sorted(never), dtype=torch.int64, device=self._model.device)

    def _find_end_tokens(self) -> frozenset[int]:
        configured = self._model.generation_config.eos_token_id
        several = configured if isinstance(configured, list) else [configured]
        return frozenset({self._tokenizer.eos_token_id, *several} - {None})


def _repeated(given: dict[str, torch.Tensor], times: int) -> dict[str, torch.Tensor]:
    """Every row so many times, (p times, ...) each."""
    return {name: value.repeat_interleave(times, dim=0) for name, value in given.items()}


def _samples_of_device(model: Any) -> int:
    """Samples that a PyTorch model takes through a forward pass side by side.

    The same on the same kind of device, whatever else it is doing: the size of a batch is in the
    rounding of what is written.

    Args:
        model: a Transformers model, on its device.

    Returns:
        `USUAL` on a CPU. On a GPU a power of two from 1 to 1,024: as many as a quarter of its
        memory holds.
    """
    import torch

    if model.device.type != "cuda":
        return USUAL
    memory = int(torch.cuda.get_device_properties(model.device).total_memory)
    return samples_that_fit(
        model.config.get_text_config(decoder=True), _SHARE * memory, itemsize=model.dtype.itemsize
    )


def samples_that_fit(config: Any, memory: float, *, itemsize: int) -> int:
    """The power of two, 1 to 1,024, of samples that so many bytes hold.

    Args:
        config: of a decoder, as Transformers has it.
        memory: bytes.
        itemsize: bytes of a number of the key-value cache.
    """
    heads = getattr(config, "num_attention_heads", 0)  # of an LSTM there are none
    width = getattr(config, "head_dim", None) or config.hidden_size // max(1, heads)
    keys = (getattr(config, "num_key_value_heads", None) or heads) * width
    cache = 2 * config.num_hidden_layers * keys * itemsize * _TOKENS
    fits = int(memory // (cache + _DRAWING * config.vocab_size))
    return max(1, min(_MOST, 1 << max(0, fits.bit_length() - 1)))
