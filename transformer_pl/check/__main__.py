"""Check a component:  python -m transformer_pl.check my_ablation.Alibi [option=value] [model.h=4]

Builds small models around it and measures the properties that every component keeps. The sweep and train commands
measure the same before they train anything.
"""

import argparse
import inspect
from typing import Any

from transformer_pl.check.run import CAUSES, exempt, frozen_weights, measured_properties
from transformer_pl.config import SLOTS, custom_components
from transformer_pl.config.components import check_components, component_names, import_component
from transformer_pl.config.levels import DEFAULT_SCALE, Level, read_pairs, resolve, scale_level
from transformer_pl.runtime.command_line import CommandParser, run_command
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.isolated import isolated

EXAMPLES = """\
examples:
  python -m transformer_pl.check ablations.rotary_attention.RotaryAttention
  python -m transformer_pl.check ablations.local_attention.LocalAttention window=4 model.h=4

exit codes: 0 no property is broken; 2 one is broken, or the input is wrong; 130, 143 stopped
"""


def main(argv: list[str]) -> int:
    """Print how many properties hold, and a line for each of the others; return 0, or 2 if one is broken."""
    options = _read_argv(argv)
    slot = options.slot or slot_of(options.component, import_component(options.component))
    inferred = "" if options.slot else " (slot inferred; --slot overrides it)"
    config = resolve([scale_level(options.scale), Level("command line", _keys(slot, options))])
    if mistakes := check_components(config):
        raise InputError(*mistakes)
    model = config.model
    vocab_size = 1000  # a sweep checks a component of `embedding` with its own
    measured = isolated(component_names(model), measured_properties, model, vocab_size)
    exempted = {
        name: f"{component.path}: {why}"
        for component in custom_components(model).values()
        for name, why in exempt(component).items()
    }
    held = sum(how is None for how in measured.values())  # nothing else is measured where logits are not finite
    where = f"model.{slot} = {options.component}, at scale {options.scale}{inferred}"
    print(f"{where}: {held} of {len(CAUSES)} properties hold")
    for name, why in exempted.items():
        print(f"exempt  {name}: {why}")
    for name, size in isolated(component_names(model), frozen_weights, model, vocab_size).items():
        print(f"frozen  {name}: {size:,} weights that require no gradient keep their first values")
    for name, how in measured.items():
        if how:
            print(f"BROKEN  {name}: {how}; usual cause: {CAUSES[name]}")
    return 2 if any(measured.values()) else 0


def _read_argv(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m transformer_pl.check",
        usage="%(prog)s COMPONENT [KEY=VALUE ...] [options]",
        description="Check causality, padding, caching and gradients of a component. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    parser.add_argument("component", metavar="COMPONENT", help="its import path, such as my_ablation.Alibi")
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="KEY=VALUE", help="its options, and keys such as model.h=4"
    )
    group = parser.add_argument_group("the model around it")
    group.add_argument("--slot", choices=SLOTS, metavar="SLOT", help=f"{', '.join(SLOTS)} (inferred from its methods)")
    sizes = "the scale whose sizes it has (%(default)s)"
    group.add_argument("--scale", metavar="S", default=DEFAULT_SCALE, help=sizes)
    return parser.parse_args(argv)


def _keys(slot: str, options: argparse.Namespace) -> dict[str, Any]:
    """The keys of the config that the command line sets."""
    keys = {f"model.{slot}": options.component}
    for key, value in read_pairs(options.settings, "command line").values.items():
        keys[key if key.startswith("model.") else f"model.{slot}.{key}"] = value
    return keys


def slot_of(path: str, component: type) -> str:
    """The slot that a component fits, by its methods and by how many arguments its `forward` takes."""
    from torch import nn  # takes seconds, which --help does not need

    from transformer_pl.model.slots import call_signatures

    if not issubclass(component, nn.Module):
        remedy = "a sweep checks an optimizer, schedule, loss or tokenizer itself"
        raise InputError(f"{path}: must be a part of the model, a torch.nn.Module, but is not; {remedy}")
    _, *arguments = inspect.signature(component.forward).parameters  # without self
    if arguments[:1] == ["Q"]:
        return "attention"
    fitting = dict[str, int]()  # the slots whose methods it has, with their number
    for slot in SLOTS:
        methods = call_signatures(f"model.{slot}")
        called = methods.pop("__call__", None)
        count = None if called is None else called.count(",") + 1
        if all(hasattr(component, method) for method in methods) and count in (None, len(arguments)):
            fitting[slot] = len(methods)
    if fitting:
        return max(fitting, key=lambda slot: fitting[slot])
    raise InputError(f"{path}: its slot is not clear from its methods; name it with --slot")


if __name__ == "__main__":
    run_command(main)
