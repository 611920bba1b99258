"""Compares graft with transformers and PEFT on random small models: logits, loss, training, merging.

random_models.py --graft build/graft [--models 60] [--first-seed 0]

Each seed draws a family, its sizes, rope scaling, windows, biases and stored type, an adapter with random
options, and a training run with random batches and schedule; graft gets the folders that transformers and
PEFT saved. Prints one line a model and exits with 1 where a value differs by more than the limits below.
"""

import argparse
import copy
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config,
                          get_scheduler)

# Relative, norm-wise. Adam amplifies rounding, so weights after training may differ more.
LIMITS = {"logits": 1e-4, "loss": 1e-4, "training loss": 1e-4, "training norm": 1e-3, "weights": 1e-3,
          "merged": 1e-4}
MERGED_ROUNDED = 3e-2  # where the merged weights are stored in sixteen bits
STEPS = 4


def random_rope(draw):
    base = {"rope_type": "default", "rope_theta": draw.choice([1e4, 5e5])}
    original = {"original_max_position_embeddings": 32}
    return {**base, **draw.choice([
        {}, {"rope_type": "linear", "factor": 2.5},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original},
        {"rope_type": "yarn", "factor": 4.0, **original},
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3,
         **original},
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False,
         **original}])}


def random_config(draw):
    family = draw.choice([LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
    groups, head_dim = draw.choice([1, 2, 3]), draw.choice([8, 10, 16, 24])
    heads = groups * draw.choice([1, 2, 4])
    # transformers wants a hidden size that the heads divide, also where head_dim is given.
    hidden = heads * (head_dim if family is Qwen2Config else draw.choice([8, 12, 20]))
    options = {
        "vocab_size": draw.choice([61, 97, 128, 257]), "hidden_size": hidden,
        "intermediate_size": draw.choice([40, 77, 96]), "num_hidden_layers": draw.choice([1, 2, 3, 5]),
        "num_attention_heads": heads, "num_key_value_heads": groups, "max_position_embeddings": 128,
        "rms_norm_eps": draw.choice([1e-6, 1e-5]), "tie_word_embeddings": draw.random() < 0.5,
        "hidden_act": draw.choice(["silu", "silu", "gelu", "gelu_pytorch_tanh"]),
        "rope_parameters": random_rope(draw), "initializer_range": 0.1, "bos_token_id": 1, "eos_token_id": 2,
    }
    if family is not Qwen2Config:
        options["head_dim"] = head_dim
    if family in (LlamaConfig, Qwen3Config):
        options["attention_bias"] = draw.random() < 0.5
    if family is LlamaConfig:
        options["mlp_bias"] = draw.random() < 0.5
    if family is MistralConfig:
        options["sliding_window"] = draw.choice([None, 7, 16])
    if family in (Qwen2Config, Qwen3Config):
        options |= {"use_sliding_window": draw.random() < 0.6, "sliding_window": 9,
                    "max_window_layers": draw.choice([0, 1, 2])}
    return family(**options)


def random_adapter(draw, layers):
    options = {
        "r": draw.choice([1, 3, 8]), "lora_alpha": draw.choice([4, 16]), "use_rslora": draw.random() < 0.4,
        "target_modules": draw.choice([
            "all-linear", ["q_proj", "v_proj"], ["gate_proj", "o_proj", "k_proj"],
            r".*\.(0|1)\.mlp\.(up|down)_proj", r"model\.layers\.\d+\.self_attn\.[qk]_proj"]),
        "task_type": "CAUSAL_LM", "init_lora_weights": False,
    }
    if draw.random() < 0.3:
        options["rank_pattern"] = {"q_proj": 5, r"layers\.0\.mlp\.up_proj": 2}
    if draw.random() < 0.3:
        options["alpha_pattern"] = {"v_proj": 7, "down_proj": 3}
    if isinstance(options["target_modules"], list):
        choice = draw.random()
        if choice < 0.3:
            options["layers_to_transform"] = [draw.randrange(layers)]
        elif choice < 0.5:
            options["exclude_modules"] = ["layers.0.self_attn.q_proj"]
    return LoraConfig(**options)


def stored_model(draw, config, folder):
    """A model saved in a random float type, and the same values in f32."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
            parameter.copy_(parameter.to(dtype))
    copy.deepcopy(model).to(dtype).save_pretrained(folder, max_shard_size=draw.choice(["5GB", "20KB"]))
    return model, dtype


def relative(value, reference):
    return ((value - reference).norm() / reference.norm()).item()


def graft(arguments, *command):
    done = subprocess.run([arguments.graft, *map(str, command)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"graft {command[0]}: {done.stderr[-800:]}")


def compare_scores(arguments, draw, model, work, vocabulary):
    rows, length = draw.choice([(1, 5), (2, 33), (3, 50), (2, 65)])
    ids = torch.randint(3, vocabulary, (rows, length))
    lengths = torch.tensor([length] + [draw.randint(2, length) for _ in range(rows - 1)])
    mask = torch.arange(length)[None] < lengths[:, None]
    labels = torch.where(mask & (torch.rand(rows, length) > 0.3), ids, -100)
    labels[0, -1] = ids[0, -1]
    with torch.no_grad():
        reference = model(input_ids=ids, attention_mask=mask.long(), labels=labels)
    save_file({"input_ids": ids.int(), "lengths": lengths.int(), "labels": labels.int()}, work / "in.safetensors")
    errors = {}
    for name, options in {"logits": ["--model", work / "model", "--adapter", work / "adapter"],
                          "merged": ["--model", work / "merged"]}.items():
        graft(arguments, "logits", *options, "--input", work / "in.safetensors", "--output",
              work / "out.safetensors", "--dtype", "f32")
        out = load_file(work / "out.safetensors")
        errors[name] = relative(out["logits"][mask], reference.logits[mask])
        if name == "logits":
            errors["loss"] = abs(out["loss"].item() / reference.loss.item() - 1)
    return errors


def random_rows(draw, count, vocabulary):
    rows = []
    for _ in range(count):
        ids = [draw.randrange(3, vocabulary) for _ in range(draw.randint(3, 60))]
        rows.append((ids, [i if draw.random() < 0.7 else -100 for i in ids[:-1]] + [ids[-1]]))
    return rows


def train_reference(model, rows, per_step, schedule, warmup, decay):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=decay, betas=(0.9, 0.95), eps=1e-8)
    scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=warmup, num_training_steps=STEPS)
    losses, norms = [], []
    for step in range(STEPS):
        batch = rows[step * per_step:(step + 1) * per_step]
        count = sum(label != -100 for _, labels in batch for label in labels[1:])
        optimizer.zero_grad()
        losses.append(0.0)
        for ids, labels in batch:
            logits = model(input_ids=torch.tensor([ids])).logits[0]
            loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(labels[1:]), reduction="sum") / count
            loss.backward()
            losses[-1] += loss.item()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, 1.0).item())
        optimizer.step()
        scheduler.step()
    return losses, norms


def compare_training(arguments, draw, model, work, vocabulary):
    rows, accumulation = 2, draw.choice([1, 2])
    data = random_rows(draw, STEPS * rows * accumulation, vocabulary)
    (work / "rows.jsonl").write_text(
        "".join(json.dumps({"input_ids": ids, "labels": labels}) + "\n" for ids, labels in data))
    schedule = draw.choice(["constant", "linear", "cosine", "constant_with_warmup"])
    warmup = 0 if schedule == "constant" else draw.choice([0, 2])
    decay = draw.choice([0, 0.1])
    losses, norms = train_reference(model, data, rows * accumulation, schedule, warmup, decay)
    settings = {
        "model": work / "model", "output_dir": work / "run", "data.train": work / "rows.jsonl",
        "data.format": "tokenized", "data.max_length": 64, "data.max_untrained_share": 1,
        "lora.init_adapter": work / "adapter", "training.learning_rate": 1e-3,
        "training.lr_scheduler_type": schedule, "training.warmup_steps": warmup, "training.max_steps": STEPS,
        "training.per_device_batch_size": rows, "training.gradient_accumulation_steps": accumulation,
        "training.weight_decay": decay, "training.adam_beta2": 0.95, "training.shuffle": "false",
        "training.remat": draw.choice(["none", "full", "minimal"]), "compute.dtype": "f32",
        "scan_layers": draw.choice(["true", "false"]),
    }
    (work / "recipe.yaml").write_text("")
    graft(arguments, "train", work / "recipe.yaml", *(f"{key}={value}" for key, value in settings.items()))
    lines = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]
    model.save_pretrained(work / "trained")
    theirs = load_file(work / "trained/adapter_model.safetensors")
    ours = load_file(work / "run/adapter/adapter_model.safetensors")
    if ours.keys() != theirs.keys() or len(lines) != STEPS:
        raise RuntimeError(f"{len(lines)} steps; keys {ours.keys() ^ theirs.keys()}")
    return {"training loss": max(abs(line["loss"] / loss - 1) for line, loss in zip(lines, losses)),
            "training norm": max(abs(line["grad_norm"] / norm - 1) for line, norm in zip(lines, norms)),
            "weights": max(relative(ours[name], theirs[name]) for name in theirs)}


def compare(arguments, seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    config = random_config(draw)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        base, dtype = stored_model(draw, config, work / "model")
        model = get_peft_model(base, random_adapter(draw, config.num_hidden_layers))
        with torch.no_grad():  # large enough to matter, small enough that f32 can follow the gradients
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.mul_(0.3)
        model.save_pretrained(work / "adapter")
        graft(arguments, "merge", "--model", work / "model", "--adapter", work / "adapter", "--output", work / "merged")
        errors = compare_scores(arguments, draw, model, work, config.vocab_size)
        errors |= compare_training(arguments, draw, model, work, config.vocab_size)
    limits = dict(LIMITS) if dtype == torch.float32 else {**LIMITS, "merged": MERGED_ROUNDED}
    wrong = [name for name, error in errors.items() if not error <= limits[name]]
    figures = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    print(f"{'differs' if wrong else 'equal'}: seed {seed} {config.model_type} {dtype}: {figures}", flush=True)
    return not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graft", required=True)
    parser.add_argument("--models", type=int, default=60)
    parser.add_argument("--first-seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.models):
        try:
            failed += not compare(arguments, seed)
        except Exception as error:  # pylint: disable=broad-except -- the next model may tell more
            print(f"differs: seed {seed}: {error}", flush=True)
            failed += 1
    if failed:
        sys.exit(f"error: {failed} of {arguments.models} models differ; rerun one with --first-seed SEED --models 1")
    print(f"{arguments.models} random models agree")


if __name__ == "__main__":
    main()
