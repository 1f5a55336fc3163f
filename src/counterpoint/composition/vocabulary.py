"""One vocabulary for all models of a recipe: padding rows are cut off, and every shared id must be the same token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from transformers import PreTrainedTokenizerBase

from counterpoint.errors import VocabularyError


@dataclass(frozen=True)
class Vocabulary:
    """Attributes:
    width: token ids 0 .. width-1 are composed; what lies beyond in a wider model is padding and is cut off.
    added: model name -> tokens that other models of the recipe do not know.
    """

    width: int
    added: dict[str, list[str]] = field(default_factory=dict)


def common_vocabulary(widths: Mapping[str, int], tokens: Mapping[str, Mapping[str, int]]) -> Vocabulary:
    """The part of the vocabulary that all models share.

    Args:
        widths: model name -> columns of its logits, padding included.
        tokens: model name -> token -> id; models without a tokenizer are left out and only their width counts.

    Raises:
        VocabularyError: an id stands for different tokens in two models; names the first that differ.
    """
    for first, second in combinations(tokens, 2):
        _check_same_ids(first, tokens[first], second, tokens[second])
    known_everywhere = set.intersection(*(set(vocabulary) for vocabulary in tokens.values())) if tokens else set()
    added = {
        name: sorted(set(vocabulary) - known_everywhere, key=vocabulary.__getitem__)
        for name, vocabulary in tokens.items()
        if len(vocabulary) > len(known_everywhere)
    }
    return Vocabulary(min(widths.values()), added)


def _check_same_ids(first: str, a: Mapping[str, int], second: str, b: Mapping[str, int]) -> None:
    at_id = {index: token for token, index in b.items()}
    differing = sorted(
        (index, token, at_id.get(index))
        for token, index in a.items()
        if (index in at_id and at_id[index] != token) or (token in b and b[token] != index)
    )
    if not differing:
        return
    index, token, other = differing[0]
    instead = f"{other!r}" if other is not None else f"nothing (there {token!r} has id {b[token]})"
    many = "1 token" if len(differing) == 1 else f"{len(differing)} tokens"
    raise VocabularyError(
        f"the tokenizers of {first!r} and {second!r} differ in {many}, first at id {index}: "
        f"{token!r} in {first!r}, {instead} in {second!r}; composed models must share one vocabulary"
    )


def check_known(ids: Iterable[int], width: int, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise VocabularyError at the first token id that lies outside the vocabulary which all models share."""
    for index in ids:
        if index >= width:
            raise VocabularyError(
                f"the text holds the token {tokenizer.convert_ids_to_tokens(index)!r} (id {index}), which not all "
                f"models of the recipe know: they share the ids below {width}"
            )


def end_of_sequence_ids(*configured: int | Sequence[int] | None) -> list[int]:
    """All ids that end a sequence for at least one of the models, each once, in order."""
    ids: list[int] = []
    for value in configured:
        ids += [] if value is None else [value] if isinstance(value, int) else value
    return list(dict.fromkeys(ids))
