"""The first pass over a node's text, before a run: cut, embed, put on the disk.

A run would do the same inside its preparation request, in the processes that answer and without
showing how far it is. What is done here is found there, because both name it by its content.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flower_privsyn.client_apps.node_users import EmbedderLoader
from flower_privsyn.client_apps.records import EmbeddingSource
from flower_privsyn.data import Samples, Users, load_configured
from flower_privsyn.embedding import (
    Embedder,
    EmbeddingCache,
    RecordStore,
    check_embeds,
    embed_each,
    require_company,
)
from flower_privsyn.embedding.machine import device_of
from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.messages import wire

#: Texts of one piece of work: what a killed process loses.
_BLOCK = 512
#: Pieces of work handed out at a time to each process.
_AHEAD = 2


class _Stage(Protocol):
    def update(self, steps: int = 1) -> None: ...


class _Stages(Protocol):
    def stage(self, name: str, total: int | None = None) -> AbstractContextManager[_Stage]: ...


@dataclass(frozen=True, kw_only=True)
class FirstPass:
    """What a first pass has found and done.

    Attributes:
        users: on all nodes, those held out of the run left out.
        samples: of all users; 0 for nodes that were ready before, whose text was not cut again.
        embedded: distinct texts embedded now.
        nodes_ready: nodes whose records were on the disk before.
        bytes_on_disk: of all nodes' records.
    """

    users: int
    samples: int
    embedded: int
    nodes_ready: int
    bytes_on_disk: int


@dataclass(frozen=True, repr=False)  # ids are nobody's to print
class _Node:
    key: str
    user_ids: tuple[str, ...]
    samples: Samples


def first_pass(
    configuration: Mapping[str, Any],
    request: wire.DataRequest,
    *,
    load_embedder: EmbedderLoader,
    directory: Path,
    progress: _Stages,
    nodes: int = 1,
    processes: int = 1,
) -> FirstPass:
    """Embed everything a run will ask of a file's users, and store it as its nodes will look it up.

    Killed at any point and called again it goes on: at most 512 texts a process are embedded twice.

    Args:
        configuration: `data`, `client-column`, `text-column`, `date-column`, `label-column`, as in
            a run.
        request: as the run will make it.
        load_embedder: from (model name, precision) to the embedder of the nodes; a function that
            other processes can import.
        directory: the node's cache.
        progress: where the stages are shown.
        nodes: how many nodes the users are dealt to; 1 where the file is one node's own.
        processes: that embed, each with the model in its memory.

    Raises:
        ConfigError: A number or a setting is out of range, or the store is switched off.
        DataError: The users cannot be read or have no document that counts, or the cache cannot be
            written.
        ModelError: The model cannot be loaded.
        FederationError: A process that embeds was killed.
    """
    for name, value in (("nodes", nodes), ("processes", processes)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}.")
    everyone = _read(configuration, request)  # before the model, which takes long
    embedder = load_embedder(request.embedding_model, request.embedding_precision)
    cache, store = EmbeddingCache(directory), RecordStore(directory)
    source = EmbeddingSource(embedder, directory, store)
    users_counted = ready = stored_bytes = 0
    waiting: list[_Node] = []
    cut = request.cut
    with progress.stage("Cut the text", nodes) as stage:
        for number in range(nodes):
            users = cut.asked(everyone.deal(partition_id=number, num_partitions=nodes))
            users_counted += len(users)
            key = source.key(users, cut)
            found = source.find(key)
            if found is None:
                samples = cut.samples(users, tokenizer=embedder.tokenizer)
                waiting.append(_Node(key, users.user_ids, samples))
            else:
                ready += 1
                stored_bytes += found.cohort.records.nbytes + found.cohort.owners.nbytes
            stage.update()
    del everyone
    embedded = _embed_missing(
        waiting,
        embedder,
        cache,
        request=request,
        load_embedder=load_embedder,
        directory=directory,
        progress=progress,
        processes=processes,
    )
    with progress.stage("Store the records", len(waiting)) as stage:
        for node in waiting:
            made = source.read(node.samples, node.user_ids)
            kept = source.keep(node.key, made, node.user_ids)
            stored_bytes += kept.cohort.records.nbytes + kept.cohort.owners.nbytes
            stage.update()
    return FirstPass(
        users=users_counted,
        samples=sum(len(node.samples) for node in waiting),
        embedded=embedded,
        nodes_ready=ready,
        bytes_on_disk=stored_bytes,
    )


def _read(configuration: Mapping[str, Any], request: wire.DataRequest) -> Users:
    """All users of the file, refused where the run could make nothing of their documents."""
    everyone = load_configured(configuration, strict=True, labels=bool(request.classes))
    everyone.check_documents(dated=bool(request.newer_than), classes=request.classes)
    return everyone


def _embed_missing(
    waiting: Sequence[_Node],
    embedder: Embedder,
    cache: EmbeddingCache,
    *,
    request: wire.DataRequest,
    load_embedder: EmbedderLoader,
    directory: Path,
    progress: _Stages,
    processes: int,
) -> int:
    """Embed the texts that the cache lacks; returns how many there were."""
    distinct = list(dict.fromkeys(text for node in waiting for text in node.samples.texts))
    device = device_of(embedder)
    missing = cache.missing(
        embedder.fingerprint, distinct, dimension=embedder.dimension, device=device
    )
    # Longest first: the blocks are alike in length, and memory peaks at once and not at the end.
    missing.sort(key=len, reverse=True)
    if missing:
        require_company(embedder, directory)
        check_embeds(embedder)
    blocks = [missing[start : start + _BLOCK] for start in range(0, len(missing), _BLOCK)]
    with progress.stage("Embed", len(missing)) as stage:
        if processes == 1 or len(blocks) < 2:
            for block in blocks:
                vectors = embed_each(embedder, block)
                cache.put_many(embedder.fingerprint, block, vectors, device=device)
                stage.update(len(block))
        else:
            _embed_in_processes(
                blocks,
                stage,
                processes=min(processes, len(blocks)),
                arguments=(
                    load_embedder,
                    (request.embedding_model, request.embedding_precision),
                    directory,
                    embedder.fingerprint,
                ),
            )
    return len(missing)


def _embed_in_processes(
    blocks: Sequence[list[str]],
    stage: _Stage,
    *,
    processes: int,
    arguments: tuple[EmbedderLoader, tuple[str, str], Path, str],
) -> None:
    threads = max(1, (os.cpu_count() or 1) // processes)
    pool = ProcessPoolExecutor(
        processes,
        # Threads of a model library do not survive a fork.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(threads, *arguments),
    )
    try:
        # A few at a time: texts in flight are copies.
        left = iter(blocks)
        begun = itertools.islice(left, _AHEAD * processes)
        running = {pool.submit(_embed, block) for block in begun}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                stage.update(future.result())
                if (block := next(left, None)) is not None:
                    running.add(pool.submit(_embed, block))
    except BrokenProcessPool:
        raise FederationError(
            "A process that embeds was ended from outside, most likely for want of memory; the "
            "same command goes on, with fewer --processes if need be."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


class _Worker:
    """The model and the cache of a process that embeds."""

    embedder: Embedder
    cache: EmbeddingCache


def _begin(
    threads: int,
    load_embedder: EmbedderLoader,
    name: tuple[str, str],
    directory: Path,
    fingerprint: str,
) -> None:
    # Before any library that computes is imported: processes share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _Worker.embedder = load_embedder(*name)
    _Worker.cache = EmbeddingCache(directory)
    if _Worker.embedder.fingerprint != fingerprint:
        raise ConfigError("The embedding model changed while it was in use.")
    check_embeds(_Worker.embedder)


def _embed(block: list[str]) -> int:
    vectors = embed_each(_Worker.embedder, block)
    _Worker.cache.put_many(
        _Worker.embedder.fingerprint, block, vectors, device=device_of(_Worker.embedder)
    )
    return len(block)
