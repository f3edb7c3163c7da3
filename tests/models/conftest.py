"""The tiny models that tests of generation use as well."""

from tests.generation.conftest import bert, gpt2, llama, offline, one_thread, roberta

__all__ = ["bert", "gpt2", "llama", "offline", "one_thread", "roberta"]
