"""A simulated network file system and the processes of several machines, all driven by one seed.

Time is simulated. Each process is a greenlet (a library that SQLAlchemy brings), which runs the real code of
`runtime/lease.py`. Wherever that touches a file or sleeps, another process goes on. A call to the file system takes
time. It may fail before or after it has had its effect, or have it long after. What another host has changed is seen
late. A process may stand still or be killed anywhere. The clocks of hosts differ, in their rate too.
"""

import heapq
import itertools
import random
from bisect import bisect_right
from collections import defaultdict

from greenlet import getcurrent, greenlet

SEEN_S = 45.0  # seconds, after which a change is seen everywhere at the latest
RATES = (0.95, 1.05)  # of clocks


class Server:
    """What the file server holds, now and before, and the events to come."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.now = 0.0
        self.files = {}  # content by path
        self.versions = [(0.0, {})]  # all files, since when
        self.changed = defaultdict(list)  # moments, by path
        self.events, self.order = [], itertools.count()
        self.hub = getcurrent()
        self.trace = []
        self.watchers = []  # called with (machine, name, path, content) for each effect

    def at(self, moment, action):
        heapq.heappush(self.events, (moment, next(self.order), action))

    def run(self, until):
        while self.events and self.now < until:
            self.now, _, action = heapq.heappop(self.events)
            action()

    def change(self, machine, what, path, content):
        """The effect of a call."""
        if content is None:
            self.files.pop(path, None)
        else:
            self.files[path] = content
        self.versions.append((self.now, dict(self.files)))
        self.changed[path].append(self.now)
        self.trace.append(f"{self.now:8.1f} {machine.process}: {what} {path} {content or ''}".rstrip())
        for watcher in self.watchers:
            watcher(machine, what, path, content)

    def version(self, moment):
        return self.versions[bisect_right(self.versions, moment, key=lambda version: version[0]) - 1][1]


class SimulatedMachine:
    """One process on one host: the `Machine` of its leases."""

    def __init__(self, server, host, name, troubles):
        """troubles: the chance of each call to have trouble."""
        self.server, self.host, self.process, self.troubles = server, host, f"{host}/{name}", troubles
        self.dead, self.tokens = False, itertools.count(1)
        self.rate, self.offset = server.random.uniform(*RATES), server.random.uniform(-1e6, 1e6)
        self.seen = 0.0  # this host has seen every change until then
        self.looked = {}  # the moment at which each path was as this process has last read it
        self.others = {}  # machines by process, of all hosts

    def start(self, program):
        self.thread = greenlet(program)
        self.server.at(self.server.random.uniform(0, 60), self._go_on)

    def kill(self):
        self.dead = True
        self.server.trace.append(f"{self.server.now:8.1f} {self.process}: KILLED")

    def _go_on(self):
        if not self.dead:
            self.thread.switch()

    def _wait(self, seconds):
        chance = self.server.random
        if chance.random() < self.troubles / 4:
            stall = chance.choice((5.0, 60.0, 130.0, 400.0))
            self.server.trace.append(f"{self.server.now:8.1f} {self.process}: stands still for {stall:.0f} s")
            seconds += stall
        self.server.at(self.server.now + seconds, self._go_on)
        self.server.hub.switch()

    # Machine

    def clock(self):
        return self.offset + self.rate * self.server.now

    def sleep(self, seconds):
        self._wait(seconds / self.rate)

    def is_dead(self, process):
        other = self.others.get(process)
        return other is not None and other.host == self.host and other.dead

    def token(self):
        return f"{self.process}-{next(self.tokens)}"

    def names(self, folder):
        return [path.name for path in self._view() if path.parent == folder]

    def read(self, path):
        files = self._view()
        self.looked[path] = self.seen
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    def write(self, path, text):
        self._call("write", path, lambda: text)

    def link(self, path, name):
        def content():
            if path not in self.server.files:
                raise FileNotFoundError(path)
            if name in self.server.files:
                raise FileExistsError(name)
            return self.server.files[path]

        self._call("link", name, content)

    def rename(self, path, name):
        def content():
            if path not in self.server.files:
                raise FileNotFoundError(path)
            return self.server.files[path]

        self._call("rename", name, content, gone=path)

    def remove(self, path):
        self._call("remove", path, lambda: None)

    def _view(self):
        """The files as this host sees them: as they were a while ago, but never older than it has seen or changed."""
        self._wait(self.server.random.uniform(0, 0.5))
        oldest = max(self.seen, self.server.now - SEEN_S)
        self.seen = self.server.random.choice((oldest, self.server.random.uniform(oldest, self.server.now)))
        return self.server.version(self.seen)

    def _call(self, what, path, content, gone=None):
        server, chance = self.server, self.server.random

        def effect():
            try:
                new = content()
            except OSError as error:
                return error
            if gone:
                server.files.pop(gone, None)
            server.change(self, what, path, new)
            return None

        trouble = chance.random() < self.troubles and chance.choice(("before", "after", "repeated", "late"))
        answer = OSError("no answer")
        self._wait(chance.uniform(0, 1))
        if trouble == "late":
            server.at(server.now + chance.choice((1.0, 10.0, 100.0, 300.0)), effect)
        elif trouble != "before":
            answer = effect()
            effective = server.now
        self._wait(chance.uniform(0, 1))
        if trouble == "repeated":  # the answer was lost, and what the system asks again has happened already
            answer = {"link": FileExistsError(path), "rename": FileNotFoundError(path)}.get(what)
        elif trouble:
            answer = OSError("no answer")
        if answer:
            raise answer
        self.seen = max(self.seen, effective)
