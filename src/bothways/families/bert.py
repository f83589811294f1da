"""BERT (Devlin et al. 2019)."""

from __future__ import annotations

from bothways.families.family import REQUIRED, Family, HeadForm, Names

LAYER = "encoder.layer.{}"
ENCODER: dict[str, Names] = {
    "embeddings.tokens.weight": "embeddings.word_embeddings.weight",
    "embeddings.positions.weight": "embeddings.position_embeddings.weight",
    "embeddings.segments.weight": "embeddings.token_type_embeddings.weight",
    "embeddings.norm": "embeddings.LayerNorm",
    "layers.{}.attention.qkv": tuple(
        f"{LAYER}.attention.self.{part}" for part in ("query", "key", "value")
    ),
    "layers.{}.attention.output": f"{LAYER}.attention.output.dense",
    "layers.{}.attention_norm": f"{LAYER}.attention.output.LayerNorm",
    "layers.{}.expand": f"{LAYER}.intermediate.dense",
    "layers.{}.contract": f"{LAYER}.output.dense",
    "layers.{}.norm": f"{LAYER}.output.LayerNorm",
    "pooler": "pooler.dense",
}
KEYS = {
    "vocab_size": ("vocab_size", REQUIRED),
    "num_hidden_layers": ("layers", REQUIRED),
    "hidden_size": ("hidden", REQUIRED),
    "num_attention_heads": ("heads", REQUIRED),
    "intermediate_size": ("intermediate", REQUIRED),
    "max_position_embeddings": ("positions", 512),
    "type_vocab_size": ("segments", 2),
    "hidden_act": ("activation", "gelu"),
    "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "layer_norm_eps": ("norm_eps", 1e-12),
    "initializer_range": ("init_std", 0.02),
    "position_embedding_type": ("", "absolute"),
}
DROPOUT_KEY = {"classifier_dropout": ("head_dropout", None)}
CLASSIFIER = {"output": "classifier"}
QA = {"output": "qa_outputs"}
TAGGER = HeadForm(CLASSIFIER, dropout="head")
SPAN = HeadForm(QA)
POOLED = HeadForm(CLASSIFIER, pooled=True, dropout="head")


def classes(stem: str, **pretraining: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """transformers' classes of a family: those of tasks, then others, then the encoder alone."""
    return {
        f"{stem}ForTokenClassification": ("tagger",),
        f"{stem}ForQuestionAnswering": ("span",),
        f"{stem}ForMultipleChoice": ("choice",),
        f"{stem}ForSequenceClassification": ("classifier",),
        **{stem + name: heads for name, heads in pretraining.items()},
        f"{stem}ForMaskedLM": ("masked_lm",),
        f"{stem}Model": (),
    }


BERT = Family(
    model_type="bert",
    title="BERT",
    prefix="bert",
    keys={**KEYS, "is_decoder": ("left_to_right", False), **DROPOUT_KEY},
    encoder=ENCODER,
    heads={
        "masked_lm": HeadForm(
            {
                "dense": "cls.predictions.transform.dense",
                "norm": "cls.predictions.transform.LayerNorm",
                "bias": "cls.predictions.bias",
            },
            dense=True,
            norm=True,
        ),
        "next_sentence": HeadForm({"output": "cls.seq_relationship"}, pooled=True),
        "classifier": POOLED,
        "tagger": TAGGER,
        "span": SPAN,
        "choice": POOLED,
    },
    classes=classes(
        "Bert",
        ForPreTraining=("masked_lm", "next_sentence"),
        ForNextSentencePrediction=("next_sentence",),
    ),
    causal="BertLMHeadModel",
    tied="cls.predictions.decoder.weight",
    twin_bias="cls.predictions.decoder.bias",
    # Folders of masked LMs have one too: what was trained with pairs goes on from it.
    keeps_pooler=True,
    harmless=frozenset(
        """
        directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
        pooler_size_per_head pooler_type layer_norm_type embedding_size output_intermediate
        """.split()
    ),
    tokenizer="BertTokenizer",
    original={
        **{
            f"bert.embeddings.{table}_embeddings.weight": f"bert/embeddings/{table}_embeddings"
            for table in ("word", "position", "token_type")
        },
        "cls.predictions.bias": "cls/predictions/output_bias",
        "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
        "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
        # Of run_classifier.py and of run_squad.py.
        "classifier.weight": "output_weights",
        "classifier.bias": "output_bias",
        "qa_outputs.weight": "cls/squad/output_weights",
        "qa_outputs.bias": "cls/squad/output_bias",
    },
)
