"""A released kernel mean at the server: scores, distances and choices, all post-processing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.files import replacing, write_json
from flower_privsyn.generation.streams import derive_seed
from flower_privsyn.private_path.release import SumOfUsers, added_up
from flower_privsyn.queries import (
    KernelMean,
    features,
    mean_scores,
    median_bandwidth,
    squared_mmd,
    witness_scores,
)

if TYPE_CHECKING:
    from flower_privsyn.host.progress import Progress
    from flower_privsyn.strategies.parts.preferences import PreferenceConfig
    from flower_privsyn.strategies.parts.public_side import PublicSide

#: Public texts the median heuristic looks at; more change the third digit.
_BANDWIDTH_TEXTS = 1000


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """What a federation released of its users' texts, and the kernel it was released with.

    Formal guarantee:
        Post-processing of one or several accounted releases: reading it any number of times costs
        nothing, whatever it is compared with.

    Attributes:
        query: the question that was released.
        total: (D',) float64, the noisy sum over users of their mean features.
        num_users: users in the sum, > 0; their expected number under Poisson sampling.
        noise_std: standard deviation of the noise in each coordinate of `total`, >= 0.
    """

    figure: ClassVar[str] = "squared_mmd"

    query: KernelMean
    total: npt.NDArray[np.float64]
    num_users: float
    noise_std: float

    @classmethod
    def combine(
        cls,
        query: KernelMean,
        releases: Sequence[SumOfUsers],
    ) -> Sketch | None:
        """Add up the releases of several rounds; None without any.

        Args:
            query: asked in all of them.
            releases: of each round.
        """
        added = added_up(releases)
        if added is None:
            return None
        return cls(query=query, total=added.total, num_users=added.users, noise_std=added.noise_std)

    def mean_scores(self, embeddings: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Mean kernel between each text and the users' texts, (m,): POPri's objective."""
        return mean_scores(embeddings, self.total, self.num_users, query=self.query)

    def witness_scores(
        self, embeddings: npt.NDArray[np.float32], population: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float64]:
        """How much more the users' texts resemble each text than `population` does, (m,)."""
        return witness_scores(embeddings, self.total, self.num_users, population, query=self.query)

    def squared_mmd(self, embeddings: npt.NDArray[np.float32]) -> float:
        """Squared distance to a set of texts, unbiased for the noise; may be negative."""
        return squared_mmd(self.total, self.num_users, embeddings, self.noise_std, query=self.query)

    def distance(self, embeddings: npt.NDArray[np.float32]) -> float:
        """How far a set of texts is: the squared mean discrepancy."""
        return self.squared_mmd(embeddings)

    def herd(self, embeddings: npt.NDArray[np.float32], size: int) -> npt.NDArray[np.int64]:
        """Choose texts that together resemble the users' texts: greedy, without repetition.

        Each step adds the text that brings the mean of the chosen ones nearest to the released
        mean. That is kernel herding (Chen, Welling, Smola, "Super-Samples from Kernel Herding", UAI
        2010) on a finite pool: a text loses what those like it already cover.

        Args:
            embeddings: (m, d) the pool.
            size: how many to choose; all when there are not more.

        Returns:
            (min(size, m),) int64 indices, in the order chosen; ties go to the lowest index.
        """
        rows = features(embeddings, query=self.query)
        m = len(rows)
        target = (rows @ (self.total / self.num_users)).astype(np.float64)
        norms = np.einsum("md,md->m", rows, rows, dtype=np.float64)
        covered = np.zeros(m, dtype=np.float64)  # scalar product with the sum of the chosen
        chosen = np.empty(min(size, m), dtype=np.int64)
        for step in range(len(chosen)):
            # |mu - (S + phi) / (k + 1)|^2 without what is the same for all candidates.
            gain = target - (covered + 0.5 * norms) / (step + 1)
            gain[chosen[:step]] = -np.inf
            chosen[step] = int(np.argmax(gain))
            covered += rows @ rows[chosen[step]]
        return chosen

    def save(self, folder: Path) -> None:
        """Write `sketch.npy` and `sketch.json`, enough to score with it elsewhere.

        The released numbers are for the owner alone (mode 0600); who gets them gets the release.
        """
        target = folder / "sketch.npy"
        with replacing(target, for_the_owner=True) as temporary, temporary.open("wb") as file:
            np.save(file, self.total)
        write_json(
            folder / "sketch.json",
            {
                "query": self.query.to_wire(),
                "num_users": self.num_users,
                "noise_std": self.noise_std,
            },
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            RunDirectoryError: a file is missing or damaged.
        """
        try:
            document: dict[str, Any] = json.loads((folder / "sketch.json").read_text("utf-8"))
            return cls(
                query=_kernel(document["query"]),
                total=np.load(folder / "sketch.npy"),
                num_users=float(document["num_users"]),
                noise_std=float(document["noise_std"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(f"{folder} holds no readable sketch: {error}") from error


def sketch_query(
    folder: Path, config: PreferenceConfig, *, public: PublicSide, progress: Progress
) -> KernelMean:
    """The query of a run: read from `kernel.json`, or settled now from public text.

    It is written down because a resumed run must use the very features that were released, and the
    bandwidth is computed from embeddings whose last digits depend on the machine.

    Args:
        folder: the run directory.
        config: number of features, bandwidth (0 for the median heuristic), weight of the embedding,
            cap on records, and the seed of features and heuristic.
        public: embedding model and public text.
        progress: where the work reports.

    Raises:
        RunDirectoryError: what was written down is damaged.
    """
    file = folder / "kernel.json"
    if file.exists():
        try:
            return _kernel(json.loads(file.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise RunDirectoryError(f"{file} holds no readable kernel: {error}") from error
    bandwidth = config.bandwidth
    if not bandwidth:
        chooser = np.random.default_rng(derive_seed(config.seed, "bandwidth"))
        drawn = chooser.permutation(len(public.seeds))[:_BANDWIDTH_TEXTS]
        texts = [public.seeds[index] for index in np.sort(drawn)]
        with progress.stage("Kernel bandwidth from public text", len(texts)) as stage:
            bandwidth = median_bandwidth(public.embedder.embed(texts, progress=stage.update))
    query = kernel_of(config, bandwidth=bandwidth)
    write_json(file, query.to_wire())
    return query


def kernel_of(config: PreferenceConfig, *, bandwidth: float) -> KernelMean:
    """The query of a run at a bandwidth.

    Args:
        config: number of features, weight of the embedding, cap on records, seed.
        bandwidth: of the kernel, > 0.
    """
    return KernelMean(
        num_features=config.num_features,
        bandwidth=bandwidth,
        feature_seed=derive_seed(config.seed, "features"),
        embedding_weight=config.embedding_weight,
        max_samples=config.max_samples,
    )


def _kernel(parameters: dict[str, Any]) -> KernelMean:
    if not isinstance(parameters, dict):
        raise TypeError(f"the parameters of a kernel are an object, got {parameters!r}")
    return KernelMean(**{key.replace("-", "_"): value for key, value in parameters.items()})
