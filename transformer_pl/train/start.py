"""Where a training begins: the weights of another trial (`model.start`), and which are trained (`optim.freeze`)."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from torch import Tensor, nn

from transformer_pl.config import Config, sizes
from transformer_pl.config.components import build
from transformer_pl.runtime.errors import InputError, suggestion
from transformer_pl.trials.counted_flops import on_meta_tensors
from transformer_pl.trials.identity import config_difference
from transformer_pl.trials.runs_folder import trained_config
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_folder import STATE

# What a last state depends on, beside the options of the optimizer: it counts parts of batches
OF_STATE = ("optim.optimizer", "optim.beta1", "optim.beta2", "optim.eps", "optim.freeze", "trainer.accumulate")


def load_start(model: nn.Module, trial: Trial, vocabulary: str) -> None:
    """Give a model the weights of the start of its trial by name. What the start has not stays as it is.

    vocabulary: the digest of the tokens of this training. Raises an InputError for a start with other tokens, and as
    `compare` and `check_state` do.
    """
    config = config_of_start(trial)
    result = trial.start and trial.start.result()
    assert trial.start and result
    if result.vocabulary != vocabulary:
        rule = f"must be a trial with the tokens of this text, but {trial.start} has others"
        raise InputError(f"model.start = {trial.start.id}: {rule}; train one of the two with data.vocabulary_from")
    check_state(trial, config)
    theirs, ours = trial.start.weights(), model.state_dict()
    _compared(trial, ours, theirs)
    model.load_state_dict(ours | {name: value for name, value in theirs.items() if name in ours})


def config_of_start(trial: Trial) -> Config:
    """The config of the start of a trial. Raises an InputError where that has not finished and none trains it first."""
    assert trial.start
    if trial.trunk and (trial.trunk.needs_training() or not trial.start.result()):
        return trial.trunk.config
    if result := trial.start.result():
        return trained_config(trial.start, result)
    rule = f"must be a finished trial, but {trial.start.name} is {trial.start.state()}; train it first, or name its row"
    raise InputError(f"model.start = {trial.start.id}: {rule}")


def check_state(trial: Trial, start: Config) -> None:
    """Raise an InputError where a trial cannot go on from the last state of its start, which has this config."""
    if not trial.continued:
        return
    is_trained_first = trial.trunk is not None and trial.trunk.needs_training()
    steps = start.steps if is_trained_first else trial.begins_after()
    if steps >= trial.config.steps:
        rule = (
            f"must be more than the {steps:,} of its start, from whose beginning they count; nothing would be trained"
        )
        raise InputError(f"optim.max_steps = {trial.config.steps:,}: {rule}")
    remedy = "or set model.start_with=weights"
    changes = config_difference(trial.config, start)
    if changed := [key for key in changes if key in OF_STATE or key.startswith("optim.optimizer.")]:
        rule = f"must be as in its start, whose state is of it; leave it out, {remedy}"
        raise InputError(*(f"{key} = {changes[key][0]}: {rule}" for key in changed))
    if not is_trained_first and not (trial.continued.path / STATE).exists():
        remedy = f"train it again, with --rerun and trainer.keep_state=on, {remedy}"
        raise InputError(f"model.start_with = all: {trial.continued.name} has not kept its last state; {remedy}")


def compare(trial: Trial, start: Config) -> tuple[list[str], list[str]]:
    """The names of the weights that the start of a trial, which has this config, has not, and of those that it alone
    has. Both models are built without values.

    Raises an InputError for weights of other shapes, where none is shared, and for other weights than those of the
    start where the trial goes on from its last state.
    """
    return _compared(trial, _model(trial.config).state_dict(), _model(start).state_dict())


def _compared(trial: Trial, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[list[str], list[str]]:
    """What `compare` returns, by the weights of both."""
    place = f"model.start = {trial.config.model.start}"
    if wrong := [name for name in ours if name in theirs and ours[name].shape != theirs[name].shape]:
        shown = (f"{name} is {tuple(ours[name].shape)} and {tuple(theirs[name].shape)} there" for name in wrong[:3])
        remedy = "choose a start with these sizes, or a layer with names of its own"
        raise InputError(f"{place}: must have weights of the same shapes, but {', '.join(shown)}; {remedy}")
    if not ours.keys() & theirs.keys():
        raise InputError(f"{place}: must have a weight in common with this model, but has none; choose another start")
    if trial.continued and (others := sorted(ours.keys() ^ theirs.keys())):
        rule = f"must be of a model with the same weights, but {others[0]} is in one alone"
        raise InputError(f"model.start_with = all: {rule}; set model.start_with=weights")
    return [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]


def freeze(model: nn.Module, patterns: str | None) -> None:
    """Do not train the weights whose names match one of `optim.freeze`'s patterns, such as `encoder.*`."""
    for name, weight in model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in (patterns or "").split(",")):
            weight.requires_grad_(False)


def check_freeze(config: Config) -> None:
    """Raise an InputError for a pattern of `optim.freeze` that no weight matches, and where no weight is left."""
    if config.optim.freeze is None:
        return
    names, patterns = [name for name, _ in _model(config).named_parameters()], config.optim.freeze.split(",")
    place = f"optim.freeze = {config.optim.freeze}"
    if unmatched := [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]:
        known = dict.fromkeys(name.partition(".")[0] for name in names)
        nearest = ((one, suggestion(one.partition(".")[0], known)) for one in unmatched)
        raise InputError(*(f"{place}: {one} matches no weight{hint}" for one, hint in nearest))
    if all(any(fnmatchcase(name, pattern) for pattern in patterns) for name in names):
        raise InputError(f"{place}: must leave weights that are trained, but matches all; leave some out")


def _model(config: Config) -> nn.Module:
    """The model of a config, on the meta device where its components can be built there."""
    shape = sizes(config.model, config.data.vocab_size)
    return on_meta_tensors(lambda _: build(shape.architecture, shape), "cpu")
