"""Runs our engine and transformers alternately on the same machine, and prints a table with the ratios.

Usage: compare.py --root REPOSITORY [--quick] [--only needle|large]
Each row alternates the two engines, so that noise of a shared machine meets both; a ratio is the median of the pairs.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--root", required=True, type=pathlib.Path)
parser.add_argument("--quick", action="store_true", help="one pair instead of three")
parser.add_argument("--only", choices=("needle", "large"))
args = parser.parse_args()

HERE = pathlib.Path(__file__).parent
NEEDLE = args.root / "engine/testdata/needle"
PAIRS = 1 if args.quick else 3
SHAPE = ["--threads", "2", "--lengths", "1024", "--chunk", "512", "--batches", "1,4,16", "--context", "1024",
         "--steps", "16"]
# glibc otherwise gives every large tensor back to the kernel and faults it in again.
PEER_ENV = dict(os.environ, HF_HUB_OFFLINE="1", MALLOC_MMAP_THRESHOLD_="8589934592",
                MALLOC_TRIM_THRESHOLD_="17179869184", MALLOC_TOP_PAD_="1073741824")


def records(command, env=None):
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, cwd=args.root)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def ours(model, storage):
    source = ["needle", "--model-dir", str(NEEDLE)] if model == "needle" else ["large"]
    return records(["cargo", "bench", "--profile", "release", "--locked", "--quiet", "-p", "engine-model",
                    "--bench", "engine", "--", *source, "--dtype", storage, "--precision", "exact",
                    "--index-keys", "f32", *SHAPE])


def peer(model, dtype):
    source = ["needle", "--model-dir", str(NEEDLE)] if model == "needle" else ["large"]
    return records([sys.executable, str(HERE / "transformers_peer.py"), *source, "--dtype", dtype, *SHAPE], PEER_ENV)


def rate(found, test, batch):
    found = next((r["tok_s"] for r in found if r["test"] == test and r.get("batch", 1) == batch), None)
    return found["median"] if isinstance(found, dict) else found


ROWS = [("prefill", 1), ("decode", 1), ("decode", 4), ("decode", 16)]
# model, our weights, the peer's dtype, goals in the order of ROWS (None = none set). Arithmetic is f32 on our side always;
# `stored` and `packed` keep FP8 and FP4 weights as published.
COMPARISONS = [
    ("needle", "stored", "f32", (2.0, 20.0, 10.0, 5.0)),
    ("large", "f32", "f32", (1.0, 2.5, None, None)),
    ("large", "packed", "bf16", (None, 2.0, None, None)),
]


def main():
    print(f"{'model':8} {'ours / peer':18} {'test':10} {'batch':>5} {'ours tok/s':>11} {'peer tok/s':>11} {'ratio':>7} {'goal':>6}")
    for model, storage, dtype, goals in COMPARISONS:
        if args.only not in (None, model):
            continue
        pairs = [(ours(model, storage), peer(model, dtype)) for _ in range(PAIRS)]
        for (test, batch), goal in zip(ROWS, goals):
            found = [(rate(a, test, batch), rate(b, test, batch)) for a, b in pairs]
            if any(a is None or b is None for a, b in found):
                print(f"{model:8} {storage + ' / ' + dtype:18} {test:10} {batch:5} not measured")
                continue
            ratio = statistics.median(a / b for a, b in found)
            print(f"{model:8} {storage + ' / ' + dtype:18} {test:10} {batch:5} "
                  f"{statistics.median(a for a, _ in found):11,.0f} {statistics.median(b for _, b in found):11,.1f} "
                  f"{ratio:6.1f}x {f'{goal:.1f}x' if goal else '-':>6}", flush=True)


main()
