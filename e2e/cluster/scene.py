#!/usr/bin/env python3
"""Makes a worker's machine of a scene: its files, and what a kubelet reads beside them.

Usage: scene.py SCENE OUT [--cpus 0,1,...]
OUT is a scene too; the worker's agent and driver can read it as one.
--cpus lays the scene's NUMA nodes on CPUs that exist, one each, for a kubelet that writes cpusets.
"""

import argparse
import shutil
from pathlib import Path


def expand(cpulist):
    """The CPUs of a list like "0-2,8"."""
    cpus = []
    for part in filter(None, cpulist.strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def lay_on_real_cpus(system, cpus):
    """NUMA node n gets the n-th real CPU; GPUs keep their NUMA node."""
    nodes = sorted((system / "node").glob("node[0-9]*"))
    if len(nodes) > len(cpus):
        raise SystemExit(f"scene.py: {len(nodes)} NUMA nodes, but only {len(cpus)} CPUs")
    for node, cpu in zip(nodes, cpus):
        write(node / "cpulist", cpu)
    write(system / "cpu/online", ",".join(str(cpu) for cpu in cpus[: len(nodes)]))


def add_cpus(system):
    """cAdvisor counts CPUs by their folders; one core each, one socket per NUMA node."""
    online = expand((system / "cpu/online").read_text())
    nodes = sorted((system / "node").glob("node[0-9]*"))
    homes = {cpu: number for number, node in enumerate(nodes) for cpu in expand(read(node / "cpulist"))}
    for cpu in online:
        folder = system / f"cpu/cpu{cpu}"
        write(folder / "online", 1)
        write(folder / "topology/core_id", cpu)
        write(folder / "topology/physical_package_id", homes.get(cpu, 0))
        write(folder / "topology/thread_siblings_list", cpu)
        write(folder / "topology/core_cpus_list", cpu)
        if cpu in homes:
            (nodes[homes[cpu]] / f"cpu{cpu}").symlink_to(f"../../cpu/cpu{cpu}")
    for name in ("possible", "present"):
        shutil.copyfile(system / "cpu/online", system / "cpu" / name)


def add_numa_lists(system):
    nodes = sorted((system / "node").glob("node[0-9]*"))
    for node in nodes:
        (node / "hugepages").mkdir(exist_ok=True)
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        if nodes:
            write(system / "node" / name, f"0-{len(nodes) - 1}" if len(nodes) > 1 else "0")


def add_swap(meminfo):
    """The kubelet does not start without these lines."""
    text = meminfo.read_text()
    for key in ("SwapTotal", "SwapFree"):
        if f"{key}:" not in text:
            text += f"{key + ':':<15}{0:>12} kB\n"
    meminfo.write_text(text)


def read(path):
    return path.read_text() if path.is_file() else ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("scene", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cpus", default="")
    options = parser.parse_args()
    shutil.copytree(options.scene, options.out, symlinks=True)
    root = options.out / "root"
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    system = root / "sys/devices/system"
    if options.cpus:
        lay_on_real_cpus(system, expand(options.cpus))
    add_cpus(system)
    add_swap(root / "proc/meminfo")
    if (system / "node").is_dir():
        add_numa_lists(system)


if __name__ == "__main__":
    main()
