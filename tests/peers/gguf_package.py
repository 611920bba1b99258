"""GGUF exports read back by the Python package gguf, which is ggml's own reader.

gguf_package.py --graft build/graft --environment FOLDER

Installs the package with pip into an environment of its own at FOLDER, unless it is there. Exits with 77, a test
that was skipped, where there is no pip or no network.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
REQUIREMENTS = pathlib.Path(__file__).with_name("gguf_package.txt")
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def enter_environment(folder):
    """Runs this program again in an environment that has the package."""
    marker = folder / ".complete"
    wanted = REQUIREMENTS.read_text()
    if not marker.exists() or marker.read_text() != wanted:
        try:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
            subprocess.run([folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--requirement",
                            REQUIREMENTS], check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"NOT TESTED: the package gguf cannot be installed here: {error}")
            sys.exit(SKIPPED)
        marker.write_text(wanted)
    python = folder / "bin/python"
    os.execv(python, [str(python), *sys.argv, "--inside"])


def gguf_name(name):
    parts = name.split(".")
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    if name == "lm_head.weight":
        return "output.weight"
    return f"blk.{parts[2]}.{NAMES['.'.join(parts[3:-1])]}.{parts[-1]}"


def values(reader):
    """Every tensor by name, in its shape (the package lists columns first)."""
    return {t.name: t.data.reshape([int(n) for n in reversed(t.shape)]) for t in reader.tensors}


def check_model(program, work, name):
    import gguf
    import numpy
    import tiny
    config = tiny.write_model(work / "model", name)
    tiny.train(program, work / "model", work / "run", "lora.use_rslora=true")
    for form in ("hf", "gguf", "gguf-adapter"):
        tiny.graft(program, "export", work / "run", "--format", form)
    merged = tiny.read_safetensors(work / "run/export/hf/model.safetensors")
    reader = gguf.GGUFReader(work / "run/export/gguf/model.gguf")
    field = lambda key: reader.get_field(key).contents()
    architecture = field("general.architecture")
    assert architecture == {"mistral": "llama"}.get(config["model_type"], config["model_type"]), architecture
    for key, expected in {"block_count": 2, "embedding_length": 64, "feed_forward_length": 96, "context_length": 256,
                          "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
                          "rope.dimension_count": 16}.items():
        assert field(f"{architecture}.{key}") == expected, key
    found = values(reader)
    divisors = found.pop("rope_freqs.weight", None)
    assert (divisors is not None) == (name == "llama3")
    assert found.keys() == {gguf_name(key) for key in merged}, found.keys() ^ {gguf_name(key) for key in merged}
    for key, array in merged.items():
        assert numpy.array_equal(found[gguf_name(key)], tiny.permuted(config, key, array)), key

    adapter = gguf.GGUFReader(work / "run/export/gguf-adapter/adapter.gguf")
    assert adapter.get_field("general.type").contents() == "adapter"
    assert adapter.get_field("adapter.type").contents() == "lora"
    alpha = adapter.get_field("adapter.lora.alpha").contents()
    found = values(adapter)
    trained = tiny.read_safetensors(work / "run/adapter/adapter_model.safetensors")
    assert len(found) == len(trained)
    for key, array in trained.items():
        module = key.removeprefix("base_model.model.").rsplit(".", 2)[0]
        if ".lora_A." in key:
            assert numpy.array_equal(found[gguf_name(module + ".weight") + ".lora_a"], array), key
            continue
        other = found[gguf_name(module + ".weight") + ".lora_b"]
        assert numpy.array_equal(other, tiny.permuted(config, module + ".weight", array)), key
        rank = array.shape[1]
        assert abs(alpha / rank - 32 / rank**0.5) < 1e-5, (alpha, rank)
    print(f"{name}: {len(merged)} tensors of the model and {len(trained)} of the adapter are as written")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graft", required=True, type=pathlib.Path)
    parser.add_argument("--environment", required=True, type=pathlib.Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        enter_environment(arguments.environment)
    for name in ("llama", "llama3", "llama-untied", "qwen2", "qwen3", "mistral"):
        with tempfile.TemporaryDirectory() as folder:
            check_model(arguments.graft.resolve(), pathlib.Path(folder), name)


if __name__ == "__main__":
    main()
