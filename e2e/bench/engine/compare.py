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
# glibc otherwise gives every large tensor back to the kernel and faults it in again.
PEER_ENV = dict(os.environ, HF_HUB_OFFLINE="1", MALLOC_MMAP_THRESHOLD_="8589934592",
                MALLOC_TRIM_THRESHOLD_="17179869184", MALLOC_TOP_PAD_="1073741824")


def records(command, env=None):
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, cwd=args.root)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def shape(rows, context):
    """The same work for both engines."""
    return ["--threads", "2", "--chunk", "512", "--steps", "16", "--context", str(context),
            "--lengths", str(context) if ("prefill", 1) in rows else "",
            "--batches", ",".join(str(batch) for test, batch in rows if test == "decode")]


def ours(model, storage, work):
    source = ["needle", "--model-dir", str(NEEDLE)] if model == "needle" else ["large"]
    return records(["cargo", "bench", "--profile", "release", "--locked", "--quiet", "-p", "engine-model",
                    "--bench", "engine", "--", *source, "--dtype", storage, "--precision", "exact",
                    "--index-keys", "f32", *work])


def peer(model, dtype, work):
    source = ["needle", "--model-dir", str(NEEDLE)] if model == "needle" else ["large"]
    return records([sys.executable, str(HERE / "transformers_peer.py"), *source, "--dtype", dtype, *work], PEER_ENV)


def rate(found, test, batch):
    found = next((r["tok_s"] for r in found if r["test"] == test and r.get("batch", 1) == batch), None)
    return found["median"] if isinstance(found, dict) else found


ALL = {("prefill", 1): None, ("decode", 1): None, ("decode", 4): None, ("decode", 16): None}
# model, our weights, the peer's dtype, context, rows with their goals (None = none set). Our arithmetic is f32 always;
# `stored` and `packed` keep FP8 and FP4 weights as published. The peer's bf16 is only asked to decode one short sequence:
# without bf16 instructions its prefill takes minutes.
COMPARISONS = [
    ("needle", "stored", "f32", 1024,
     {("prefill", 1): 2.0, ("decode", 1): 20.0, ("decode", 4): 10.0, ("decode", 16): 5.0}),
    ("large", "f32", "f32", 1024, ALL | {("prefill", 1): 1.0, ("decode", 1): 2.5}),
    ("large", "packed", "bf16", 64, {("decode", 1): 2.0}),
]


def main():
    print(f"{'model':8} {'ours / peer':18} {'test':10} {'batch':>5} {'ours tok/s':>11} {'peer tok/s':>11} {'ratio':>7} {'goal':>6}")
    for model, storage, dtype, context, rows in COMPARISONS:
        if args.only not in (None, model):
            continue
        work = shape(rows, context)
        pairs = [(ours(model, storage, work), peer(model, dtype, work)) for _ in range(PAIRS)]
        for (test, batch), goal in rows.items():
            found = [(rate(a, test, batch), rate(b, test, batch)) for a, b in pairs]
            if any(a is None or b is None for a, b in found):
                print(f"{model:8} {storage + ' / ' + dtype:18} {test:10} {batch:5} not measured")
                continue
            ratio = statistics.median(a / b for a, b in found)
            print(f"{model:8} {storage + ' / ' + dtype:18} {test:10} {batch:5} "
                  f"{statistics.median(a for a, _ in found):11,.0f} {statistics.median(b for _, b in found):11,.1f} "
                  f"{ratio:6.1f}x {f'{goal:.1f}x' if goal else '-':>6}", flush=True)


main()
