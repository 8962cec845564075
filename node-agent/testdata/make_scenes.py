#!/usr/bin/env python3
"""Writes the scenes of this folder: machines as the files that the reader opens, and what NVML answers.

Usage: make_scenes.py (rewrites root/, nvml.yaml and README.md of every scene; facts.golden stays).
Layout and link targets are those of a real sysfs. Only files that are read are written.
"""

import shutil
import uuid
from pathlib import Path

HERE = Path(__file__).parent
GIB_KB = 1024 * 1024
DISPLAY, VGA = "0x030200", "0x030000"

RTX_PRO = ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887)
H100 = ("NVIDIA H100 80GB HBM3", 81559)
L40S = ("NVIDIA L40S", 46068)


class Scene:
    def __init__(self, name, says, shows):
        self.name, self.root = name, HERE / name / "root"
        self.devices, self.pairs, self.error = [], [], None
        if self.root.exists():
            shutil.rmtree(self.root)
        self.root.mkdir(parents=True)
        (HERE / name / "README.md").write_text(f"{says}\n{shows}\n")
        self.file("proc/sys/kernel/hostname", name)
        self.file("proc/self/cgroup", "0::/")

    def file(self, path, text):
        """Text gets the line end that the kernel writes; bytes are written as they are."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else (text + "\n").encode())

    def unreadable(self, path):
        """A folder where a file should be: no reader gets text from it, not even root."""
        self.remove(path)
        self.file(f"{path}/not-a-file", "")

    def remove(self, path):
        target = self.root / path
        if target.exists():
            target.unlink()

    def memory(self, nodes, numa=True):
        """nodes: (total, free, active file, inactive file, reclaimable slab) in kB, by NUMA node."""
        for number, node in enumerate(nodes if numa else []):
            lines = meminfo(*node)
            self.file(
                f"sys/devices/system/node/node{number}/meminfo",
                "\n".join(f"Node {number} {key + ':':<15}{kb:>12} kB" for key, kb in lines),
            )
        lines = meminfo(*(sum(column) for column in zip(*nodes)))
        self.file("proc/meminfo", "\n".join(f"{key + ':':<15}{kb:>12} kB" for key, kb in lines))

    def numa(self, cpulists, distances):
        for number, (cpus, row) in enumerate(zip(cpulists, distances)):
            node = f"sys/devices/system/node/node{number}"
            self.file(f"{node}/cpulist", cpus)
            self.file(f"{node}/distance", " ".join(map(str, row)))
        self.cpulists = cpulists

    def online(self, cpus):
        self.file("sys/devices/system/cpu/online", cpus)

    def gpu(self, chain, numa_node, local_cpus, model=RTX_PRO, used_mib=4, nvml=None, pci_class=DISPLAY):
        """chain: host bridge, bridges, device. numa_node None = the kernel has no such file."""
        address = chain[-1]
        device = "sys/devices/" + "/".join(chain)
        self.file(f"{device}/vendor", "0x10de")
        self.file(f"{device}/class", pci_class)
        if numa_node is not None:
            self.file(f"{device}/numa_node", str(numa_node))
        self.file(f"{device}/local_cpulist", local_cpus)
        link = self.root / "sys/bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("../../../devices/" + "/".join(chain))
        name, total_mib = model
        answers = {
            "uuid": "GPU-" + str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.name}/{address}")),
            "name": name,
            "pci": f'"0000{address.upper()}"',
            "memory": f"{{total: {total_mib << 20}, used: {used_mib << 20}}}",
            "mig": '"Off"',
            "uncorrectedErrors": 0,
        }
        answers.update(nvml or {})
        self.devices.append({key: value for key, value in answers.items() if value is not None})

    def finish(self):
        out = [f"error: {self.error}"] if self.error else ["devices:"] if self.devices else ["devices: []"]
        for device in self.devices if not self.error else []:
            keys = list(device.items())
            out.append(f"  - {keys[0][0]}: {keys[0][1]}")
            out += [f"    {key}: {value}" for key, value in keys[1:]]
        if self.pairs:
            out += ["pairs:"] + [f"  - {{gpus: [{a}, {b}], nvlink: true}}" for a, b in self.pairs]
        (HERE / self.name / "nvml.yaml").write_text("\n".join(out) + "\n")


def meminfo(total, free, active_file, inactive_file, slab):
    """The rest of a kernel's table, in proportion: a reader must pick its lines from among others."""
    used = total - free - active_file - inactive_file - slab
    shmem, anon = used // 64, used // 2
    return [
        ("MemTotal", total), ("MemFree", free), ("MemUsed", total - free), ("SwapCached", 0),
        ("Active", active_file + anon // 8), ("Inactive", inactive_file + anon - anon // 8),
        ("Active(anon)", anon // 8), ("Inactive(anon)", anon - anon // 8),
        ("Active(file)", active_file), ("Inactive(file)", inactive_file),
        ("Unevictable", 0), ("Mlocked", 0), ("Dirty", 412), ("Writeback", 0),
        ("FilePages", active_file + inactive_file + shmem), ("Mapped", active_file // 16),
        ("AnonPages", anon), ("Shmem", shmem), ("KReclaimable", slab), ("Slab", slab + used // 128),
        ("SReclaimable", slab), ("SUnreclaim", used // 128),
    ]


# 240 GB a node. Free and cached pages add up to 176 GiB on node 0 (other services live there) and 214 GiB on node 1.
STORY_TOTAL = 240 * 10**9 // 1024
STORY_MEMORY = [
    (STORY_TOTAL, 176 * GIB_KB - 61_350_148, 38_204_916, 21_833_420, 1_311_812),
    (STORY_TOTAL, 214 * GIB_KB - 18_462_704, 9_961_472, 7_602_176, 899_056),
]
STORY_CPUS = ["0-31,64-95", "32-63,96-127"]
TWO_SOCKETS = [[10, 21], [21, 10]]

# Two GPUs behind one switch, two switches a socket, each switch on a host bridge of its own.
SWITCHES = [("15", "16", "17"), ("37", "38", "39"), ("97", "98", "99"), ("b7", "b8", "b9")]


def switch_chains():
    for root, upstream, downstream in SWITCHES:
        for port in (0, 1):
            device = f"{int(downstream, 16) + 1 + port:02x}"
            yield [
                f"pci0000:{root}", f"0000:{root}:01.0", f"0000:{upstream}:00.0",
                f"0000:{downstream}:0{port}.0", f"0000:{device}:00.0",
            ]


def two_sockets(scene):
    scene.memory(STORY_MEMORY)
    scene.numa(STORY_CPUS, TWO_SOCKETS)
    scene.online("0-127")


def story():
    s = Scene("story", "The server of Fathom's story: eight RTX PRO 6000 Blackwell on PCIe, two NUMA nodes of 240 GB.",
              "GPUs 0-3 on node 0 (176 GiB available), 4-7 on node 1 (214 GiB available); no NVLink.")
    two_sockets(s)
    for index, chain in enumerate(switch_chains()):
        s.gpu(chain, index // 4, STORY_CPUS[index // 4])
    s.finish()


def one_socket():
    s = Scene("one-socket", "A workstation: one NUMA node, two L40S below one host bridge, no switch.",
              "The reader lives in a cgroup v2 slice limited to 128 GiB.")
    s.memory([(192 * GIB_KB, 150 * GIB_KB, 12 * GIB_KB, 9 * GIB_KB, GIB_KB)])
    s.numa(["0-31"], [[10]])
    s.online("0-31")
    for port, bus in ((1, "01"), (3, "02")):
        s.gpu(["pci0000:00", f"0000:00:0{port}.0", f"0000:{bus}:00.0"], 0, "0-31", L40S, pci_class=VGA)
    s.file("proc/self/cgroup", "0::/machine.slice/fathom.scope")
    s.file("sys/fs/cgroup/machine.slice/fathom.scope/memory.max", "max")
    s.file("sys/fs/cgroup/machine.slice/memory.max", str(128 << 30))
    s.finish()


def numa_minus_one():
    s = Scene("numa-minus-one", "Firmware that tells the kernel no NUMA node for PCI devices: numa_node is -1 everywhere.",
              "GPU 0 is still placed by its local CPUs; the local CPUs of 1 to 3 are the whole machine, so nobody knows.")
    two_sockets(s)
    for index, chain in enumerate(list(switch_chains())[::2]):
        s.gpu(chain, -1, STORY_CPUS[0] if index == 0 else "0-127")
    s.finish()


def mig():
    s = Scene("mig", "Four H100 with NVLink between all; GPU 3 is in MIG mode, so it has no peers.",
              "A GPU in MIG mode is no whole device: nothing may be planned on it.")
    s.memory([(512 * GIB_KB, 460 * GIB_KB, 8 * GIB_KB, 6 * GIB_KB, GIB_KB)] * 2)
    s.numa(["0-55,112-167", "56-111,168-223"], TWO_SOCKETS)
    s.online("0-223")
    cpus = ["0-55,112-167", "56-111,168-223"]
    for index, (root, bus) in enumerate((("15", "19"), ("37", "3b"), ("97", "9b"), ("b7", "bb"))):
        chain = [f"pci0000:{root}", f"0000:{root}:01.0", f"0000:{bus}:00.0"]
        s.gpu(chain, index // 2, cpus[index // 2], H100, nvml={"mig": '"On"'} if index == 3 else None)
    s.pairs = [(0, 1), (0, 2), (1, 2)]
    s.finish()


def lost_gpu():
    s = Scene("lost-gpu", "The story's server after GPU 5 fell off the bus: NVML knows its uuid and address, no more.",
              "GPU 6 counts uncorrected memory errors; the six others are healthy.")
    two_sockets(s)
    lost = {"name": None, "memory": None, "mig": None, "uncorrectedErrors": None, "otherwise": "GpuLost"}
    for index, chain in enumerate(switch_chains()):
        changes = {5: lost, 6: {"uncorrectedErrors": 2}}.get(index)
        s.gpu(chain, index // 4, STORY_CPUS[index // 4], nvml=changes)
    s.finish()


def no_gpu():
    s = Scene("no-gpu", "A server without GPUs and without the NVIDIA library: two NUMA nodes of 240 GB.",
              "Roles with `gpus: 0` are planned here.")
    two_sockets(s)
    s.error = "LibraryNotFound"
    s.finish()


def no_numa():
    s = Scene("no-numa", "A kernel built without NUMA: no /sys/devices/system/node, no numa_node of PCI devices.",
              "The planner takes such a machine as one node.")
    s.memory([(64 * GIB_KB, 48 * GIB_KB, 4 * GIB_KB, 5 * GIB_KB, GIB_KB)], numa=False)
    s.online("0-15")
    for root, bus in (("00", "01"), ("40", "41")):
        s.gpu([f"pci0000:{root}", f"0000:{root}:01.0", f"0000:{bus}:00.0"], None, "0-15", L40S)
    s.finish()


def four_numa():
    s = Scene("four-numa", "One socket split into four NUMA nodes (NPS4), two L40S each, below the same host bridge.",
              "cgroup v1 without a limit; node 3 has no CPUs left online.")
    s.memory([(96 * GIB_KB, 80 * GIB_KB, 4 * GIB_KB, 3 * GIB_KB, GIB_KB // 2)] * 4)
    cpus = ["0-15", "16-31", "32-47", ""]
    s.numa(cpus, [[10 if a == b else 12 for b in range(4)] for a in range(4)])
    s.online("0-47")
    for index in range(8):
        node, port = divmod(index, 2)
        root, bus = f"{0x20 * (node + 1):02x}", f"{0x20 * (node + 1) + port + 1:02x}"
        chain = [f"pci0000:{root}", f"0000:{root}:0{port + 1}.1", f"0000:{bus}:00.0"]
        s.gpu(chain, node, cpus[node], L40S)
    s.file("proc/self/cgroup", "9:cpuset:/\n4:memory:/kubepods/pod7/agent\n0::/")
    for path in ("kubepods/pod7/agent/", "kubepods/", ""):
        s.file(f"sys/fs/cgroup/memory/{path}memory.limit_in_bytes", "9223372036854771712")
    s.finish()


def broken():
    s = Scene("broken", "A damaged machine: every kind of source has something that cannot be read or makes no sense.",
              "Each becomes a failure with its reason; what is whole is still reported.")
    two_sockets(s)
    node = "sys/devices/system/node"
    s.file(f"{node}/node0/meminfo", "Node 0 MemTotal: lots kB\nNode 0 MemFree: 1024 kB")
    s.file(f"{node}/node1/cpulist", "32-63,127-96")
    s.remove(f"{node}/node1/distance")
    s.unreadable("sys/devices/system/cpu/online")
    table = (s.root / "proc/meminfo").read_text().splitlines()
    s.file("proc/meminfo", "\n".join(line for line in table if not line.startswith("MemFree")))
    s.file("proc/sys/kernel/hostname", b"\xff\xfe broken\n")
    s.file("proc/self/cgroup", "0::/fathom")
    s.file("sys/fs/cgroup/fathom/memory.max", "a lot")
    chains = list(switch_chains())
    s.gpu(chains[0], 0, STORY_CPUS[0], nvml={"memory": None, "otherwise": "Unknown"})
    s.unreadable("sys/devices/" + "/".join(chains[0]) + "/numa_node")
    s.gpu(chains[1], 7, STORY_CPUS[0])
    s.gpu(chains[2], 0, STORY_CPUS[0], nvml={"uuid": None, "otherwise": "ResetRequired"})
    s.gpu(chains[3], 0, STORY_CPUS[0], nvml={"pci": "somewhere"})
    s.finish()


for build in (story, one_socket, numa_minus_one, mig, lost_gpu, no_gpu, no_numa, four_numa, broken):
    build()
