"""What holds where a recipe says nothing: the rule, prompts, openings, decoding and number type, in words."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from counterpoint.composition.contexts import chat_or_raw, openings
from counterpoint.composition.loading import LoadOptions, load_tokenizer, source
from counterpoint.composition.plan import Plan
from counterpoint.composition.recipe import ANY, Recipe
from counterpoint.composition.rules import RULES
from counterpoint.errors import CounterpointError

RULES_IN_WORDS = {
    "product": "the base times every component's ratio to what it is measured against, to the power of its weight",
    "mixture": "averages the components' probabilities by their weights; the base has no share of its own",
    "raking": "the product, reweighted until each component's log-ratio has the law that it has under that component",
    "projective": "the product with weights chosen at every step, so that each component keeps its evidence",
}
NOT_ADDED_TO_DECODING = {
    "do_sample", "temperature", "top_p", "top_k", "max_length", "max_new_tokens", "use_cache", "transformers_version",
    "output_attentions", "output_hidden_states", "bos_token_id", "eos_token_id", "pad_token_id",
}  # fmt: skip


def defaults(recipe: Recipe, layout: Plan, options: LoadOptions) -> dict[str, str]:
    """Topic -> what holds. What cannot be told without files that are not on this machine says so."""
    lead = next(iter(layout.backbones))
    words = {"rule": f"{recipe.rule}: {_rule(recipe.rule)}"}
    if rule_options := recipe.all_rule_options:
        words["rule options"] = ", ".join(f"{name} {value:g}" for name, value in rule_options.items())
    if recipe.rule != "mixture":
        words["measured against"] = _references(recipe)
    words |= _prompts(recipe, layout, lead, options)
    words["plausibility"] = _plausibility(recipe)
    words["budgets"] = "off: nothing limits how far the composition goes from any voice"
    if recipe.budgets:
        words["budgets"] = ", ".join(f"at most {n:g} nats a token from {name}" for name, n in recipe.budgets.items())
    words["decoding"] = _decoding(lead, options)
    asked = "auto: each checkpoint's own type" if options.dtype == "auto" else str(options.dtype).removeprefix("torch.")
    words["number type"] = f"{asked} for the weights; the composition itself is float32"
    words["device"] = options.place() if options.device_map is None else f"device map {options.device_map}"
    return words


def _rule(name: str) -> str:
    return RULES_IN_WORDS.get(name) or (inspect.getdoc(RULES[name]) or "no description").splitlines()[0]


def _references(recipe: Recipe) -> str:
    usual = "the base, where a component does not say otherwise" if recipe.base else "uniform: there is no base"
    others = [f"{name} against {c.relative_to}" for name, c in recipe.components.items() if c.relative_to]
    return "; ".join([usual, *others])


def _prompts(recipe: Recipe, layout: Plan, lead: str, options: LoadOptions) -> dict[str, str]:
    contexts = [voice.context for voice in layout.voices]
    try:
        tokenizer = load_tokenizer(lead, options)
        format_ = chat_or_raw(tokenizer, recipe.context_format)
    except CounterpointError as error:
        wanted = recipe.context_format or "chat if the tokenizer has a chat template, else raw"
        return {"prompts": f"{wanted}; not checked: {error}"}
    has = "has a chat template" if tokenizer.chat_template else "has no chat template"
    why = "as the recipe says" if recipe.context_format else f"because the tokenizer of {lead} {has}"
    meaning = (
        "a prompt becomes a user turn, a context a system prompt"
        if format_ == "chat"
        else "contexts and prompts are joined as they are"
    )
    words = {"prompts": f"{format_}, {why}: {meaning}"}
    bare = [name for name, context in zip(layout.names, contexts, strict=True) if not context]
    if any(contexts) and bare:
        words[f"rows of {', '.join(bare)}"] = _start(tokenizer, contexts, recipe)
    elif not any(contexts):
        words["contexts"] = "none: all rows begin alike"
    return words


def _start(tokenizer: PreTrainedTokenizerBase, contexts: list[str | None], recipe: Recipe) -> str:
    try:
        default = openings(tokenizer, contexts, recipe.context_format).default
    except CounterpointError as error:
        return f"cannot be laid out: {error}"
    if not default:
        return "have no context, and begin with the prompt"
    where = (
        "the chat template's own start"
        if tokenizer.chat_template and recipe.context_format != "raw"
        else "the tokenizer's own start"
    )
    return f"have no context, and begin with {where}: {tokenizer.decode(list(default))!r}"


def _plausibility(recipe: Recipe) -> str:
    if recipe.plausibility is None:
        return "off: no token is ruled out"
    of = recipe.plausibility.of
    judge = "every voice finds it" if of == ANY else f"{of} finds it"
    return f"a token is dropped where {judge} less than {recipe.plausibility.alpha:g} times as likely as the likeliest"


def _decoding(lead: str, options: LoadOptions) -> str:
    words = "greedy, unless a temperature, top-p or top-k is given"
    try:
        own = read_json(source(lead, options, weights=False).path / "generation_config.json")
    except CounterpointError:
        return words
    kept = {k: v for k, v in own.items() if v is not None and k[0] != "_" and k not in NOT_ADDED_TO_DECODING}
    added = ", ".join(f"{key}={value}" for key, value in kept.items())
    return f"{words}; with {added} from {lead}" if added else words


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none to read."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
