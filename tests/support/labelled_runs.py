"""A finished run of Aug-PE whose texts have classes, and texts whose words say their class."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.data import Samples
from flower_privsyn.testing import HashEmbedder

WORDS = {
    "law": "court judge appeal ruling witness jury verdict statute".split(),
    "river": "water bank bridge fish boat flood current delta".split(),
    "food": "bread salt butter oven plate spoon kitchen soup".split(),
}
NAMES = tuple(WORDS)


def texts_of(count: int, seed: int, *, wrong: float = 0.0) -> Samples:
    """Texts whose words say the class, some of them labelled wrongly; three of a user."""
    random = np.random.default_rng(seed)
    classes = random.integers(3, size=count)
    texts = [" ".join(random.choice(WORDS[NAMES[place]], 6)) for place in classes]
    lying = random.random(count) < wrong
    labelled = np.where(lying, (classes + 1) % 3, classes)
    owners = np.arange(count) // 3
    return Samples(texts=texts, owners=owners, num_users=count // 3, labels=labelled)


def _labels(samples: Samples) -> list[int]:
    assert samples.labels is not None
    return [int(place) for place in samples.labels]


@pytest.fixture(scope="session")
def labelled_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the `run`, its labelled `users.jsonl`, and the `public.jsonl` it began from."""
    from flower_privsyn.client_apps.handlers import create_client_app
    from flower_privsyn.strategies import AugPE, AugPEConfig
    from flower_privsyn.testing import LoopbackGrid, ShuffleWords, flower_identity, hash_embedder

    folder = tmp_path_factory.mktemp("classes")
    private, public = texts_of(120, 8), texts_of(90, 9, wrong=0.5)
    lines = [
        {"client_id": f"u{n // 3}", "text": text, "label": NAMES[place]}
        for n, (text, place) in enumerate(zip(private.texts, _labels(private), strict=True))
    ]
    (folder / "users.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    lines = [
        {"text": f"{text} p{n}", "label": NAMES[place]}
        for n, (text, place) in enumerate(zip(public.texts, _labels(public), strict=True))
    ]
    (folder / "public.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    config = AugPEConfig(
        classes=";".join(NAMES),
        num_rounds=2,
        num_candidates=54,
        num_variations=2,
        max_samples=4,
        noise_multiplier=0.0,
        held_out_fraction=0.4,
        variation="mask-fill",
        public_text=str(folder / "public.jsonl"),
        run_dir=str(folder / "run"),
        node_timeout=0.2,
    )
    app = create_client_app(embedder=hash_embedder, cache_directory=folder / "cache")
    grid = LoopbackGrid(app, run_config={"data": str(folder / "users.jsonl")})
    with flower_identity():
        AugPE(config, embedder=HashEmbedder(), variation=ShuffleWords()).start(grid)
    return folder
