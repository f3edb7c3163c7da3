"""Every app of the repository carries settings that its strategy accepts, all of them, once."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from flower_privsyn.catalogue import configuration_of
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.strategies import JointSketchConfig, PrivateEvolutionConfig

ROOT = Path(__file__).parents[2]


def test_an_existing_federation_is_added_to_and_not_changed() -> None:
    app = ROOT / "examples/existing-federation"
    added = (app / "added.diff").read_text().split("--- ")[1:]
    lines = []
    for part in added:
        name, *rest = part.splitlines()
        for hunk in "\n".join(rest[1:]).split("@@ -")[1:]:
            _, *body = hunk.splitlines()
            assert "\n".join(line[1:] for line in body) in (app / name).read_text()
            assert {line[:1] for line in body} <= {"+", " "}
            lines += [line for line in body if line.startswith("+")]
    assert 10 < len(lines) <= 20


@pytest.mark.parametrize(
    "app", sorted(ROOT.glob("examples/*/pyproject.toml")), ids=lambda app: app.parent.name
)
def test_the_ready_server_knows_every_key_of_an_app_that_names_it(app: Path) -> None:
    """An app with keys of its own needs a server of its own; `check` passes over such keys."""
    if "strategies.default:app" in app.read_text("utf-8"):
        configuration_of({**resolve_config(load_app(app.parent)), "data": "users.jsonl"})


def test_the_quickstart_asks_once_and_has_a_writer_that_learns() -> None:
    values = resolve_config(load_app(ROOT / "examples" / "quickstart"))
    config = configuration_of(values)
    assert isinstance(config, JointSketchConfig)
    assert (config.epsilon, config.num_rounds, config.synthetic_samples) == (1.0, 1, 100)
    assert (config.synthesis, config.generator, config.prompt) == ("both", "smollm2-135m", "")
    assert config.writing(by_object=False)[0] > 0


@pytest.mark.parametrize(
    ("epsilon", "noise", "size", "larger"), [("1.29", 11.3, 1024, 5.9), ("7.58", 2.31, 2048, 1.0)]
)
def test_pre_text_as_printed(epsilon: str, noise: float, size: int, larger: float) -> None:
    app = load_app(ROOT / "baselines" / "pre-text")
    values = resolve_config(app, config_name=f"eps-{epsilon}-as-printed")
    config = configuration_of(values)
    assert isinstance(config, PrivateEvolutionConfig)
    assert (config.noise_multiplier, config.num_candidates) == (noise, size)
    assert config.accountant == "rdp"
    # Their experiments subtract 8 samples x 1.541 x sqrt(2) votes, 5.9 times that at 1.29.
    votes = 8 * 1.541 * math.sqrt(2) * larger
    assert config.threshold * noise * config.max_samples == pytest.approx(votes, rel=1e-7)
    assert (config.lookahead, config.num_rounds, config.delta) == (4, 11, 3e-6)


@pytest.mark.parametrize(
    "data", sorted(ROOT.glob("examples/**/data/users.jsonl")), ids=lambda p: p.parts[-4]
)
def test_shipped_text_says_where_it_comes_from(data: Path) -> None:
    assert "public domain" in (data.parent / "README.md").read_text()


@pytest.mark.parametrize(
    "module",
    [
        module
        for module in sorted(ROOT.glob("[be]*/*/*/client_app.py"))
        if "users_of_node(context, sample=SAMPLE)" in module.read_text()
    ],
    ids=lambda path: path.parts[-3],
)
def test_a_supernode_reads_its_own_data_also_where_the_app_has_a_sample(
    module: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.csv"
    own.write_text("customer,note\nann,one\nben,two\n")
    spec = importlib.util.spec_from_file_location("client_app_of_a_test", module)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    node = {"data": str(own), "client-column": "customer", "text-column": "note"}
    settings = resolve_config(load_app(module.parents[1]))
    users = loaded.load(
        Context(run_id=1, node_id=5, node_config=node, state=RecordDict(), run_config=settings)
    )
    assert sorted(users.user_ids) == ["ann", "ben"]
