"""val/bleu_sample: the score of a few validation sentences during training, cheap enough for a pruner."""

from typing import cast

import lightning as L

from transformer_pl.config import Config, Decode
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.evaluation.evaluate import best_translations
from transformer_pl.runtime.signals import component_code
from transformer_pl.task import checked_scores, task_of
from transformer_pl.training.module import TransformerModule
from transformer_pl.trials.divergence import diverged_if_not_finite


class BleuSample(L.Callback):
    """Translates `trainer.bleu_sample` evenly spaced sentences of the validation set, with a beam of 1.

    Every rank translates all of them, since each has the whole model. The module has checked before that the model has
    not diverged.
    """

    def __init__(self, config: Config, prepared: Prepared):
        self.config, self.tokenizer = config, prepared.tokenizer
        source, (_, references) = prepared.split("val").source, prepared.text("val")
        chosen = evenly_spaced(len(source), config.trainer.bleu_sample)
        self.source = source.take(chosen)
        self.references = [references[i] for i in chosen]

    @component_code()
    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        module = cast(TransformerModule, module)
        quick = Decode(beam=1)  # no key of decoding counts: trials that differ in these share their training
        with diverged_if_not_finite(trainer.global_step):
            tokens = self.config.trainer.eval_tokens
            hypotheses = best_translations(module.model, self.source, self.tokenizer, quick, tokens)
        task = task_of(self.config.data)
        score = checked_scores(hypotheses, self.references, self.config).metrics[task.measure.name]
        module.log_now({task.sample_metric: score})
