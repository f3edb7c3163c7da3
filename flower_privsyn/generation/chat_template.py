"""Messages as prompts, by the chat template of a model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from flower_privsyn.errors import GenerationError

#: What the prompts of some templates end with.
_THOUGHTS: Final = "<think>"


def chat_prompts(tokenizer: Any, messages: Sequence[str], *, system: str, model: str) -> list[str]:
    """What a model goes on with where it is to answer.

    Args:
        tokenizer: Of the model, as Transformers has it.
        messages: What the user says, each in a conversation of its own.
        system: The system's message before it; "" for none.
        model: Its name.

    Returns:
        A prompt for each message, without the token that texts begin with where the tokenizer puts
        one there.

    Raises:
        GenerationError: There is no template, or it refuses the messages.
    """
    from jinja2 import TemplateError

    if not getattr(tokenizer, "chat_template", None):
        raise GenerationError(
            f"model {model!r} has no chat template: it goes on with beginnings and answers no "
            "messages"
        )
    before = [{"role": "system", "content": system}] if system else []
    try:
        prompts = [
            str(
                tokenizer.apply_chat_template(
                    [*before, {"role": "user", "content": message}],
                    tokenize=False,
                    add_generation_prompt=True,
                )
            )
            for message in messages
        ]
    except TemplateError as error:
        advice = ': a prompt file whose instruction is "" has no system message' if system else ""
        raise GenerationError(
            f"the chat template of model {model!r} refuses the messages ({error}){advice}"
        ) from error
    # Templates write the token that texts begin with, and so does the tokenizer.
    begin = tokenizer.bos_token
    if begin and tokenizer("")["input_ids"]:
        prompts = [prompt.removeprefix(begin) for prompt in prompts]
    return prompts


def whole_answer(prompt: str, continuation: str) -> str:
    """An answer with the mark by which its template has begun the thoughts.

    Without it those that end nowhere would pass for an answer.
    """
    return _THOUGHTS + continuation if prompt.rstrip().endswith(_THOUGHTS) else continuation
