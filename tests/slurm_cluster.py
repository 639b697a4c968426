"""A real SLURM of several nodes on this one machine: munged, slurmctld and one slurmd a node, all on loopback, all below one folder."""

import os
import secrets
import subprocess
import time
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
{nodes}
PartitionName=main Nodes=node[1-{count}] Default=YES MaxTime=1:00:00 DefaultTime=10 State=UP
"""


class SlurmCluster:
    """Up while the `with` block runs. `environment` is what SLURM's commands need to find it."""

    def __init__(self, folder: Path, nodes: int, port: int = 17817) -> None:
        self.folder, self.nodes, self.port = folder, nodes, port
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "SlurmCluster":
        self._write_files()
        try:
            munge = [f"--{name}-file={self.folder / f'munge.{name}'}" for name in ("key", "pid", "log", "seed")]
            self._start("munged", "--foreground", "--force", f"--socket={self.folder / 'munge.socket'}", *munge)
            self._wait("munge's socket", lambda: (self.folder / "munge.socket").exists())
            self._start("slurmctld", "-D", "-c")
            for node in (f"node{i + 1}" for i in range(self.nodes)):
                # A host name and a hosts file of its own make the node believe that it is a machine.
                own = f"mount --bind {self.folder}/hosts /etc/hosts && hostname {node} && exec slurmd -D -N {node}"
                self._start("unshare", "--uts", "--mount", "--propagation", "private", "sh", "-c", own)
            self._wait("idle nodes", lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(self.nodes))
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

    def run(self, *command: str, **environment: str) -> str:
        """The output of a SLURM command; its error is part of the exception."""
        result = subprocess.run(
            command, env={**self.environment, **environment}, cwd=self.folder, capture_output=True, text=True, timeout=30, check=False
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

        self._wait(f"the end of job {job_id}", ended, seconds)
        return state

    def _write_files(self) -> None:
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        hosts = [f"127.0.78.{i + 11} node{i + 1}" for i in range(self.nodes)]
        nodes = [
            f"NodeName=node{i + 1} NodeHostname=node{i + 1} NodeAddr=127.0.78.{i + 11} Port={self.port + i + 1} CPUs=4 RealMemory=4000"
            for i in range(self.nodes)
        ]
        for i in range(self.nodes):
            (self.folder / f"spool-node{i + 1}").mkdir()
            (self.folder / f"tmp-node{i + 1}").mkdir()
        host = os.uname().nodename
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", f"127.0.0.1 {host}", *hosts, ""]))
        conf = _CONF.format(host=host, port=self.port, folder=self.folder, nodes="\n".join(nodes), count=self.nodes)
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))

    def _start(self, *command: str) -> None:
        log = (self.folder / f"{command[0]}-{len(self._daemons)}.out").open("wb")
        self._daemons.append(
            subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        )
        log.close()

    def _wait(self, what: str, there, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if there():
                    return
            except RuntimeError:
                pass  # the controller does not answer yet
            time.sleep(0.2)
        logs = "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-800:]}" for file in sorted(self.folder.glob("*.log")))
        raise TimeoutError(f"no {what} after {seconds:.0f} s\n{logs}")
