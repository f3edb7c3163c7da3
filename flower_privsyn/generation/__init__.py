"""The server's language models: varying and expanding public text, on every backend.

Nothing here ever sees private text, but for what a comparison measures without privacy
(`expand-private`). Importing it loads no PyTorch. May import `data`, `embedding`, `queries`,
`models` and `privacy`; no room of a client imports it.
"""

from flower_privsyn.generation.backends import SamplingParameters, TextGenerator, rehearse
from flower_privsyn.generation.expand import Expand
from flower_privsyn.generation.generators import load_generator, load_trained_generator
from flower_privsyn.generation.openai_backend import OpenAIGenerator
from flower_privsyn.generation.prompted import ByInstruction
from flower_privsyn.generation.prompts import load_instruction, load_prompt
from flower_privsyn.generation.transformers_backend import TransformersGenerator
from flower_privsyn.generation.variation import MaskFill, Variation

__all__ = [
    "ByInstruction",
    "Expand",
    "MaskFill",
    "OpenAIGenerator",
    "SamplingParameters",
    "TextGenerator",
    "TransformersGenerator",
    "Variation",
    "load_generator",
    "load_instruction",
    "load_prompt",
    "load_trained_generator",
    "rehearse",
]
