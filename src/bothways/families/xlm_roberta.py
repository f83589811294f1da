"""XLM-R (Conneau et al. 2020): RoBERTa with another tokenizer; its files even have its prefix."""

from __future__ import annotations

from dataclasses import replace

from bothways.families.bert import classes
from bothways.families.roberta import ROBERTA

XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    title="XLM-R",
    classes=classes("XLMRoberta"),
    tokenizer="XLMRobertaTokenizer",
)
