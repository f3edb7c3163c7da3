"""llama.cpp's server for one model file, in a process of its own.

    python -m flower_privsyn.generation.llama_server PARENT

A broken file can end llama.cpp and the process that holds it; this one holds nothing else. It reads
one line of settings from its standard input, answers with the line of its address once it serves,
and ends when PARENT, the number of the process that started it, is no longer its parent's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

#: How often it looks whose child it is.
_LOOK_SECONDS = 1.0

#: Errors alone: the last one says why the process ended.
_VERBOSITY = 1


def serve(*, model: str, api_key: str, slots: int, context: int, threads: int) -> Any:
    """Load the model and serve it on a free port of loopback.

    Args:
        model: path of the GGUF file.
        api_key: whoever asks must know it: other users of the machine reach the port as well.
        slots: texts that are written at the same time, >= 1.
        context: tokens of a prompt and its continuation together, >= 1.
        threads: that compute, >= 1.

    Returns:
        xllamacpp's server; its `listening_address` is where it is.
    """
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [api_key]
    parameters.n_parallel = slots
    parameters.n_ctx = slots * context
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    # Threads that wait for one another sleep: spinning takes the time of whoever is waited for.
    parameters.cpuparams.poll = 0
    parameters.cpuparams_batch.poll = 0
    parameters.verbosity = _VERBOSITY
    parameters.offline = True
    parameters.check_tensors = True
    # Completions of plain prompts, and nothing else: no page, no templates from the file, no
    # prompts of other texts in memory or on view.
    parameters.enable_chat_template = False
    parameters.use_jinja = False
    parameters.ui = False
    parameters.endpoint_slots = False
    parameters.cache_ram_mib = 0
    return xllamacpp.Server(parameters)


def main() -> None:
    """Serve until the process that started this one ends."""
    # Libraries that print must not be taken for the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = serve(**json.loads(sys.stdin.readline()))
    print(server.listening_address, file=answer, flush=True)
    # Not by the kernel's signal at a parent's death: it comes when the thread ends that started
    # this process.
    while os.getppid() == int(sys.argv[1]):
        time.sleep(_LOOK_SECONDS)
    # Without waiting for what is being written: nobody is there to read it.
    os._exit(0)


if __name__ == "__main__":
    main()
