"""Model deltas: how local training moves the parameters of a shared model, one vector per user.

DP-FedAvg's question. McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent
Language Models" (ICLR 2018), Algorithm 1; adaptive clipping: Andrew, Thakkar, McMahan, Ramaswamy,
"Differentially Private Learning with Adaptive Clipping" (NeurIPS 2021), Algorithm 1.

The training itself needs a model library and is the client app's work
(`flower_privsyn.training.local`). Here an update is what an embedding is to other queries: the
record of a user, one float32 vector, of which the server learns a clipped and noised sum.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import NonNegativeInt, OrZero, PositiveInt
from flower_privsyn.models.bias import BIAS_ARRAYS, LogitBias
from flower_privsyn.privacy import clip_rows, squared_norms
from flower_privsyn.queries.arrays import Broadcast, Float64Array, Form, Reads
from flower_privsyn.queries.query import Cohort, Query, check_arrays

_SMALLEST_CLIP = 1e-12
_LARGEST = 1e12

#: How much of the bound on a user the bit of adaptive clipping may take.
LEAST_BIT_SHARE = 1e-4
LARGEST_BIT_SHARE = 0.9

ClipNorm = Annotated[float, Ge(_SMALLEST_CLIP), Le(_LARGEST)]
LearningRate = Annotated[float, Gt(0), Le(_LARGEST)]


@dataclass(frozen=True, kw_only=True)
class ModelDelta(Query):
    """How far a user's local training moves the model, clipped as a whole.

    A user trains the broadcast parameters x on their own text by stochastic gradient descent and
    answers with y - x, all tensors together. Parameters that are not trained are the node's own, or
    those of the broadcast (`base`) where the server has trained them on public text; a bias of
    the broadcast (`BIAS_ARRAYS`) is added to the logits and not trained. Users count equally,
    whatever they wrote. Answers are in multiples of `unit`, so that small clip norms lose nothing
    to the grid of contributions.

    Formal guarantee:
        Unit: user. Without the bit the answer is the update scaled down to norm C = `clip_to`, so
        zeroing a user moves the sum by at most C. With the bit (adaptive clipping) the answer is

            (clip(y - x, C),  (b / a) C s),    s = +1 where |y - x| <= C and -1 elsewhere,

        with b = `bit_share` and a = sqrt(1 - b^2). Whatever the update, its norm is at most
        sqrt(C^2 + (b / a)^2 C^2) = C / a: update and bit share one bound, which is this query's
        clip norm, and one noise. The bit is a sign, half of a 0/1 bit to either side of zero: a
        0/1 bit as far apart would move the sum by 2 (b / a) C when its user is zeroed, a sign by
        half of that. This is the half shift of Andrew et al., who add noise z_delta C to the
        updates and sigma_b to the sum of the bits s / 2, where z^-2 = z_delta^-2 +
        (2 sigma_b)^-2 for the noise multiplier z that is accounted: here z_delta = z / a and
        sigma_b = z / (2 b), which satisfy the equation for every b. A user
        without an update (no text, or one that is not finite) answers the zero vector, the bit
        included.

    References:
        McMahan et al. 2018 (DP-FedAvg), Algorithm 1: UserUpdateFedAvg, flat clipping; Andrew et
        al. 2021, Algorithm 1 and theorem 1.
    """

    name: ClassVar[str] = "model_delta"
    reads: ClassVar[Reads] = "tokens"
    trains: ClassVar[bool] = True
    #: What is written into the result is what users trained under.
    unrounded: ClassVar[tuple[str, ...]] = BIAS_ARRAYS

    clip_to: ClipNorm
    """C, bound on the L2 norm of the update, in parameters."""
    bit_share: Annotated[float, OrZero("no bit"), Ge(LEAST_BIT_SHARE), Le(LARGEST_BIT_SHARE)] = 0.0
    """b, the part of the bound that the bit takes. At 0.2 the updates carry 2 % more noise than
    without it.
    """
    learning_rate: LearningRate = 0.1
    """Of local stochastic gradient descent."""
    epochs: PositiveInt = 1
    """Passes over the user's samples."""
    batch_size: PositiveInt = 4
    """Samples per step."""
    max_steps: NonNegativeInt = 0
    """Steps after which training ends, or 0 for all of the epochs."""

    @property
    def unit(self) -> float:
        """What an answer of 1 means in parameters: the clip norm where it is below 1, else 1."""
        return min(self.clip_to, 1.0)

    @property
    def clip_norm(self) -> float:
        """The bound on update and bit together, C / a, in multiples of `unit`."""
        return self.clip_to / self.unit / math.sqrt(1.0 - self.bit_share**2)

    @property
    def max_records(self) -> int:
        """A user has one update."""
        return 1

    def check(self, broadcast: Broadcast, *, dimension: int) -> None:
        """Refuse parameters of another model, and what cannot be a base or a bias of one."""
        forms: dict[str, Form] = {
            "parameters": ((dimension,), ("float32",)),
            "base": ((None,), ("float32",)),
        }
        asked = {name: array for name, array in broadcast.items() if name not in BIAS_ARRAYS}
        check_arrays(self.name, asked, forms, optional=("base",))
        self.bias(broadcast)  # says what is wrong with it

    def bias(self, broadcast: Broadcast) -> LogitBias | None:
        """The bias that is added to the logits; None where the broadcast has none.

        Raises:
            ConfigError: some of its arrays are missing, or they are no bias.
        """
        return None if broadcast.keys().isdisjoint(BIAS_ARRAYS) else LogitBias.of_arrays(broadcast)

    def answer_length(self, broadcast: Broadcast) -> int:
        """One number per parameter, and the bit if there is one."""
        return len(broadcast["parameters"]) + (self.bit_share > 0.0)

    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """Each user's update in multiples of `unit`, and the bit; (num_users, answer_length).

        Args:
            cohort: its records are updates, (n, parameters) float32, at most one per user.
            broadcast: the parameters that were trained from, and perhaps `base`, the values of
                those that are not trained, and a bias of the logits.
        """
        updates: Float64Array = np.multiply(cohort.records, 1.0 / self.unit, dtype=np.float64)
        if len(updates) == cohort.num_users and not self.bit_share:
            return updates  # everyone's, in order: a user has one at most
        rows = np.zeros((cohort.num_users, self.answer_length(broadcast)), dtype=np.float64)
        if not self.bit_share:
            rows[cohort.owners] = updates
            return rows
        bound = self.clip_to / self.unit
        lengths = np.sqrt(squared_norms(updates))
        clip_rows(updates, norm=bound)
        rows[cohort.owners, :-1] = updates
        rows[cohort.owners, -1] = np.where(lengths <= bound, self._bit, -self._bit)
        return rows

    @property
    def _bit(self) -> float:
        """What a set bit adds to the last coordinate, in multiples of `unit`."""
        return self.bit_share * self.clip_norm

    # ------------------------------------------------------------------ the server's half

    def mean_update(self, total: Float64Array, num_users: float) -> Float64Array:
        """Average update of a released sum, in parameters.

        Args:
            total: (answer_length,) the noisy sum.
            num_users: a public constant, > 0: never how many really answered.
        """
        updates = total[:-1] if self.bit_share else total
        return updates * (self.unit / num_users)

    def fraction_within(self, total: Float64Array, num_users: float) -> float:
        """Estimated fraction of users whose update was within the clip norm, in [0, 1].

        Unbiased before it is cut to [0, 1]; users without an update count half. Of a question with
        a bit alone.
        """
        signs = float(total[-1]) / self._bit
        return min(1.0, max(0.0, 0.5 + 0.5 * signs / num_users))


def next_clip_norm(
    clip_norm: float, fraction_within: float, *, quantile: float, learning_rate: float
) -> float:
    """The geometric update of the clip norm: C exp(-eta (fraction - quantile)).

    Args:
        clip_norm: C, > 0.
        fraction_within: estimated fraction of updates within C.
        quantile: what the fraction should be, in [0, 1].
        learning_rate: eta, >= 0; 0.2 in the paper.

    References:
        Andrew et al. 2021, section 2.1 and Algorithm 1.
    """
    following = clip_norm * math.exp(-learning_rate * (fraction_within - quantile))
    return min(max(following, _SMALLEST_CLIP), _LARGEST)


_SEPARATOR = "\0"

TrainOnEos = Literal["documents", "samples"]


@dataclass(frozen=True, kw_only=True)
class ConditionalDelta(ModelDelta):
    """How far a user's training on (condition, document) pairs moves the model, clipped as a whole.

    The broadcast holds, beside the parameters, a point in the embedding space and a text for every
    topic. The node embeds each document and trains on it after the text of the nearest point; only
    the document is predicted. Which texts those are does not leave the node but in the update.

    Formal guarantee:
        That of `ModelDelta`: whatever a document's condition, a user's whole update is clipped.

    References:
        Tan et al. 2025 (CTCL), section 3.3.
    """

    train_on_eos: TrainOnEos = "documents"
    """After what the model learns that a text ends: "documents", where one does; "samples", after
    each of them, of which most may be cut off.
    """

    name: ClassVar[str] = "conditional_delta"
    conditioned: ClassVar[bool] = True

    def check(self, broadcast: Broadcast, *, dimension: int) -> None:
        """Refuse parameters of another model, and conditions that do not fit their points."""
        forms: dict[str, Form] = {
            "centres": ((None, None), ("float32",)),
            "conditions": ((None,), ("uint8",)),
        }
        conditions = {name: array for name, array in broadcast.items() if name in forms}
        asked = {name: array for name, array in broadcast.items() if name not in forms}
        super().check(asked, dimension=dimension)
        check_arrays(self.name, conditions, forms)
        if len(unpack_conditions(conditions["conditions"])) != len(conditions["centres"]):
            raise ValueError("there must be a condition for every centre")


def pack_conditions(conditions: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Texts as an array that a broadcast can hold.

    Raises:
        ValueError: a text holds the character that separates them.
    """
    if any(_SEPARATOR in text for text in conditions):
        raise ValueError("a condition must not hold the character of code 0")
    return np.frombuffer(_SEPARATOR.join(conditions).encode(), dtype=np.uint8)


def unpack_conditions(packed: npt.NDArray[np.uint8]) -> list[str]:
    """The texts of `pack_conditions`."""
    return packed.tobytes().decode().split(_SEPARATOR)


def conditioned_fingerprint(model: str, embedder: str) -> str:
    """What server and nodes must agree on: the model that is trained, and what finds conditions.

    Args:
        model: fingerprint of the model.
        embedder: fingerprint of the embedding model.
    """
    return hashlib.sha256(f"conditions {model} {embedder}".encode()).hexdigest()
