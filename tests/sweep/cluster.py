"""A SLURM cluster of two nodes on this machine, for tests: munged, slurmctld and two slurmd, all on loopback."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from helpers import descendants, processes, wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,bf_interval=2,requeue_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=0
ReturnToService=2
SlurmdTimeout=15
SlurmctldTimeout=10
InactiveLimit=0
KillWait=20
MinJobAge=3600
MpiDefault=none
SwitchType=switch/none
PriorityType=priority/basic
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=4000
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=high Nodes=n1,n2 MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Why there can be no cluster here; None where there can."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        return f"no {', '.join(missing)}: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "SLURM's daemons must be started by root"


class Cluster:
    """Use it in `with`; then the programs of SLURM in this process and its children speak to it."""

    def __enter__(self) -> "Cluster":
        self.folder = Path(tempfile.mkdtemp(prefix="slurm"))
        self.folder.chmod(0o755)
        for name in ("state", "spool.n1", "spool.n2", "munge"):
            (self.folder / name).mkdir()
        self.saved = {name: os.environ.get(name) for name in ("SLURM_CONF", "MASTER_ADDR")}
        os.environ |= {"SLURM_CONF": str(self.folder / "slurm.conf"), "MASTER_ADDR": "127.0.0.1"}
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        with ExitStack() as stack:
            servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            ports = [server.getsockname()[1] for server in servers]
        host = socket.gethostname().partition(".")[0]
        (self.folder / "slurm.conf").write_text(CONFIG.format(folder=self.folder, host=host, ports=ports))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\n")
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        for path in (munge / "key", munge):
            shutil.chown(path, "munge", "munge")
        munge.chmod(0o711)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        as_munge = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"]
        self.run(*as_munge, "munged", "--force", *(f"--{option}={munge / name}" for option, name in files.items()))
        self.run("slurmctld", "-c")
        self.run("slurmd", "-N", "n1")
        self.run("slurmd", "-N", "n2")
        wait_for(lambda: self.run("sinfo", "-h", "-p", "low", "-o", "%T %D").split() == ["idle", "2"], 60)

    def __exit__(self, *error: object) -> None:
        with suppress(Exception):
            self.run("scancel", "--state=PENDING", "--user=root")
            self.run("scancel", "--user=root")
            wait_for(lambda: not self.run("squeue", "-h"), 30)
        for name in ("slurmd.n1.pid", "slurmd.n2.pid", "slurmctld.pid", "munge/pid"):
            self.end(name)
        for name, value in self.saved.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill_node(self, node: str) -> None:
        """Kill the daemon of a node, and the jobs on it, and start the daemon again when SLURM has noticed."""
        self.end(f"slurmd.{node}.pid", signal.SIGKILL)
        log = str(self.folder / f"slurmd.{node}.log")  # which the daemon has open in each of its jobs
        for step in [
            one.pid for one in processes() if one.command.startswith("slurmstepd: [") and log in opened(one.pid)
        ]:
            for pid in (step, *descendants(step)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_for(lambda: "State=DOWN" in self.run("scontrol", "show", "node", node), 90)
        self.run("slurmd", "-N", node)

    def end(self, name: str, signum: int = signal.SIGTERM) -> None:
        """End the daemon with this pid file."""
        with suppress(OSError, ValueError):
            pid = int((self.folder / name).read_text())
            os.kill(pid, signum)
            deadline = time.monotonic() + 20
            while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                time.sleep(0.1)

    def run(self, *words: str) -> str:
        """What a program of SLURM's prints."""
        completed = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert completed.returncode == 0, f"{words}: {completed.stderr}"
        return completed.stdout


def opened(pid: int) -> set[str]:
    """The files that a process has open."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it is closed meanwhile
            found.add(os.readlink(link))
    return found
