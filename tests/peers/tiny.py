"""A tiny model of random weights as a Hugging Face folder, and a short LoRA run of graft on it. Needs numpy alone."""

import json
import pathlib
import random
import subprocess

import numpy

# Heads of 16, two of keys and values; the widths are multiples of 32.
BASE = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 2, "vocab_size": 256, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "rope_theta": 10000.0, "torch_dtype": "float32",
    "tie_word_embeddings": True,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "factor": 2.0}
MODELS = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "llama-untied": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False,
                     "attention_bias": True},
    "llama3": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_scaling": LLAMA3},
    "llama-linear": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_scaling": LINEAR},
    "llama-yarn": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_scaling": YARN},
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": False},
}


def shapes(config):
    """Every parameter of a model, in order."""
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    qkv_bias = config["model_type"] == "qwen2" or config.get("attention_bias", False)
    linears = [("self_attn.q_proj", q, hidden, qkv_bias), ("self_attn.k_proj", kv, hidden, qkv_bias),
               ("self_attn.v_proj", kv, hidden, qkv_bias),
               ("self_attn.o_proj", hidden, q, config.get("attention_bias", False)),
               ("mlp.gate_proj", mlp, hidden, False), ("mlp.up_proj", mlp, hidden, False),
               ("mlp.down_proj", hidden, mlp, False)]
    result = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, out, width, bias in linears:
            result[prefix + name + ".weight"] = (out, width)
            if bias:
                result[prefix + name + ".bias"] = (out,)
        result[prefix + "input_layernorm.weight"] = result[prefix + "post_attention_layernorm.weight"] = (hidden,)
        if config["model_type"] == "qwen3":
            result[prefix + "self_attn.q_norm.weight"] = result[prefix + "self_attn.k_norm.weight"] = (
                config["head_dim"],)
    result["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        result["lm_head.weight"] = (config["vocab_size"], hidden)
    return result


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, array in tensors.items():
        kind = {"float32": "F32", "int32": "I32"}[str(array.dtype)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(numpy.ascontiguousarray(array).tobytes())


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    kinds = {"F32": numpy.float32, "I32": numpy.int32}
    return {name: numpy.frombuffer(data[8 + size:][slice(*entry["data_offsets"])], kinds[entry["dtype"]])
            .reshape(entry["shape"]) for name, entry in header.items()}


def write_model(folder, name):
    config = {**BASE, **MODELS[name]}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator = numpy.random.default_rng(7)
    tensors = {}
    for key, shape in shapes(config).items():
        center = 1 if key.endswith("norm.weight") else 0
        tensors[key] = (center + 0.1 * generator.standard_normal(shape)).astype(numpy.float32)
    write_safetensors(folder / "model.safetensors", tensors)
    return config


def graft(program, *arguments):
    result = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"error: graft {' '.join(map(str, arguments))}:\n{result.stderr}")
    return result


def train(program, model, output, *overrides):
    """A few steps at a high rate, so that the adapter changes much."""
    generator = random.Random(1)
    rows = output.parent / "rows.jsonl"
    rows.parent.mkdir(parents=True, exist_ok=True)
    rows.write_text("".join(
        json.dumps({"input_ids": [generator.randrange(3, 200) for _ in range(24)]}) + "\n" for _ in range(8)))
    recipe = output.parent / "recipe.yaml"
    recipe.write_text("")
    settings = {"model": model, "output_dir": output, "data.train": rows, "training.max_steps": 4,
                "training.learning_rate": "2e-2", "training.per_device_batch_size": 4, "compute.dtype": "f32"}
    graft(program, "train", recipe, *[f"{key}={value}" for key, value in settings.items()], *overrides)


def permuted(config, name, rows):
    """The rows of q and k as llama.cpp's files of llama models have them: the halves of each head interleaved."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if config["model_type"] not in ("llama", "mistral") or heads is None:
        return rows
    count = config[heads]
    halves = rows.reshape(count, 2, rows.shape[0] // count // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
