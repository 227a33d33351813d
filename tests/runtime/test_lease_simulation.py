"""Leases under a simulated network file system: every history must end well, whatever goes wrong in it.

pytest tests/runtime/test_lease_simulation.py --seed 17          one history, with all that happened in it
pytest -m exhaustive tests/runtime/test_lease_simulation.py      thousands
"""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from runtime.simulation import RATES, Server, SimulatedMachine

from transformer_pl.runtime.lease import BEAT_S, DONE, FREE, HELD, LEASE_S, Claims, Lost, Watch

ALWAYS, EXHAUSTIVE = range(200), range(200, 5200)
RESULT = "result.json"
TRIALS = [Path("runs/one"), Path("runs/two"), Path("runs/three")]
LATEST_S = 40_000.0  # by then every history must have ended


class Wrong(AssertionError):
    """What must never happen has happened."""


class History:
    """Processes on some hosts train a few trials, as the sweep command does; one host at least is never killed."""

    def __init__(self, seed, claims=Claims):
        self.server = Server(seed)
        self.claims, chance = claims, self.server.random
        self.results, self.released = {}, set()  # by path: what has been a result; the claims that were released
        self.server.watchers.append(self.check_result)
        self.server.watchers.append(self.check_takeover)
        troubles = chance.choice((0.0, 0.03, 0.1, 0.2))
        self.machines = []
        for host in range(chance.randint(1, 3)):
            for number in range(chance.randint(1, 2)):
                self.machines.append(SimulatedMachine(self.server, f"h{host}", number, troubles))
        for machine in self.machines:
            machine.others = {one.process: one for one in self.machines}
            machine.start(lambda machine=machine: self.work(machine))
        for machine in self.machines[1:]:
            if chance.random() < 0.4:
                self.server.at(chance.uniform(0, 3000), machine.kill)
        self.ended = set()

    def run(self):
        self.server.run(LATEST_S)
        waiting = [one.process for one in self.machines if not one.dead and one not in self.ended]
        if waiting:
            raise Wrong(f"{waiting} have not ended")
        if missing := [trial for trial in TRIALS if trial / RESULT not in self.server.files]:
            raise Wrong(f"{missing} are forgotten")

    # What a process does

    def work(self, machine):
        watch, left = Watch(machine.clock), list(TRIALS)
        machine.server.random.shuffle(left)
        while left:
            for trial in list(left):
                if self.has_ended(machine, trial, watch):
                    left.remove(trial)
            machine.sleep(2.0)
        self.ended.add(machine)

    def has_ended(self, machine, trial, watch):
        """Whether a trial has a result. Trains it, if that can be."""
        if self.has_result(machine, trial):
            return True
        claims = self.claims(trial, machine, watch)
        try:
            lease = claims.take()
        except OSError:
            return False
        if lease is None:
            return False
        if self.has_result(machine, trial):
            lease.release()
            return True
        try:
            for _ in range(machine.server.random.randint(1, 20)):
                machine.sleep(BEAT_S)
                lease.beat()
            if machine.server.random.random() < 0.1:  # it is stopped
                lease.release()
                return False
            lease.publish(RESULT, lease.claim.token)
        except (Lost, OSError):
            lease.release()
            return False
        return True

    @staticmethod
    def has_result(machine, trial):
        with suppress(FileNotFoundError):
            return bool(machine.read(trial / RESULT))
        return False

    # What must hold

    def check_result(self, machine, what, path, content):
        if path.name == RESULT and self.results.setdefault(path, content) != content:
            raise Wrong(f"{path} was {self.results[path]}, and then {content}: two processes have written a result")

    def check_takeover(self, machine, what, path, content):
        """A process that lives and gives signs of life is not taken over by another one that looks for them."""
        if path.name.startswith("claim.") and json.loads(content)["state"] == FREE:
            self.released.add(path)  # a sign of life that comes late may hide that
        if what != "link" or json.loads(content)["state"] == DONE:
            return
        number = int(path.suffix[1:])
        before = path.with_suffix(f".{number - 1}")
        if number == 1:
            return
        claim = json.loads(self.server.files[before])
        holder = machine.others[claim["process"]]
        looked = machine.looked[before]
        if claim["state"] != HELD or before in self.released or (holder.dead and holder.host == machine.host):
            return
        signs = [moment for moment in self.server.changed[before] if moment <= looked]
        if looked - signs[-1] < LEASE_S / RATES[1]:
            raise Wrong(f"{path}: {machine.process} has taken it over {looked - signs[-1]:.0f} s after a sign of life")


def replayed(seed, claims=Claims):
    history = History(seed, claims)
    try:
        history.run()
    except Wrong as wrong:
        trace = "\n".join(history.server.trace)
        raise Wrong(f"{trace}\nseed {seed}: {wrong}; replay it with --seed {seed}") from None
    return history


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("seed")
        metafunc.parametrize("seed", ALWAYS if chosen is None else [chosen])


def test_every_trial_has_one_result(seed):
    replayed(seed)


@pytest.mark.exhaustive
def test_every_trial_has_one_result_in_thousands_of_histories():
    for seed in EXHAUSTIVE:
        replayed(seed)


def test_a_history_is_replayed_exactly():
    first, second = replayed(11), replayed(11)
    assert first.server.trace == second.server.trace and len(first.server.trace) > 20


class LooksAndThenClaims(Claims):
    """Makes a claim by a look whether it is there, and a rename."""

    def _make(self, claim, unless_changed=None):
        if self.read(claim.number):
            return False
        self.retry(lambda: self.rewrite(claim))
        return True


class OnlyLooksBeforeItPublishes(Claims):
    """Does not make the claim that the work is done: the look of `Lease.check` is all."""

    def finish(self, claim):
        return True


class Hasty(Claims):
    """Takes over what has given no sign of life for less than the time between two of them."""

    def __init__(self, folder, machine, watch):
        watch._patience_s = BEAT_S / 2
        super().__init__(folder, machine, watch)


@pytest.mark.parametrize("broken", [LooksAndThenClaims, OnlyLooksBeforeItPublishes, Hasty])
def test_the_simulation_finds_what_is_broken(broken):
    with pytest.raises(Wrong, match="replay it with --seed"):
        for seed in ALWAYS:
            replayed(seed, broken)
