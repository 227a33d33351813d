"""Ask a trained language model by lm-evaluation-harness.

ID is a finished trial, as for translate. The other arguments are those of `lm-eval run`. This needs the package lm-eval
(Gao et al. 2021, https://github.com/EleutherAI/lm-evaluation-harness): pip install -c constraints.txt -e '.[eval]'
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_pl.api import TrainedTrial, load_trial
from transformer_pl.config import BOS, EOS, PAD
from transformer_pl.data.batches import eval_batches
from transformer_pl.runtime.command_line import DEFAULT_RUNS, CommandParser, run_command
from transformer_pl.runtime.errors import InputError

try:
    from lm_eval.api.model import TemplateLM
except ModuleNotFoundError:  # which `main` says
    TemplateLM = object

OWN = ("trial=", "runs=")  # what stands before the arguments of lm-eval


class TrialLM(TemplateLM):
    """A finished trial of a language model. Every text begins with BOS; its end, EOS, is not scored.

    A context that is longer than the pieces of the training (`data.max_length`) loses tokens behind BOS.
    """

    def __init__(self, trial: TrainedTrial):
        super().__init__()
        if trial.task.has_source:
            rule = "must be of a language model, but its task has a source"
            raise InputError(f"trial {trial.folder.name}: {rule}; choose another trial")
        self.trial, self.model, self.longest = trial, trial.model.eval(), trial.config.data.longest

    @property
    def eot_token_id(self) -> int:
        return EOS

    @property
    def prefix_token_id(self) -> int:
        return BOS

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        ids = self.trial.tokenizer.encode([string], "target")[0].tolist()
        return ids if add_special_tokens is False else [BOS, *ids]

    def _loglikelihood_tokens(self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any) -> list[Any]:
        """For each (texts, context, continuation): the log-probability of the continuation's tokens, and whether each
        of them is the most probable one."""
        import torch  # takes a second, which --help does not need
        from torch.nn.utils.rnn import pad_sequence

        results: list[Any] = [None for _ in requests]
        inputs = [self._input([*context, *continuation], len(continuation)) for _, context, continuation in requests]
        lengths, device = np.array([len(ids) for ids in inputs]), next(self.model.parameters()).device
        for indexes in eval_batches(lengths, lengths, self.trial.config.trainer.eval_tokens):
            ids = pad_sequence([torch.tensor(inputs[i]) for i in indexes], batch_first=True, padding_value=PAD)
            with torch.no_grad():
                source = torch.full((len(ids), 1), EOS, device=device)
                logs = self.model(source, ids.to(device)).log_softmax(-1).cpu()  # (B, L, V)
            for row, i in zip(logs, indexes, strict=True):
                texts, _, continuation = requests[i]
                target = torch.tensor(continuation, dtype=torch.long)
                of_target = row[lengths[i] - len(target) : lengths[i]]  # (continuation, V)
                sums = of_target.gather(1, target[:, None]).double().sum().item()
                results[i] = sums, bool((of_target.argmax(-1) == target).all())
                self.cache_hook.add_partial("loglikelihood", texts, results[i])
        return results

    def _input(self, ids: list[int], predicted: int) -> list[int]:
        """What the model reads to predict the last `predicted` of these tokens."""
        read, most = ids[:-1] or [BOS], max(self.longest, predicted)
        return read if len(read) <= most else [read[0], *read[len(read) - most + 1 :]]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text, in windows of the longest piece, each of which begins with the last token
        of the one before."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        totals = []
        for (text,) in (request.args for request in requests):
            ids = self.tok_encode(text, add_special_tokens=False)
            windows = map(make_disjoint_window, get_rolling_token_windows(ids, BOS, self.longest, 1))
            scores = self._loglikelihood_tokens([(("", text), *window) for window in windows])
            totals.append(sum(score for score, _ in scores))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), totals[-1])
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """How each text goes on, up to the first of the texts that end it."""
        from transformer_pl.train.evaluate import continuations

        outputs = []
        for context, given in (request.args for request in requests):
            most = given.get("max_gen_toks") or self.trial.config.decode.extra
            temperature = given.get("temperature", 0.0) if given.get("do_sample") else 0.0
            (whole,) = continuations(self.model, self.trial.tokenizer, [context], most, temperature)
            until, output = given.get("until") or [], whole[len(context) :]
            for end in [until] if isinstance(until, str) else until:
                output = output.partition(end)[0] if end else output
            outputs.append(output)
            self.cache_hook.add_partial("generate_until", (context, given), output)
        return outputs


def main(argv: list[str]) -> int:
    if argv[:1] in ([], ["-h"], ["--help"], ["-V"], ["--version"]):
        prog = "python -m transformer_pl.lm_eval"
        usage = f"{prog} trial=ID [runs=DIR] --tasks TASK --log_samples --output_path FOLDER"
        CommandParser(prog=prog, usage=usage, description=__doc__).parse_args(argv or ["--help"])
    own = dict(word.split("=", 1) for word in argv if word.startswith(OWN))
    if "trial" not in own:
        raise InputError("trial: must be given, such as trial=language-model/base/s1, before the arguments of lm-eval")
    if TemplateLM is object:
        raise InputError("lm-eval: is not installed; run: pip install -c constraints.txt -e '.[eval]'")
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import register_model

    loaded = TrialLM(load_trial(own["trial"], own.get("runs", DEFAULT_RUNS)))

    @register_model("transformer_pl")
    class Loaded(TrialLM):
        @classmethod
        def create_from_arg_obj(cls, *_: Any) -> TrialLM:
            return loaded

    rest = [word for word in argv if not word.startswith(OWN)]
    named = ["--model", "transformer_pl", "--model_args", f"model={loaded.trial.folder.name}"]  # of its outputs
    sys.argv = ["lm-eval", "run", *named, *rest]
    cli_evaluate()
    return 0


if __name__ == "__main__":
    run_command(main)
