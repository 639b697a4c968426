"""A real SLURM of several nodes on this one machine: munged, slurmctld and one slurmd a node, all on loopback, all below one folder."""

import os
import secrets
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_CONF = """\
ClusterName=remask
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PlugStackConfig=/dev/null
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
SlurmdTimeout=10
ReturnToService=2
MinJobAge=600
KillWait=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
{nodes}
PartitionName=main Nodes=node[1-{count}] Default=YES MaxTime=1:00:00 DefaultTime=10 PriorityTier=1 GraceTime=20 State=UP
PartitionName=urgent Nodes=node[1-{count}] PriorityTier=10 PreemptMode=OFF MaxTime=1:00:00 State=UP
PartitionName=gpu Nodes=gpu[1-{gpu_nodes}] MaxTime=7-0 State=UP
"""
_GPU_NODES, _GPUS = 8, 8


class SlurmCluster:
    """Up while the `with` block runs. `environment` is what SLURM's commands need to find it."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.nodes, self.port = folder, nodes, _free_ports(nodes + _GPU_NODES + 1)
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._slurmds: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "SlurmCluster":
        self._write_files()
        try:
            munge = [f"--{name}-file={self.folder / f'munge.{name}'}" for name in ("key", "pid", "log", "seed")]
            self._start("munged", "--foreground", "--force", f"--socket={self.folder / 'munge.socket'}", *munge)
            self.wait("munge's socket", lambda: (self.folder / "munge.socket").exists())
            self._start("slurmctld", "-D", "-c")
            for i in range(self.nodes):
                self.start_node(f"node{i + 1}")
            self.wait("idle nodes", self.all_idle)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["scancel", "--user=root"], env=self.environment, timeout=20, check=False, capture_output=True)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def start_node(self, node: str) -> None:
        # A host name and a hosts file of its own make the node believe that it is a machine.
        own = f"mount --bind {self.folder}/hosts /etc/hosts && hostname {node} && exec slurmd -D -N {node}"
        self._slurmds[node] = self._start("unshare", "--uts", "--mount", "--propagation", "private", "sh", "-c", own)

    def start_gpu_nodes(self) -> None:
        """Machines with 128 cores and 8 GPUs each, as SLURM sees them; for scripts to be validated on."""
        for i in range(_GPU_NODES):
            self.start_node(f"gpu{i + 1}")
        self.wait("idle GPU nodes", lambda: self.run("sinfo", "-h", "-p", "gpu", "-t", "idle", "-o", "%D").strip() == str(_GPU_NODES))

    def kill_node(self, node: str) -> None:
        """As if its power were cut: everything that runs on it ends at once."""
        machine = Path(f"/proc/{self._slurmds[node].pid}/ns/uts").readlink()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "ns/uts").readlink() == machine:
                    os.kill(int(process.name), signal.SIGKILL)

    def all_idle(self) -> bool:
        return self.run("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D").strip() == str(self.nodes)

    def run(self, *command: str, seconds: float = 30, **environment: str) -> str:
        """The output of a SLURM command; its error is part of the exception."""
        result = subprocess.run(
            command, env={**self.environment, **environment}, cwd=self.folder, capture_output=True, text=True, timeout=seconds, check=False
        )
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {result.returncode}: {result.stderr}")
        return result.stdout

    def wait_for_job(self, job_id: str, seconds: float) -> str:
        """The state in which the job ended. squeue is asked, because `sbatch --wait` looks only every half minute."""
        final = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")
        state = ""

        def ended() -> bool:
            nonlocal state
            state = self.run("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T").strip()
            return state in final

        self.wait(f"the end of job {job_id}", ended, seconds)
        return state

    def _write_files(self) -> None:
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        nodes = [(f"node{i + 1}", "CPUs=4 RealMemory=4000") for i in range(self.nodes)]
        nodes += [(f"gpu{i + 1}", f"CPUs=128 RealMemory=900000 Gres=gpu:{_GPUS}") for i in range(_GPU_NODES)]
        hosts, described = [], []
        for i, (node, size) in enumerate(nodes, start=1):
            (self.folder / f"spool-{node}").mkdir()
            (self.folder / f"tmp-{node}").mkdir()
            hosts.append(f"127.0.78.{10 + i} {node}")
            described.append(f"NodeName={node} NodeHostname={node} NodeAddr=127.0.78.{10 + i} Port={self.port + i} {size}")
        host = os.uname().nodename
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", f"127.0.0.1 {host}", *hosts, ""]))
        conf = _CONF.format(
            host=host, port=self.port, folder=self.folder, nodes="\n".join(described), count=self.nodes, gpu_nodes=_GPU_NODES
        )
        (self.folder / "slurm.conf").write_text(conf)
        for gpu in range(_GPUS):  # a character device is all that SLURM looks for
            os.mknod(self.folder / f"nvidia{gpu}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        gres = f"NodeName=gpu[1-{_GPU_NODES}] Name=gpu File={self.folder}/nvidia[0-{_GPUS - 1}] Flags=nvidia_gpu_env\n"
        (self.folder / "gres.conf").write_text(gres)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))

    def _start(self, *command: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{command[0]}-{len(self._daemons)}.out").open("wb") as log:
            daemon = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._daemons.append(daemon)
        return daemon

    def wait(self, what: str, there: Callable[[], bool], seconds: float = 20, every: float = 0.2) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if there():
                    return
            except RuntimeError:
                pass  # the controller does not answer yet
            time.sleep(every)
        logs = "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-800:]}" for file in sorted(self.folder.glob("*.log")))
        raise TimeoutError(f"no {what} after {seconds:.0f} s\n{logs}")


def _free_ports(count: int) -> int:
    """The first of so many TCP ports in a row that nobody listens on."""
    for first in range(17800, 19800, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise OSError("no free ports for SLURM")
