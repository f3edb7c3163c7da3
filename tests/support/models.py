"""Tiny models made on the fly: real architectures and a trained tokenizer, random weights."""

from __future__ import annotations

from pathlib import Path

import pytest

_WORDS = """
the a one my your this river mountain doctor garden teacher winter morning evening train coffee
letter window street music kitchen summer dinner ticket answer question sister brother walks sings
waits reads paints opens closes finds keeps loses writes under over near behind quietly slowly
happily again today tomorrow never always often because while before after
"""


def sentences(count: int) -> list[str]:
    """Deterministic different English-like sentences of 6 to 17 words."""
    made = []
    for number in range(count):
        length = 6 + number % 12
        words = _WORDS.split()
        picked = [
            words[(number * 31 + place * (7 + number % 5)) % len(words)] for place in range(length)
        ]
        made.append(" ".join(picked).capitalize() + f" {number}.")
    return made


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return sentences(60)


def byte_level(template: bool):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [*sentences(400), "Original Text Sample 1\n", "Here are 6 diverse original text samples:"],
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=["<pad>", "<s>", "</s>", "<unk>", "<mask>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if template:
        tokenizer.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single="<s> $A </s>",
                    pair="<s> $A </s> $B </s>",
                    special_tokens=[("<s>", 1), ("</s>", 2)],
                ),
            ]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>" if template else None,
        model_max_length=512,
        padding_side="right" if template else "left",
    )


def word_piece():
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        sentences(400),
        trainers.WordPieceTrainer(
            vocab_size=400,
            special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"],
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=128,
    )


def save(folder: Path, model, tokenizer) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import RobertaConfig, RobertaForMaskedLM

    torch.manual_seed(1)
    tokenizer = byte_level(template=True)
    config = RobertaConfig(
        vocab_size=len(tokenizer) + 3,  # three rows that stand for no token
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=66 + 1 + 1,
        type_vocab_size=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.3,
    )
    return save(tmp_path_factory.mktemp("roberta"), RobertaForMaskedLM(config), tokenizer)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(2)
    tokenizer = word_piece()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        pad_token_id=0,
        initializer_range=0.3,
    )
    return save(tmp_path_factory.mktemp("bert"), BertForMaskedLM(config), tokenizer)


def _llama_config(vocabulary: int):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # heads of 64, which vLLM's kernels take
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.15,
    )


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(3)
    tokenizer = byte_level(template=False)
    model = LlamaForCausalLM(_llama_config(len(tokenizer)))
    return save(tmp_path_factory.mktemp("llama"), model, tokenizer)


@pytest.fixture
def few_weights(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have golden runs train a model of 600 tokens: what a test promises hangs on no model."""
    from tests.support import golden_runs

    golden_runs.train(llama, monkeypatch)


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(4)
    tokenizer = byte_level(template=False)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    return save(tmp_path_factory.mktemp("gpt2"), GPT2LMHeadModel(config), tokenizer)


def write_gguf(folder: Path, file: Path) -> Path:
    """The Llama in a folder as llama.cpp reads it, in float32."""
    import json

    import gguf
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    heads, head = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(config.vocab_size)
    bpe = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = tokenizer.convert_ids_to_tokens(range(config.vocab_size))
    special = set(tokenizer.all_special_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_add_bos_token(False)
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for name, weight in model.state_dict().items():
        place = name.removesuffix(".weight").removeprefix("model.layers.")
        number, _, rest = place.partition(".")
        values = weight.float().numpy()
        if rest in ("self_attn.q_proj", "self_attn.k_proj"):
            # Rotary positions turn neighbours there and halves here.
            values = values.reshape(heads, 2, head // 2, -1).swapaxes(1, 2).reshape(values.shape)
        in_layer = number.isdigit()
        made = f"blk.{number}.{names[rest]}" if in_layer else names[place]
        writer.add_tensor(f"{made}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="session")
def gguf_llama(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model `llama` as a GGUF file."""
    pytest.importorskip("gguf")
    return write_gguf(llama, tmp_path_factory.mktemp("gguf") / "llama.gguf")


@pytest.fixture(scope="session")
def gguf_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled `privsyn-tiny`, which writes English, as a GGUF file."""
    from flower_privsyn.models import resolve_model

    pytest.importorskip("gguf")
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return write_gguf(Path(resolve_model("privsyn-tiny")), file)


def make_adapter(model: Path, folder: Path, seed: int) -> Path:
    """A LoRA adapter with random weights that are large enough to change what is written."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    wrapped = get_peft_model(
        base,
        LoraConfig(
            r=4,
            lora_alpha=8,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
            task_type="CAUSAL_LM",
        ),
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    wrapped.save_pretrained(folder, save_embedding_layers=False)
    return folder


@pytest.fixture(scope="session")
def adapters(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return make_adapter(llama, root / "one", 11), make_adapter(llama, root / "two", 12)


@pytest.fixture(scope="session")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The LSTM's architecture with 12 units and random weights."""
    import torch

    from flower_privsyn.models.lstm import LSTMConfig, LSTMForCausalLM

    torch.manual_seed(5)
    tokenizer = byte_level(template=False)
    config = LSTMConfig(vocab_size=len(tokenizer), embedding_size=8, hidden_size=12)
    return save(tmp_path_factory.mktemp("lstm"), LSTMForCausalLM(config), tokenizer)


@pytest.fixture(scope="session")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder-decoder with learned positions and a token that texts begin with."""
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(6)
    tokenizer = byte_level(template=True)
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        init_std=0.3,
        encoder_layerdrop=0.5,  # which is off in training here, as dropout is
    )
    return save(tmp_path_factory.mktemp("bart"), BartForConditionalGeneration(config), tokenizer)


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder-decoder without a token that texts begin with, of any length."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(7)
    tokenizer = byte_level(template=False)
    tokenizer.bos_token = None
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
        initializer_factor=2.0,
    )
    return save(tmp_path_factory.mktemp("t5"), T5ForConditionalGeneration(config), tokenizer)
