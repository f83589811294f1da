"""What a family or a folder cannot do, and why: one message for each head.

Verbs ask here, so that a table of family, head and message can be made from one place.
"""

from __future__ import annotations

from collections.abc import Collection

from bothways.families import FAMILIES

NAMES = {
    "masked_lm": "masked-LM head",
    "next_sentence": "next-sentence head",
    "classifier": "head for labels or scores of texts",
    "tagger": "head for tags of words",
    "span": "head for answers in texts",
    "choice": "head for choices",
    "replaced": "head for replaced tokens",
}
"""The heads in messages."""
_REMEDIES = {
    "masked_lm": "use a folder that `bothways pretrain` wrote",
    "next_sentence": "use a folder that `bothways pretrain` wrote with pairs.kind next or order",
    "replaced": "use the folder of a discriminator",
}
_FINETUNE = "fine-tune it first (`bothways finetune`), then use the model folder that it writes"


def no_such_head(family: str, head: str) -> str:
    """That a family has no such head at all."""
    others = [f.title for f in FAMILIES.values() if head in f.heads]
    return (
        f"{FAMILIES[family].title} has no {NAMES.get(head, head)}; of the families here "
        f"{', '.join(others) or 'none'} {'has' if len(others) == 1 else 'have'} one. Use such a "
        "model."
    )


def missing_head(
    family: str, head: str, present: Collection[str] = (), *, causal: bool = False
) -> str:
    """That a model has no such head, and what to do: the family's fault, or the folder's.

    Args:
        family: of the model.
        head: the one that is wanted.
        present: the heads that it has.
        causal: it reads left to right.
    """
    if head not in FAMILIES[family].heads:
        return no_such_head(family, head)
    why = f"this model has no {NAMES[head]}"
    if head == "masked_lm" and "replaced" in present:
        return (
            f"{why}: it is a discriminator, which tells replaced tokens from original ones and "
            "predicts none; use the folder of its generator."
        )
    if head == "next_sentence" and causal:
        why += ", because it reads left to right, where the first token sees neither text"
    if head == "replaced" and "masked_lm" in present:
        why += ": it is a generator, which predicts tokens"
    return f"{why}; {_REMEDIES.get(head, _FINETUNE)}."
