"""Local training on a node: one user after another, each from the same weights.

Every trainable parameter is a piece of one vector. Setting the weights of a round, going back to
them before the next user, and the update itself are then one operation each on that vector.
Gradients are not: PyTorch hands out the arrays it made them in, which are added to the weights as
they are, where a vector of ours would have to be set to zero and added to first.

McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models" (ICLR
2018), Algorithm 1, UserUpdateFedAvg.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from flower_privsyn.errors import ConfigError
from flower_privsyn.models.adapters import with_adapters
from flower_privsyn.models.bias import LogitBias
from flower_privsyn.models.library import save_model
from flower_privsyn.models.pretrained import (
    context_of,
    decoder_start_token,
    is_encoder_decoder,
    load_pretrained,
    logits_at,
    model_folder,
    padded,
)
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.training.common import disable_dropout
from flower_privsyn.training.tokens import batches_by_length, token_rows


class LocalModel:
    """A language model that users train one after another.

    It is causal, or an encoder-decoder: what is given of a sample is then read by the encoder, and
    the decoder predicts the rest.

    The loss of a step is the mean over the predicted tokens of its samples. Every sample begins
    with the model's first token where it has one, so that its first word is predicted as well.
    Dropout is off: a user's update must not depend on who was trained before, nor on which node.
    For the same reason buffers (running statistics, counters) are put back before every user, also
    where a module has put other tensors in their place, and the generator of random numbers gets
    the same seed for each user; neither is ever part of an update. A user's samples go
    through the model with that user's other samples only, so nobody else decides the shape of what
    is computed.

    Args:
        model: which model, and what of it is trained.
        device: as PyTorch names it; None takes the first accelerator, else the CPU.

    Raises:
        ModelError: the model cannot be loaded.
        ConfigError: the model has no parameters of the names that `model` gives.
        MissingExtraError: PyTorch, Transformers or (for LoRA) PEFT is not installed.
    """

    def __init__(self, model: TrainableModel, *, device: str | None = None) -> None:
        self.spec = model
        self._model, self.tokenizer = load_pretrained(
            model.name, kind="causal or encoder-decoder", dtype="float32", device=device
        )
        self.encoder_decoder = is_encoder_decoder(self._model)
        self._first = (
            decoder_start_token(self._model, self.tokenizer) if self.encoder_decoder else None
        )
        disable_dropout(self._model)
        if model.trainable == "lora":
            # Where the broadcast brings the adapters, and the server makes them, this seed is all
            # the randomness there is.
            self._model = with_adapters(
                self._model, name=model.name, rank=model.lora_rank, alpha=model.lora_alpha, seed=0
            )
        named = _choose(self._model, model)
        self._device = next(iter(named.values())).device
        self.shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
        self.dimension = sum(parameter.numel() for parameter in named.values())
        self._weights = parameters_to_vector(named.values()).detach()
        vector_to_parameters(self._weights, named.values())
        self._start = self._weights.clone()
        self._named = named
        self._others = [
            parameter
            for parameter in self._model.parameters()
            if not parameter.requires_grad and parameter.is_floating_point()
        ]
        self._own_base: npt.NDArray[np.float32] | None = None
        self._bias: list[torch.Tensor] = []
        self._buffers = [
            (module, name, buffer, buffer.clone())
            for module in self._model.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]
        # A recurrent layer on an accelerator refuses to train in evaluation mode.
        self._model.train()
        begin, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        self._begin: list[int] = [] if begin is None else [int(begin)]
        self._end: list[int] = [] if end is None else [int(end)]
        self._positions = context_of(self._model)
        # glibc keeps free memory up to twice the largest block that it got back (32 MiB at most).
        # Beyond that every step would have its pages taken away and brought anew.
        torch.empty(2**25 - 2**16, dtype=torch.uint8)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that an update depends on besides the trained parameters' values.

        Architecture, tokenizer, precision, the names and shapes of what is trained, and the values
        of what is not. No path and no name: the broadcast brings the rest. The architecture is
        taken as its file says it: what Transformers fills in differs between its releases.
        """
        digest = hashlib.sha256()
        config = Path(model_folder(self.spec.name)) / "config.json"
        settings: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
        for key in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
            settings.pop(key, None)
        described: dict[str, Any] = {
            "class": type(self._model).__name__,
            "config": settings,
            "trained": {name: list(shape) for name, shape in self.shapes.items()},
            "precision": self.spec.precision,
            "lora": [self.spec.lora_rank, self.spec.lora_alpha]
            if self.spec.trainable == "lora"
            else None,
            "tokenizer": self.tokenizer.backend_tokenizer.to_str(),
            "begin": self._begin,
        }
        if self._first is not None:
            described["first"] = self._first
        digest.update(json.dumps(described, sort_keys=True, default=str).encode())
        trained = {id(parameter) for parameter in self._named.values()}
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            if id(tensor) not in trained:
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
                digest.update(values.numpy().tobytes())
        return digest.hexdigest()

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of a sample that the model takes; None where there is no limit."""
        return None if self._positions is None else self._positions - len(self._begin)

    @property
    def parameters(self) -> npt.NDArray[np.float32]:
        """The parameters that users start from, (dimension,) float32, a copy."""
        return self._start.cpu().numpy().copy()

    def start_from(self, parameters: npt.NDArray[np.float32]) -> None:
        """Set the parameters that the next users start from.

        Args:
            parameters: (dimension,) float32.

        Raises:
            ValueError: the shape is another one.
        """
        if parameters.shape != (self.dimension,):
            raise ValueError(
                f"parameters must have shape ({self.dimension},), got {parameters.shape}"
            )
        # A copy: what all nodes of a process share is read-only, and torch knows no such thing.
        self._start.copy_(torch.from_numpy(np.array(parameters, dtype=np.float32)))

    @property
    def base(self) -> npt.NDArray[np.float32]:
        """The parameters that are not trained, one after another: (m,) float32, a copy."""
        if not self._others:
            return np.zeros(0, dtype=np.float32)
        pieces = [parameter.detach().float().flatten() for parameter in self._others]
        return torch.cat(pieces).cpu().numpy()

    def set_base(self, base: npt.NDArray[np.float32] | None) -> None:
        """Give the parameters that are not trained other values, or their own again.

        Args:
            base: (m,) float32, as `base` of another model of this shape; None for their own.

        Raises:
            ValueError: the shape is another one.
        """
        if base is None and self._own_base is None:
            return
        sizes = [parameter.numel() for parameter in self._others]
        if base is not None and base.shape != (sum(sizes),):
            raise ValueError(f"base must have shape ({sum(sizes)},), got {base.shape}")
        if self._own_base is None:
            _ = self.fingerprint  # is that of its own values
            self._own_base = self.base
        values = torch.from_numpy(np.array(self._own_base if base is None else base))
        with torch.no_grad():
            for parameter, piece in zip(self._others, torch.split(values, sizes), strict=True):
                parameter.copy_(piece.view_as(parameter))

    def set_bias(self, bias: LogitBias | None) -> None:
        """Give the logits a bias, which is added in training and not trained; None for none.

        Args:
            bias: of as many tokens as the model predicts.

        """
        self._bias = []
        if bias is None:
            return
        arrays = bias.arrays().values()
        self._bias = [torch.from_numpy(np.array(one)).to(self._device) for one in arrays]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Samples as tokens, the first one included.

        A sample that was cut to `max_tokens` inside its document may be a token longer on its
        own; what does not fit the model is left out.
        """
        rows = token_rows(self.tokenizer, texts)
        # A token that only the tokenizer knows has no row; on a GPU it would end all training.
        known = len(self._model.get_input_embeddings().weight)
        return [[*self._begin, *(t for t in row if t < known)][: self._positions] for row in rows]

    def after_condition(
        self, condition: Sequence[int], sample: Sequence[int], *, ends: bool = True
    ) -> list[int]:
        """A sample after a condition, and before the token that ends a text, as far as it fits.

        Args:
            condition: by `encode`, apart from the sample.
            sample: by `encode`.
            ends: whether that token stands there; without it nothing is learnt of where texts end.
        """
        end = self._end if ends else ()
        return [*condition, *sample[len(self._begin) :], *end][: self._positions]

    def update(
        self,
        samples: Sequence[Sequence[int]],
        *,
        learning_rate: float,
        epochs: int,
        batch_size: int,
        max_steps: int = 0,
        seed: Sequence[int] = (0,),
        given: Sequence[int] | None = None,
        into: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32] | None:
        """Train one user from the start parameters, and say how far they moved.

        Args:
            samples: the user's samples by `encode`.
            learning_rate: of plain stochastic gradient descent, > 0.
            epochs: passes over the samples, >= 1.
            batch_size: samples per step, >= 1; the last step of a pass may have fewer.
            max_steps: steps after which training ends, or 0 for all of the epochs.
            seed: of the order of the samples, anew for every pass; integers >= 0.
            given: of each sample how many tokens at its beginning are given and not predicted; None
                for its first token alone.
            into: (dimension,) that the update is written to; None for a new array.

        Returns:
            (dimension,) float32, `into` or new, end minus start; it may hold values that are not
            finite, where the training diverged. None when there is nothing to predict.
        """
        first = [1] * len(samples) if given is None else [max(1, tokens) for tokens in given]
        pairs = zip(samples, first, strict=True)
        usable = [(sample, tokens) for sample, tokens in pairs if len(sample) > tokens]
        if not usable:
            return None
        self._begin_anew()
        order = np.random.default_rng(seed)
        # For CUDA's sake torch.manual_seed notes the source lines of all its callers.
        generator: Any = torch.default_generator if self._device.type == "cpu" else torch
        with self._generators_kept():
            generator.manual_seed(int(order.spawn(1)[0].integers(2**63)))
            self._train(usable, order, learning_rate, epochs, batch_size, max_steps)
        before, after = self._start.cpu().numpy(), self._weights.cpu().numpy()
        moved: npt.NDArray[np.float32] = np.subtract(after, before, out=into)
        return moved

    def loss(
        self,
        samples: Sequence[Sequence[int]],
        *,
        parameters: npt.NDArray[np.float32] | None = None,
    ) -> float:
        """Cross-entropy of samples from which nothing is learnt.

        Args:
            samples: by `encode`, at least one, of two tokens or more. An encoder-decoder reads the
                first half of each and predicts the other.
            parameters: (dimension,) float32; None for those that users start from.

        Returns:
            Nats per predicted token; not finite where the model's logits are not.
        """
        self._begin_anew()
        if parameters is not None:
            self._weights.copy_(torch.from_numpy(parameters))
        vocabulary = int(self._model.config.get_text_config().vocab_size)
        blocks = batches_by_length(samples, range(len(samples)), vocabulary=vocabulary)
        total, predicted = 0.0, 0
        with torch.no_grad(), self._generators_kept():
            for block in blocks:
                batch = [
                    (samples[index], len(samples[index]) // 2 if self.encoder_decoder else 1)
                    for index in block
                ]
                tokens = sum(len(sample) - given for sample, given in batch)
                total += float(self._loss(batch)) * tokens
                predicted += tokens
        self._begin_anew()
        return total / predicted

    def _generators_kept(self) -> AbstractContextManager[None]:
        """Torch's generators are afterwards as they were, that of the model's device too."""
        return torch.random.fork_rng([self._device] if self._device.type == "cuda" else [])

    def _begin_anew(self) -> None:
        """Put weights and buffers back to what every user begins with, without any gradient."""
        self._weights.copy_(self._start)
        # Of a step that failed half way: what is left would be added to.
        self._drop_gradients()
        for module, name, buffer, value in self._buffers:
            module._buffers[name] = buffer
            buffer.copy_(value)

    def _train(
        self,
        usable: Sequence[tuple[Sequence[int], int]],
        order: np.random.Generator,
        learning_rate: float,
        epochs: int,
        batch_size: int,
        max_steps: int,
    ) -> None:
        """The steps of one user."""
        steps = 0
        for _ in range(epochs):
            ranks = order.permutation(len(usable))
            for first in range(0, len(usable), batch_size):
                self._loss([usable[rank] for rank in ranks[first : first + batch_size]]).backward()  # type: ignore[no-untyped-call]
                self._step(learning_rate)
                steps += 1
                if steps == max_steps:
                    return

    def _step(self, learning_rate: float) -> None:
        """Go down the gradient of the last backward pass, and let go of it."""
        weights: list[torch.Tensor] = []
        gradients: list[torch.Tensor] = []
        for parameter in self._named.values():
            if parameter.grad is not None:
                weights.append(parameter)
                gradients.append(parameter.grad)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-learning_rate)
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        """Let go of all gradients; the next backward pass puts its own in their place."""
        for parameter in self._named.values():
            parameter.grad = None

    def _loss(self, samples: Sequence[tuple[Sequence[int], int]]) -> torch.Tensor:
        """Mean cross-entropy over the predicted tokens of a batch, in nats.

        Args:
            samples: each with how many tokens of it are given.
        """
        if self._first is None:
            before, mask = self._padded([sample for sample, _ in samples])
            given = torch.tensor([[given] for _, given in samples], device=self._device)
            places = torch.arange(before.shape[1], device=self._device)
            predicted = (mask != 0) & (places >= given)
            targets = before[predicted]
            predicted = predicted.roll(-1, dims=1)  # no row's first token is predicted
            # No mask: padding follows a row, where no token of a causal model looks.
            inputs = {"input_ids": before}
        else:  # it reads what is given and predicts the rest
            read, mask = self._padded([[*sample[:given], *self._end] for sample, given in samples])
            tokens, rest = self._padded([sample[given:] for sample, given in samples])
            predicted = rest != 0
            targets = tokens[predicted]
            # Padding follows what is predicted, where no token looks.
            before = torch.cat([torch.full_like(tokens[:, :1], self._first), tokens[:, :-1]], dim=1)
            inputs = {"input_ids": read, "attention_mask": mask, "decoder_input_ids": before}
        with torch.autocast(
            self._device.type, dtype=torch.bfloat16, enabled=self.spec.precision == "bfloat16"
        ):
            logits = logits_at(self._model, predicted, **inputs, use_cache=False)
        logits = logits.float()
        if self._bias:
            from flower_privsyn.models.biased import biased_logits

            logits = biased_logits(logits, before[predicted], self._bias)
        return torch.nn.functional.cross_entropy(logits, targets)

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, mask = padded(rows)
        return tokens.to(self._device), mask.to(self._device)

    def save(self, folder: Path, parameters: npt.NDArray[np.float32]) -> None:
        """Write a model folder that Transformers loads, adapters merged into the weights.

        The object is of no use for training afterwards.

        Args:
            folder: made, or replaced as a whole.
            parameters: (dimension,) float32, what the trained parameters shall be.
        """
        self.start_from(parameters)
        self._begin_anew()
        for parameter in self._named.values():
            # Pieces of one vector look like tied weights to whoever writes them.
            parameter.data, parameter.grad = parameter.data.clone(), None
        model = self._model.eval()
        if self.spec.trainable == "lora":
            model = model.merge_and_unload()
        model.requires_grad_(False)
        built = folder.with_name(f".{folder.name}.partial")
        save_model(model, self.tokenizer, built)
        if folder.exists():
            shutil.rmtree(folder)
        built.rename(folder)


def _choose(model: Any, spec: TrainableModel) -> dict[str, torch.nn.Parameter]:
    """Leave only the trained parameters with gradients, and return them by name."""
    if spec.trainable != "lora":
        patterns = ("*",) if spec.trainable == "full" else spec.patterns
        names = [name for name, _ in model.named_parameters()]
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                raise ConfigError(
                    f"trainable: no parameter of model {spec.name!r} is named {pattern!r}; "
                    f"names look like {names[0]!r} and {names[-1]!r}"
                )
        for name, parameter in model.named_parameters():
            wanted = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
            parameter.requires_grad_(wanted and parameter.is_floating_point())
    chosen = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    if not chosen:
        raise ConfigError(f"model {spec.name!r} has no parameters to train")
    return chosen
