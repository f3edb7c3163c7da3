"""The plane in which a report shows how texts move."""

import json
from pathlib import Path

import numpy as np

from flower_privsyn.comparison.picture import Picture


def test_the_plane_is_that_of_the_principal_components(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    spread = np.array([5.0, 2.0, 0.5, 0.1])
    held_out = (spread * generator.standard_normal((40, 4))).astype(np.float32)
    round_one = spread * generator.standard_normal((10, 4))
    picture = Picture(tmp_path / "picture.json")
    assert picture.to_dict(lambda *_: held_out) is None
    entry = {"rank": [1.0, 0], "model": ["m", "float32"], "rounds": {"1": round_one.tolist()}}
    other = {**entry, "model": ["another", "float32"]}
    (tmp_path / "picture.json").write_text(json.dumps({"popri": entry, "mine": other}))

    found = picture.to_dict(lambda *_: held_out)
    assert found is not None
    assert list(found["methods"]) == ["popri"]
    every = np.concatenate([held_out, round_one])
    centred = every - every.mean(axis=0)
    _, values, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(axes[[0, 1], np.abs(axes[:2]).argmax(axis=1)])[:, None]
    expected = (centred @ axes.T).round(3)
    np.testing.assert_allclose(found["held_out"], expected[:40], atol=1.1e-3)
    np.testing.assert_allclose(found["methods"]["popri"]["1"], expected[40:], atol=1.1e-3)
    shares = values[:2] ** 2 / (values**2).sum()
    np.testing.assert_allclose(found["explained"], shares, atol=1e-4)
    assert found["held_out"][0][0] == round(found["held_out"][0][0], 3)
