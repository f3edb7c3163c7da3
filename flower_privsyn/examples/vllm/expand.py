"""Expand a few texts through a vLLM server, with a LoRA adapter if one is given."""

import argparse
import sys
from pathlib import Path

from flower_privsyn import PrivsynError
from flower_privsyn.generation import Expand, SamplingParameters, load_generator

SEEDS = [
    "The bus was late again, so we walked along the canal and talked about the garden.",
    "Does anyone know a good recipe for lentil soup that keeps for a few days?",
    "I finished the book last night and cannot stop thinking about its last chapter.",
    "Our new neighbours brought a cake and asked where the nearest library is.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="http://127.0.0.1:8000/v1", help="address, #model")
    parser.add_argument("--adapter", type=Path, help="folder of a PEFT LoRA adapter")
    parser.add_argument("--seeds", type=Path, help="file with one text per line")
    parser.add_argument("--num-samples", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        seeds = arguments.seeds.read_text().splitlines() if arguments.seeds else SEEDS
        expand = Expand(
            load_generator(arguments.server),
            sampling=SamplingParameters(seed=0, max_new_tokens=85),
        )
        result = expand.run(
            seeds,
            num_samples=arguments.num_samples,
            seed=arguments.seed,
            adapter=arguments.adapter,
            on_batch=lambda texts, *_: print(*texts, sep="\n"),
        )
    except (PrivsynError, OSError) as error:
        sys.exit(str(error))
    print(f"{len(result.texts)} texts, dropped: {dict(result.dropped)}", file=sys.stderr)


if __name__ == "__main__":
    main()
