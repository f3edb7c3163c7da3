"""Keyword arguments of presets, as type checkers and completion know them.

Written by `python -m scripts.preset_keywords` from the classes of the settings, where every key is
declared once with its range, its default and what it means. `epsilon` is an argument of its own.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class PrivateSumKeywords(TypedDict, total=False):
    """Settings of `PrivateSumConfig`."""

    noise_multiplier: float | None
    delta: float
    num_rounds: int
    num_users: int
    num_nodes: int
    sampling_rate: float
    sample_size: int
    max_nodes_per_user: int
    relation: Literal["zero-out", "add-remove", "replace-one"]
    accountant: Literal["pld", "rdp"]
    min_users: int | None
    secure_aggregation: bool
    least_nodes: int | None
    colluding_nodes: int | None
    accept_noise: bool
    embedding_model: str
    embedding_precision: Literal["float32", "bfloat16"]
    broadcast_precision: Literal["float16", "float32"]
    max_tokens: int
    max_samples: int
    newer_than: str
    held_out_fraction: float
    seed: int
    node_timeout: float
    round_timeout: float
    run_dir: str
    resume: bool | Literal["auto"]
    tracker: Literal["", "tensorboard", "mlflow", "wandb"]


class GeneratorSettingsKeywords(TypedDict, total=False):
    """Settings of `GeneratorSettings`."""

    generator: str
    generator_api_key_env: str
    generator_timeout: float
    generator_retries: int
    generator_concurrency: int
    generator_parameters: str


class ExpandingSettingsKeywords(GeneratorSettingsKeywords, total=False):
    """Settings of `ExpandingSettings`."""

    generator_interface: Literal["completions", "chat"]


class EvolutionKeywords(ExpandingSettingsKeywords, PrivateSumKeywords, total=False):
    """Settings of `EvolutionConfig`."""

    sampling: Literal["full", "poisson", "fixed-size"]
    num_candidates: int
    lookahead: int
    clip: Literal["count", "l2", "share"]
    clip_to: float
    selection: Literal["resample", "rank"]
    threshold: float
    threshold_unit: Literal["noise-std", "votes"]
    num_variations: int
    public_text: str
    variation: Literal["mask-fill", "prompt"]
    variation_model: str
    mask_fraction: float
    mask_steps: int
    mask_unit: Literal["token", "word"]
    variation_prompt: str
    domain: str
    blank_fraction: float
    word_spread: float
    least_words: int
    whole_sentences: bool
    likelihood_quantile: float
    likelihood_model: str
    max_new_tokens: int
    temperature: float
    top_p: float


class PreferenceKeywords(GeneratorSettingsKeywords, PrivateSumKeywords, total=False):
    """Settings of `PreferenceConfig`."""

    sampling: Literal["full", "poisson", "fixed-size"]
    num_prompts: int
    responses_per_prompt: int
    rejected_rank: int
    loss: Literal["dpo", "ipo", "sft"]
    beta: float
    lora_rank: int
    lora_alpha: int
    learning_rate: float
    learning_rate_schedule: Literal["cosine", "constant"]
    warmup_steps: int
    training_epochs: int
    training_batch_size: int
    training_micro_batch_size: int
    gradient_checkpointing: bool
    reference: Literal["base", "previous"]
    temperature: float
    top_p: float
    max_new_tokens: int
    prompt: str
    training_model: str
    public_text: str
    synthetic_samples: int
    checkpoint: Literal["last", "sketch-mmd", "fred", "validation"]
    research: bool
    validation_text: str
    patience: int
    num_features: int
    bandwidth: float
    embedding_weight: float


class FederatedTrainingKeywords(PrivateSumKeywords, total=False):
    """Settings of `FederatedTrainingConfig`."""

    model: str
    initial_model: str
    trainable: Literal["full", "lora", "layers"]
    trainable_layers: str
    lora_rank: int
    lora_alpha: int
    local_precision: Literal["float32", "bfloat16"]
    local_learning_rate: float
    local_epochs: int
    local_batch_size: int
    local_steps: int
    clip_norm: float
    server_learning_rate: float | None
    server_momentum: float
    checkpoints: Literal["last", "all"]


class CorrelatedTrainingKeywords(FederatedTrainingKeywords, total=False):
    """Settings of `CorrelatedTrainingConfig`."""

    sampling: Literal["cyclic"]
    min_separation: int
    max_participations: int
    correlation: Literal["blt", "banded", "banded-square-root", "tree", "tree-honaker"]
    noise_buffers: int
    noise_bands: int
    tree_restart: int
    tree_completion: bool


class StudentKeywords(PrivateSumKeywords, total=False):
    """Settings of `StudentConfig`."""

    student_steps: int
    student_batch_size: int
    student_learning_rate: float


class PrivateEvolutionKeywords(EvolutionKeywords, total=False):
    """Settings of `PrivateEvolutionConfig`."""

    initial_text: Literal["public", "selected"]
    sketch_model: str
    prompt: str
    expand_samples: int
    survivors_of: Literal["all", "fred"]
    survivor_patience: int
    moment_dimensions: int
    survivor_weights: Literal["distinct", "counted"]
    opening_words: int
    refuse_repetition: bool
    output: Literal["expanded", "survivors", "both"]


class AugPEKeywords(EvolutionKeywords, total=False):
    """Settings of `AugPEConfig`."""

    classes: str
    initial_text: Literal["written", "public"]
    initial_prompt: str
    initial_words: int


class POPriKeywords(PreferenceKeywords, total=False):
    """Settings of `POPriConfig`."""

    moment_dimensions: int
    initial_text: Literal["public", "selected"]
    sketch_model: str
    centre: Literal["prompt", "all", "none"]
    scale: Literal["clip", "unit"]
    answer_space: Literal["candidates", "span"]
    project_scores: bool


class DPFedAvgKeywords(FederatedTrainingKeywords, total=False):
    """Settings of `DPFedAvgConfig`."""

    sampling: Literal["full", "poisson", "fixed-size"]
    adaptive_clipping: bool
    clip_quantile: float
    clip_learning_rate: float
    clip_bit_share: float


class DPFTRLKeywords(CorrelatedTrainingKeywords, total=False):
    """Settings of `DPFTRLConfig`."""


class FreDKeywords(PrivateSumKeywords, total=False):
    """Settings of `FreDConfig`."""

    sampling: Literal["full", "poisson", "fixed-size"]
    moment_dimensions: int
    moment_radius: float
    moment_centre: Literal["public", "none"]
    covariance_share: float
    public_text: str
    estimator: Literal["joint", "two-rounds"]
    unit: Literal["user", "record"]
    count_share: float
    num_records: int
    noise_calibration: Literal["as-accounted", "too-little-as-printed"]
    research: bool
    candidates: str
    candidate_texts: int


class PublicMidTrainingKeywords(CorrelatedTrainingKeywords, StudentKeywords, total=False):
    """Settings of `PublicMidTrainingConfig`."""

    position: Literal["middle", "before", "after", "none"]
    first_rounds: int
    cohorts: Literal["disjoint", "everybody"]
    noise_stream: Literal["restart", "continue"]
    public_text: str
    public_rows: Literal["matched", "contrasted", "random", "all"]
    select_share: float
    least_row_tokens: int
    public_model: str
    row_lengths: Literal["average", "sum"]
    teacher: str
    teacher_beta: float
    teacher_alone: bool
    teacher_top_k: int
    teacher_rest: Literal["lumped", "drawn", "dropped"]
    teacher_temperature: float


class CausalTrainingKeywords(TypedDict, total=False):
    """Settings of `CausalTraining`."""

    learning_rate: float
    batch_size: int
    micro_batch_size: int
    epochs: int
    max_steps: int
    max_tokens: int
    layout: Literal["pad", "pack"]
    long_texts: Literal["split", "cut"]
    learn_ends: bool
    retokenize: bool
    schedule: Literal["constant", "linear", "cosine"]
    warmup_steps: int
    weight_decay: float
    max_gradient_norm: float
    device: Literal["auto", "cpu", "cuda"]
    lora_rank: int
    precision: Literal["auto", "float32", "bfloat16"]
