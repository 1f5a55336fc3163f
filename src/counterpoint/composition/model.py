"""The composed model: a base and its components as one Hugging Face causal language model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BatchEncoding,
    Cache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import CausalLMOutputWithPast

from counterpoint.composition.backbone import Backbone
from counterpoint.composition.cache import ComposedCache
from counterpoint.composition.combine import combine
from counterpoint.composition.configuration import ComposedConfig
from counterpoint.composition.contexts import Messages, Openings, encode_one, own_blocks_masked
from counterpoint.composition.plan import plan
from counterpoint.composition.recipe import Recipe, nearest
from counterpoint.composition.vocabulary import check_known
from counterpoint.errors import ContextError, RecipeError


@dataclass
class ComposedOutput(CausalLMOutputWithPast):
    """A causal language model's output; `logits` are log p̂, normalised, float32, (batch, time, vocab).

    Attributes:
        log_partition: log Z of the rule at each position, (batch, time).
        voice_log_probs: on request (`output_voices=True`), the log-probabilities of all voices in the order of
            `ComposedModel.voice_names`, the base first: (voice, batch, time, vocab).
        notes: what the rule and the budgets say of each position, such as raking's `residual` (batch, time); empty for
            the product.
    """

    log_partition: Tensor | None = None
    voice_log_probs: Tensor | None = None
    notes: dict[str, Tensor] | None = None


class ComposedModel(PreTrainedModel, GenerationMixin):
    """A base, its components and a rule, as one causal language model.

    A batch of B sequences runs as (k+1)·B rows of one forward for each backbone. Every tool that takes a Hugging Face
    model takes this one. Its only trainable parameters are the weights w, `self.weights`, shape (component,).

    Build one with `from_recipe`, or with `from_pretrained` from a folder that `save_pretrained` wrote.
    """

    config_class = ComposedConfig
    config: ComposedConfig
    backbones: Sequence[Backbone]
    temperatures: Tensor
    main_input_name = "input_ids"
    _supports_sdpa = True
    _is_stateful = False

    def __init__(
        self,
        config: ComposedConfig,
        recipe: Recipe,
        backbones: Sequence[Backbone],
        openings: Openings,
        tokenizer: PreTrainedTokenizerBase | None,
        generation_config: GenerationConfig,
    ) -> None:
        super().__init__(config)
        self._recipe = recipe
        self.plan = plan(recipe)
        self.openings = openings
        self.tokenizer = tokenizer
        self.generation_config = generation_config
        self.backbones = cast("Sequence[Backbone]", nn.ModuleList(backbones))
        device = backbones[0].model.device
        self.weights = nn.Parameter(torch.tensor([c.weight for c in recipe.components.values()], device=device))
        temperatures = torch.tensor([voice.temperature for voice in self.plan.voices], device=device)
        self.register_buffer("temperatures", temperatures, persistent=False)
        order = [position for positions in self.plan.backbones.values() for position in positions]
        self._order = [order.index(position) for position in range(len(order))]
        self._solo: int | None = None
        placements = [getattr(backbone.model, "hf_device_map", None) for backbone in backbones]
        if any(placements):
            self.hf_device_map = {
                f"backbones.{i}.model{'.' if name else ''}{name}": where
                for i, placement in enumerate(placements)
                for name, where in (placement or {"": str(backbones[i].model.device)}).items()
            }

    @classmethod
    def from_recipe(
        cls,
        recipe: str | Path | Mapping[str, Any] | Recipe | None = None,
        *,
        models: Mapping[str, tuple[PreTrainedModel, PreTrainedTokenizerBase | None]] | None = None,
        **fields: Any,
    ) -> ComposedModel:
        """Load and compose what a recipe names.

        Args:
            recipe: a recipe file, a folder written by `save_pretrained`, a mapping, a `Recipe`, or None to give the
                recipe's fields (`base=`, `components=`, `rule=`, ...) as keyword arguments.
            models: models already in memory, by the names that the recipe uses, as `load_backbone` returns them.
            **fields: recipe fields, and loading options: dtype, device, device_map, download, trust_remote_code,
                allow_pickle (see `LoadOptions`).

        Raises:
            CounterpointError: what is wrong, where, and how to mend it.
        """
        from counterpoint.composition.assembly import assemble

        return assemble(recipe, models or {}, fields)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> ComposedModel:
        """Load a folder that `save_pretrained` wrote. Takes `from_recipe`'s loading options; ignores others."""
        from counterpoint.composition.saving import load_saved

        return load_saved(str(pretrained_model_name_or_path), kwargs)

    def save_pretrained(  # type: ignore[override]
        self, save_directory: Any, *, include_backbones: bool = False, **kwargs: Any
    ) -> None:
        """Write recipe, adapters, tokenizer, generation settings and a model card to a folder.

        Args:
            save_directory: must not exist, be empty, or hold an earlier save of a composed model.
            include_backbones: copy the backbones' weights too; otherwise they are named, not copied.
            **kwargs: accepted for compatibility; `push_to_hub` is not supported here.

        Raises:
            CounterpointError: the folder holds something else; nothing is written then.
        """
        from counterpoint.composition.saving import save

        save(self, Path(save_directory), include_backbones=include_backbones)

    @property
    def recipe(self) -> Recipe:
        """The recipe with the weights and the rule as they are now."""
        pairs = zip(self._recipe.components.items(), self.weights.detach().cpu().numpy(), strict=True)
        return self._recipe.with_weights({name: _exact(now, component.weight) for (name, component), now in pairs})

    @property
    def voice_names(self) -> tuple[str, ...]:
        """All voices, the base first where there is one."""
        return self.plan.names

    @property
    def rule(self) -> str:
        """The name of the rule; assign another to change it, or use `set_rule` to give it options."""
        return self._recipe.rule

    @rule.setter
    def rule(self, name: str) -> None:
        self.set_rule(name)

    def set_rule(self, name: str, **options: int | float) -> None:
        """Change the rule from now on, with options of its own, as in `set_rule("raking", bins=16)`.

        Raises:
            RecipeError: no such rule or option, or the rule does not take the weights.
        """
        self._recipe = self.recipe.with_rule(name, **options)

    def set_weight(self, component: str, weight: float) -> None:
        """Change one component's weight from now on.

        Raises:
            RecipeError: no such component, or not a finite number.
        """
        self._recipe = self._recipe.with_weights({component: weight})
        with torch.no_grad():
            self.weights[list(self._recipe.components).index(component)] = weight

    def solo(self, voice: str | None) -> None:
        """Hear one voice alone, as if it were the whole model; None brings the others back.

        Raises:
            RecipeError: no such voice.
        """
        if voice is not None and voice not in self.plan.names:
            raise RecipeError(f"no voice is called {voice!r}{nearest(voice, self.plan.names, 'there are')}")
        self._solo = None if voice is None else self.plan.names.index(voice)

    def encode(self, prompt: str | Messages | Sequence[str] | Sequence[Messages]) -> BatchEncoding:
        """Prompts as `input_ids` and `attention_mask`, (batch, time), padded on the left, on the model's device.

        A text becomes one user turn where the recipe's context format is `chat`; with contexts the ids are what comes
        after each row's own system block.

        Raises:
            ContextError: an empty prompt, or one that does not fit the recipe's contexts.
            VocabularyError: a token that not all models know.
        """
        if self.tokenizer is None:
            raise ContextError("encoding needs a tokenizer, and the models have none")
        single = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], Mapping))
        prompts: Sequence[Any] = [prompt] if single or not prompt else prompt
        rows = [encode_one(self.tokenizer, one, self.openings) for one in prompts]
        check_known(itertools.chain(*rows), self.config.vocab_size, self.tokenizer)
        longest = max(map(len, rows))
        pad = self.generation_config.pad_token_id or 0
        ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows], device=self.device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=self.device)
        return BatchEncoding({"input_ids": ids, "attention_mask": mask})

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"] | None = None,
        attention_mask: Int[Tensor, "batch seen"] | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        labels: Int[Tensor, "batch time"] | None = None,
        logits_to_keep: int | Tensor = 0,
        output_voices: bool = False,
        past_key_values: Cache | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> ComposedOutput | tuple[Any, ...]:
        """Composed next-token log-probabilities.

        Args:
            input_ids: what comes after the contexts; with a cache, the new tokens only.
            attention_mask: 0 for padding; over cached tokens too. Positions follow from it, `position_ids` is not used.
            cache: a `ComposedCache` (`new_cache()`), filled in place; `past_key_values` is its older name.
            use_cache: make a cache where none is given, and return it.
            labels: adds `loss`, next-token cross-entropy; -100 is ignored.
            logits_to_keep: only the last n positions (0: all), or a tensor of positions, as in transformers.
            output_voices: also return the log-probabilities of every voice.

        Raises:
            NumericsError: a model returned NaN.
            ContextError: the ids begin with a system block of their own, or do not fit the window.
        """
        if inputs_embeds is not None or input_ids is None:
            raise ContextError(
                "a composed model takes input_ids, not inputs_embeds: its models need not share embeddings"
            )
        cache = cache if cache is not None else past_key_values
        if cache is None and (self.config.use_cache if use_cache is None else use_cache) and not self.training:
            cache = self.new_cache()
        if cache is not None and not isinstance(cache, ComposedCache):
            raise ContextError(f"a composed model keeps its own cache (new_cache()), not a {type(cache).__name__}")
        past = 0 if cache is None else cache.length
        if attention_mask is None:
            attention_mask = input_ids.new_ones(input_ids.shape[0], past + input_ids.shape[1])
        if past == 0:
            attention_mask = own_blocks_masked(self.openings, input_ids, attention_mask)
        logits = self._voice_logits(input_ids, attention_mask, cache, logits_to_keep)
        if cache is not None:
            cache.batch, cache.length = input_ids.shape[0], past + input_ids.shape[1]
        real = attention_mask[:, -input_ids.shape[1] :].bool().to(logits.device)
        real = real[:, logits_to_keep] if isinstance(logits_to_keep, Tensor) else real[:, -logits.shape[2] :]
        both = combine(
            logits, real, self._recipe, self.plan, self.weights, self.temperatures, self._solo, output_voices
        )
        loss = None
        if labels is not None:
            loss = ForCausalLMLoss(both.log_probs, labels.to(both.log_probs.device), self.config.vocab_size)
        output = ComposedOutput(
            loss=loss,
            logits=both.log_probs,
            cache=cache,
            log_partition=both.log_partition,
            voice_log_probs=both.voices,
            notes=dict(both.notes),
        )
        return output.to_tuple() if return_dict is False else output

    def new_cache(self) -> ComposedCache:
        """An empty cache for all voices."""
        return ComposedCache([b.new_cache() for b in self.backbones], [b.voices for b in self.backbones])

    def _voice_logits(
        self, input_ids: Tensor, attention_mask: Tensor, cache: ComposedCache | None, logits_to_keep: int | Tensor
    ) -> Float[Tensor, "voice batch kept vocab"]:
        """Every backbone's logits on the first one's device, trimmed to the common vocabulary, in the plan's order."""
        parts = [b(input_ids, attention_mask, cache, i, logits_to_keep) for i, b in enumerate(self.backbones)]
        logits = torch.cat([part[..., : self.config.vocab_size].to(self.weights.device) for part in parts])
        return logits if self._order == sorted(self._order) else logits[self._order]

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        if generation_config.cache_implementation not in (None, "dynamic"):
            raise ContextError(
                f"cache_implementation={generation_config.cache_implementation!r}: a composed model has a dynamic "
                "cache; leave the setting out"
            )
        if model_kwargs.get("cache") is None and generation_config.use_cache is not False:
            model_kwargs["cache"] = self.new_cache()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ComposedModel:
        """Weights and temperatures stay float32 whatever the backbones are cast to."""
        exact = [self.weights.detach().clone(), self.temperatures.clone()]
        super()._apply(fn, recurse)
        self.weights.data = exact[0].to(self.weights.device)
        self.temperatures = exact[1].to(self.temperatures.device)
        return self

    @property
    def device(self) -> torch.device:
        """Where `input_ids` belong: the device of the first backbone."""
        return self.backbones[0].model.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the first backbone's weights; the composition itself is float32."""
        return self.backbones[0].model.dtype

    def get_input_embeddings(self) -> nn.Module:
        return self.backbones[0].model.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module | None:
        return None

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to tie: every backbone ties its own."""

    def train(self, mode: bool = True) -> ComposedModel:
        """Only the weights w are trained; the backbones stay in evaluation mode, without dropout."""
        super().train(mode)
        for backbone in self.backbones:
            backbone.eval()
        return self


def _exact(now: numpy.float32, written: float) -> float:
    """A weight as it was written (0.1) rather than as float32 has it (0.10000000149), if it still is that number."""
    return written if numpy.float32(written) == now else float(str(now))


AutoConfig.register("counterpoint", ComposedConfig)
AutoModelForCausalLM.register(ComposedConfig, ComposedModel)
