"""What a run directory says of the models that write its texts."""

from __future__ import annotations

from typing import Any, Final

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import write_json
from flower_privsyn.generation.generators import describe_generator
from flower_privsyn.private_path.method import Method
from flower_privsyn.runs import RunDirectory

_GENERATORS: Final = "generators"

#: What runs a generator that an app made itself.
_BY_THE_APP: Final = "an object of the app"


def record_generators(run: RunDirectory, method: Method) -> None:
    """Keep in `config.json` what runs each generator, and whether its texts can be had again.

    Under `generators`, by name, the one that writes now last; those of earlier starts of the run
    stay.

    Args:
        run: its directory.
        method: knows the models that it needs.

    Raises:
        ModelError: a model's file cannot be read.
    """
    document = run.document
    before = dict(document.get(_GENERATORS, {}))
    now = _described(method)
    kept = {name: said for name, said in before.items() if name not in now} | now
    if list(kept.items()) != list(before.items()):
        write_json(run.config_file, {**document, _GENERATORS: kept})


def _described(method: Method) -> dict[str, dict[str, Any]]:
    """What is said of the generators that a method asks, by name."""
    names = [model.name for model in method.needs().models if model.kind == "generator"]
    if not names or method.given_writer is None:
        return {name: describe_generator(name) for name in names}
    return {
        method.given_writer.name: {
            "run_by": _BY_THE_APP,
            "deterministic": False,
            "because": "what it makes of seeds is the app's business",
        }
    }


def object_of_the_app(run: RunDirectory) -> str | None:
    """The name of the object that wrote for a run last; None where its settings name what did."""
    recorded = run.document.get(_GENERATORS) or {}
    name = next(reversed(recorded), None)
    if name is None or recorded[name].get("run_by") != _BY_THE_APP:
        return None
    return str(name)


def refuse_another_writer(run: RunDirectory, method: Method, *, named: bool) -> None:
    """Refuse to go on with the setting `generator` where an object of the app wrote before.

    Args:
        run: that is resumed.
        method: that goes on with it.
        named: whether `generator` was set to another one than the run had.

    Raises:
        ConfigError: it would write in the object's place, and nobody asked for it.
    """
    asked = [model.name for model in method.needs().models if model.kind == "generator"]
    before = object_of_the_app(run)
    if named or not asked or method.given_writer is not None or before is None:
        return
    raise ConfigError(
        f'the run in {run.path} was begun with an object of its app as generator, "{before}", and '
        f"is resumed without one: generator = {asked[0]!r} would write in its place. Give the "
        "object again, or set generator to another name"
    )
