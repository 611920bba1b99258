"""Compares graft with a LoRA run of transformers, PEFT and PyTorch on the same machine, in turns.

peers.py --graft build/graft --model FILE.gguf [--rounds 2]

Two settings, r 16 on all linear layers, f32, 20 steps each of which the first 3 are dropped:
  padded: batches of 4 rows padded to 256 tokens, the same rows for both; padded tokens a second
  real:   the same data as each would use it: graft packs rows, the peer pads 8 of them to their longest

Needs the peer's program and data: $GRAFT_SHARED (default ../shared) with bench/peer_pytorch.py and
real/wordnet/train.jsonl. Prints one line a setting and exits with 1 where graft is not ahead as promised.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

STEPS, DROPPED, LENGTH = 20, 3, 256
PAD = 2
SPEED = {"padded": 1.35, "real": 1.8}  # at least, times the peer's
MEMORY = 0.4                           # at most, times the peer's


def graft_recipe(arguments, work, setting, shared):
    """The recipe of a setting as command-line overrides."""
    train = shared / "real/wordnet/train.jsonl"
    common = {
        "model": arguments.model, "output_dir": work / setting, "lora.r": 16, "lora.lora_alpha": 32,
        "data.max_length": LENGTH, "training.max_steps": STEPS, "training.shuffle": "false",
        "training.learning_rate": "1e-3", "training.lr_scheduler_type": "constant",
        "training.per_device_batch_size": 4, "compute.dtype": "f32",
    }
    if setting == "real":
        return {**common, "data.train": train, "data.packing": "true"}
    rows = work / "padded.jsonl"
    if not rows.exists():
        recipe = work / "rows.yaml"
        recipe.write_text(f"model: {arguments.model}\ndata: {{train: {train}, max_length: {LENGTH}}}\n")
        shown = subprocess.run([arguments.graft, "data", recipe, "--json"], check=True, capture_output=True)
        with rows.open("w") as file:
            for row in json.loads(shown.stdout)["rows"][:4 * STEPS]:
                ids, trained = row["input_ids"], row["trained"]
                fill = LENGTH - len(ids)
                labels = [i if t else -100 for i, t in zip(ids, trained)] + [-100] * fill
                file.write(json.dumps({"input_ids": ids + [PAD] * fill, "labels": labels}) + "\n")
    return {**common, "data.train": rows}


def run_graft(arguments, work, setting, shared):
    recipe = work / "empty.yaml"
    recipe.write_text("")
    overrides = [f"{k}={v}" for k, v in graft_recipe(arguments, work, setting, shared).items()]
    subprocess.run([arguments.graft, "train", recipe, *overrides], check=True, capture_output=True)
    lines = [json.loads(line) for line in (work / setting / "metrics.jsonl").read_text().splitlines()]
    rate = statistics.median(line["tokens_per_second"] for line in lines[DROPPED:])
    return rate, lines[-1]["peak_rss_bytes"] / 2**20


def run_peer(arguments, setting, shared):
    model = pathlib.Path(arguments.model)
    command = [sys.executable, shared / "bench/peer_pytorch.py", "--model", model.parent, "--gguf", model.name,
               "--data", shared / "real/wordnet/train.jsonl", "--rank", "16", "--alpha", "32",
               "--max-len", str(LENGTH), "--steps", str(STEPS), "--warmup-steps", str(DROPPED)]
    command += ["--batch", "4", "--pad-to-max"] if setting == "padded" else ["--batch", "8"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = json.loads(output.splitlines()[-1])
    tokens = result[setting + "_tokens"][DROPPED:]
    rate = statistics.median(n / s for n, s in zip(tokens, result["step_s"][DROPPED:]))
    return rate, result["peak_rss_mib"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graft", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent
    shared = pathlib.Path(os.environ.get("GRAFT_SHARED", root / ".." / "shared")).resolve()
    if not (shared / "bench/peer_pytorch.py").exists():
        sys.exit(f"error: the peer's program is missing: {shared}/bench/peer_pytorch.py (set GRAFT_SHARED)")

    missed = []
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for setting in SPEED:
            ours, theirs = [], []
            for _ in range(arguments.rounds):  # in turns, so that a slow minute hits both
                ours.append(run_graft(arguments, work, setting, shared))
                theirs.append(run_peer(arguments, setting, shared))
            (rate, memory), (peer_rate, peer_memory) = (
                [statistics.median(column) for column in zip(*runs)] for runs in (ours, theirs))
            print(f"{setting:7} graft {rate:7.1f} tokens/s {memory:6.0f} MiB | peer {peer_rate:7.1f} tokens/s "
                  f"{peer_memory:6.0f} MiB | {rate / peer_rate:.2f}x the speed, "
                  f"{memory / peer_memory:.2f}x the memory", flush=True)
            if rate < SPEED[setting] * peer_rate:
                missed.append(f"{setting}: less than {SPEED[setting]}x the peer's speed")
            if memory > MEMORY * peer_memory:
                missed.append(f"{setting}: more than {MEMORY}x the peer's memory")
    if missed:
        sys.exit("error: " + "; ".join(missed))


if __name__ == "__main__":
    main()
