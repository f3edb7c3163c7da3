"""What a run directory says of the models that write its texts."""

from __future__ import annotations

from flower_privsyn.files import write_json
from flower_privsyn.generation.generators import describe_generator
from flower_privsyn.private_path.method import Method
from flower_privsyn.runs import RunDirectory


def record_generators(run: RunDirectory, method: Method) -> None:
    """Keep in `config.json` what runs each generator, and whether its texts can be had again.

    Under `generators`, by name; those of earlier starts of the run stay.

    Args:
        run: its directory.
        method: knows the models that it needs.

    Raises:
        ModelError: a model's file cannot be read.
    """
    document = run.document
    before = dict(document.get("generators", {}))
    names = [model.name for model in method.needs().models if model.kind == "generator"]
    now = before | {name: describe_generator(name) for name in names}
    if now != before:
        write_json(run.config_file, {**document, "generators": now})
