"""A launcher whose trials end when and how a test says, and a view that keeps what it is told."""

import json

from helpers import a_result

from transformer_pl.experiments import launch
from transformer_pl.experiments.trial_queue import GridQueue
from transformer_pl.launchers import Ended

DONE, CRASHED = Ended(True, "with exit code 0"), Ended(False, "with exit code 1")


class Training:
    def __init__(self, planned, argv=()):
        self.planned, self.argv, self.runs, self.ended, self.asked = planned, argv, True, None, []

    def begun(self):
        return self.runs

    def poll(self):
        return self.ended

    def terminate(self):
        self.asked.append("terminate")

    def kill(self):
        self.asked.append("kill")

    def finish(self):
        folder = self.planned.trial.folder
        (folder / "result.json").write_text(json.dumps(a_result()))
        self.ended = DONE


class Launcher:
    """Takes so many trials at once. Those in `attached` it trains already; it starts none where there is an error."""

    def __init__(self, slots):
        self.slots, self.waiting, self.attached, self.error, self.shares = slots, None, {}, None, False
        self.started, self.submitted, self.stopped, self.queue_reason = [], 0, [], None

    def waits(self):
        return self.waiting

    def queued(self):
        return self.queue_reason

    def attach(self, planned):
        return self.attached.get(planned.name)

    def start(self, planned, argv, lease):
        if self.error:
            raise self.error
        assert argv[0] == planned.name and not lease.is_lost
        self.started.append(Training(planned, argv))
        return self.started[-1]

    def submit(self):
        self.submitted += 1

    def stop(self, trainings, say, ask):
        say("stopping")
        self.cancelled = ask("Cancel them?")
        self.stopped += trainings


class View:
    """Keeps what it is told."""

    def __init__(self):
        self.waits, self.shown, self.endings, self.said, self.again = None, [], [], [], []
        self.say = self.said.append

    def started(self, planned):
        self.shown.append(planned.name)

    def ended(self, planned, ending, description):
        self.endings.append((planned.name, ending, description))

    def waits_again(self, planned, why):
        self.again.append((planned.name, why))

    def ask(self, question):
        return True

    def refresh(self):
        pass


def made(planned, slots=1, **options):
    queue = GridQueue(planned, **options)
    launcher, view = Launcher(slots), View()
    return launch._Scheduler(queue, lambda one: [one.name], launcher, view), queue, launcher, view
