"""Check a component:  python -m transformer_pl.check my_ablation.Alibi [option=value] [model.h=4]

Builds small models around a component of the model, and measures the properties that every component must keep.
Whatever else a row may bring (an optimizer, a schedule, a loss, a tokenizer, a task, a callback, a logger) is
rehearsed: a small training shows whether it keeps the laws of its kind, such as that a loss leaves out padding. The
sweep and train commands do the same before they train anything.
"""

import argparse
import inspect
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from transformer_pl.config import WITH_OPTIONS
from transformer_pl.config.components import BASES, import_component
from transformer_pl.config.levels import DEFAULT_SCALE, Level, read_pairs, resolve, scale_level
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.laws.checks import Checks, checks_of
from transformer_pl.runtime.command_line import CommandParser, run_command
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.runtime.terminal import plain
from transformer_pl.task import Task
from transformer_pl.trials.trial_config import mistakes_of_parts

EXAMPLES = """\
examples:
  python -m transformer_pl.check ablations.rotary_attention.RotaryAttention
  python -m transformer_pl.check ablations.local_attention.LocalAttention window=4 model.h=4
  python -m transformer_pl.check ablations.focal_loss.FocalLoss gamma=1
  python -m transformer_pl.check my_callback.StopAt step=5 --slot trainer.callbacks

exit codes: 0 nothing is broken; 2 a law is broken, or the input is wrong; 130, 143 stopped
"""
# The keys of all slots, by what --slot calls them: those of the model have short names.
BY_SLOT = {key.removeprefix("model."): key for key in (*WITH_OPTIONS, "data.task")}


def main(argv: list[str]) -> int:
    """Print what each law has seen of a component; return 0, or 2 if a law is broken."""
    options = _read_argv(argv)
    print(plain(f"{options.component}: importing torch"), file=sys.stderr, flush=True)
    slot = options.slot or slot_of(options.component, import_component(options.component))
    config = resolve([scale_level(options.scale), Level("command line", _keys(slot, options))])
    if mistakes := mistakes_of_parts(config):
        raise InputError(*mistakes)
    inferred = "" if options.slot else " (slot inferred; --slot overrides it)"
    where = f"{slot} = {options.component}, at scale {options.scale}{inferred}"
    with tempfile.TemporaryDirectory() as runs:  # earlier results do not count: the part is tried now
        (checks,) = checks_of([config], Path(runs), students=())
    unsaid = [] if any(found.is_broken for found in checks.found) else [f"BROKEN    {line}" for line in checks.mistakes]
    nothing = "nothing to check, as this is in transformer_pl or the default"
    told = _how_many_hold(checks) if checks.found else "it fails" if unsaid else nothing
    print(plain("\n".join([f"{where}: {told}", *map(str, checks.found), *unsaid])))
    return 2 if checks.mistakes else 0


def _how_many_hold(checks: Checks) -> str:
    """How many laws hold, and where nothing is broken which were not tested."""
    held = sum(found.state == "holds" for found in checks.found)
    untested = [] if checks.mistakes else [found.law for found in checks.found if found.state == "untested"]
    return f"{held} of {len(checks.found)} laws hold" + (f"; not tested: {', '.join(untested)}" if untested else "")


def _read_argv(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m transformer_pl.check",
        usage="%(prog)s COMPONENT [KEY=VALUE ...] [options]",
        description="Check causality, padding, caching and gradients of a component of the model; rehearse whatever "
        "else a row may bring, such as a loss, in a small training. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    parser.add_argument("component", metavar="COMPONENT", help="its import path, such as my_ablation.Alibi")
    settings = "its options, and keys such as model.h=4"
    parser.add_argument("settings", nargs="*", default=[], metavar="KEY=VALUE", help=settings)
    group = parser.add_argument_group("what is around it")
    slots = f"{', '.join(BY_SLOT)} (inferred from its class and its methods)"
    group.add_argument("--slot", type=_slot, metavar="SLOT", help=slots)
    sizes = "the scale whose sizes it has (%(default)s)"
    group.add_argument("--scale", metavar="S", default=DEFAULT_SCALE, help=sizes)
    return parser.parse_args(argv)


def _slot(word: str) -> str:
    """Read a slot by its key, or one of the model without its section."""
    if word not in (*BY_SLOT, *BY_SLOT.values()):
        raise argparse.ArgumentTypeError(f"{shown(repr(word))}: no such slot{suggestion(word, BY_SLOT)}")
    return BY_SLOT.get(word, word)


def _keys(slot: str, options: argparse.Namespace) -> dict[str, Any]:
    """The keys of the config that the command line sets."""
    keys = {slot: options.component}
    for key, value in read_pairs(options.settings, "command line").values.items():
        keys[key if "." in key else f"{slot}.{key}"] = value
    return keys


def slot_of(path: str, component: Any) -> str:
    """The key that a class fits: by what it is derived from, else by its methods and the arguments of its call."""
    import torch  # takes seconds, which --help does not need

    from transformer_pl.data.batches import TrainStream
    from transformer_pl.model import slots
    from transformer_pl.train.intervention import Intervention

    bases: dict[str, Any] = {"optim.optimizer": torch.optim.Optimizer, "data.tokenizer": Tokenizer, "data.task": Task}
    bases |= {"data.batches": TrainStream, "decode.intervention": Intervention}
    bases |= {"optim.loss": slots.LossOfStates | slots.LossOfBatch}
    derived = [key for key, base in bases.items() if issubclass(component, base)]
    derived += [key for key, name in BASES.items() if name in [parent.__name__ for parent in component.__mro__]]
    is_module = issubclass(component, torch.nn.Module)
    call = component.forward if is_module else component.__call__  # which is no function where the class has none
    arguments = list(inspect.signature(call).parameters)[1:] if inspect.isfunction(call) else []  # without self
    fitting = {slot: _fit(component, arguments, slots.call_signatures(slot)) for slot in slots.SLOTS}
    nearest = max((slot for slot in fitting if is_module or not slot.startswith("model.")), key=fitting.__getitem__)
    if derived or any(fitting[nearest]):
        return [*derived, nearest][0]
    larger = "a class for model.architecture, derived from transformer_pl.model.Transformer, may hold what is larger"
    raise InputError(f"{path}: its slot is not clear from its methods; name it with --slot, or write {larger}")


def _fit(component: Any, arguments: list[str], methods: dict[str, str]) -> tuple[int, bool]:
    """How well a class fits a slot: the number of names that agree, and whether its call has as many arguments."""
    called = re.findall(r"(?<=[( ])\w+", methods.pop("__call__", ""))
    if not all(hasattr(component, method) for method in methods):
        return 0, False
    return len(methods) + len({*called} & {*arguments}), bool(called) and len(called) == len(arguments)


if __name__ == "__main__":
    run_command(main)
