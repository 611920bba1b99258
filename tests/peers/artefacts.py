"""Artefacts of graft loaded by others: transformers, PEFT and llama.cpp must compute what graft computes.

artefacts.py --graft build/graft --model SmolLM2.gguf

Tiny random models of every family (and every rotary scaling), trained a few steps, and SmolLM2:
  transformers   the merged folder, and PEFT's adapter on the base: every logit within 1e-4 of graft's
  llama.cpp      the merged GGUF, and the GGUF adapter on its base GGUF: the 20 largest logits of the last position
                 within 1e-2 (f32 files)
SmolLM2's logits are some 30 times as large as the tiny models', so its bound for transformers is taken relative to
the largest logit. Prints a line for each; exits with 1 where one is missed.
"""

import argparse
import ctypes
import json
import pathlib
import sys
import tempfile

import numpy

import tiny

WITHIN = {"transformers": 1e-4, "llama.cpp": 1e-2}
failures = []


def report(what, difference, allowed):
    print(f"{what:48} differs by {difference:.2e} (allowed {allowed:.0e})", flush=True)
    if not difference <= allowed:
        failures.append(what)


def graft_logits(program, work, model, adapter, ids):
    tiny.write_safetensors(work / "in.safetensors", {"input_ids": numpy.array([ids], numpy.int32)})
    arguments = ["--model", model, "--input", work / "in.safetensors", "--output", work / "out.safetensors",
                 "--dtype", "f32"]
    if adapter:
        arguments += ["--adapter", adapter]
    tiny.graft(program, "logits", *arguments)
    return tiny.read_safetensors(work / "out.safetensors")["logits"][0]


def transformers_logits(model, adapter, ids):
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
    transformers.utils.logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    if adapter:
        from peft import PeftModel
        loaded = PeftModel.from_pretrained(loaded, adapter)
    with torch.no_grad():
        return loaded.eval()(torch.tensor([ids])).logits[0].numpy()


class LlamaCpp:
    """The last position's logits, by the C interface: the class Llama wants a tokenizer, which a tiny model lacks."""

    def __init__(self, quiet=True):
        import llama_cpp
        self.api = llama_cpp
        self.silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        if quiet:
            llama_cpp.llama_log_set(self.silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()

    def logits(self, model_path, adapter_path, ids):
        api = self.api
        model = api.llama_model_load_from_file(str(model_path).encode(), api.llama_model_default_params())
        if not model:
            sys.exit(f"error: llama.cpp does not load {model_path}")
        parameters = api.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = max(64, len(ids))
        parameters.n_threads = parameters.n_threads_batch = 2
        parameters.type_k = parameters.type_v = api.GGML_TYPE_F32
        parameters.flash_attn = False
        context = api.llama_init_from_model(model, parameters)
        if adapter_path:
            adapter = api.llama_adapter_lora_init(model, str(adapter_path).encode())
            if not adapter:
                sys.exit(f"error: llama.cpp does not load {adapter_path}")
            api.llama_set_adapter_lora(context, adapter, 1.0)
        tokens = (api.llama_token * len(ids))(*ids)
        if api.llama_decode(context, api.llama_batch_get_one(tokens, len(ids))) != 0:
            sys.exit("error: llama.cpp does not run")
        vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        result = numpy.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (vocabulary,)).copy()
        api.llama_free(context)
        api.llama_model_free(model)
        return result


def top_difference(found, expected, count=20):
    """Over the largest logits of either."""
    both = set(numpy.argsort(found)[-count:]) | set(numpy.argsort(expected)[-count:])
    return max(abs(float(found[i]) - float(expected[i])) for i in both)


def check_llama_cpp(program, llama, work, name, run, base, expected, ids):
    tiny.graft(program, "export", run, "--format", "gguf", "--dtype", "f32")
    found = llama.logits(run / "export/gguf/model.gguf", None, ids)
    report(f"{name}: merged GGUF in llama.cpp", top_difference(found, expected[-1]), WITHIN["llama.cpp"])
    tiny.graft(program, "export", run, "--format", "gguf-adapter")
    tiny.graft(program, "merge", "--model", base, "--output", work / "base", "--format", "gguf", "--dtype", "f32")
    found = llama.logits(work / "base/model.gguf", run / "export/gguf-adapter/adapter.gguf", ids)
    report(f"{name}: GGUF adapter in llama.cpp", top_difference(found, expected[-1]), WITHIN["llama.cpp"])


def check_tiny(program, llama, work, name):
    tiny.write_model(work / "model", name)
    run = work / "run"
    tiny.train(program, work / "model", run, f"lora.use_rslora={'true' if name == 'llama' else 'false'}")
    ids = [int(i) for i in numpy.random.default_rng(3).integers(3, 250, 100)]
    expected = graft_logits(program, work, work / "model", run / "adapter", ids)
    base = graft_logits(program, work, work / "model", None, ids)
    changed = float(abs(expected - base).max())
    if changed < 0.05:
        sys.exit(f"error: {name}: the adapter changes logits by {changed} only, which proves nothing")
    for form in ("hf", "peft"):
        tiny.graft(program, "export", run, "--format", form)
    found = transformers_logits(run / "export/hf", None, ids)
    report(f"{name}: merged folder in transformers", float(abs(found - expected).max()), WITHIN["transformers"])
    found = transformers_logits(work / "model", run / "export/peft", ids)
    report(f"{name}: adapter in PEFT", float(abs(found - expected).max()), WITHIN["transformers"])
    check_llama_cpp(program, llama, work, name, run, work / "model", expected, ids)


def check_config(folder):
    """adapter_config.json is what PEFT itself would write: reading it and saving it again changes nothing."""
    from peft import LoraConfig
    config = LoraConfig.from_pretrained(folder)
    written = json.loads((folder / "adapter_config.json").read_text())
    with tempfile.TemporaryDirectory() as again:
        config.inference_mode = True
        config.save_pretrained(again)
        saved = json.loads((pathlib.Path(again) / "adapter_config.json").read_text())
    for document in (written, saved):
        document["target_modules"] = sorted(document["target_modules"])
    if written != saved:
        differing = [key for key in {**written, **saved} if written.get(key) != saved.get(key)]
        print(f"adapter_config.json: PEFT would write {differing} otherwise")
        failures.append("adapter_config.json")


def check_smollm2(program, llama, work, model):
    run = work / "run"
    tiny.train(program, model, run, "lora.r=8", "training.max_steps=2", "training.per_device_batch_size=2")
    ids = [int(i) for i in numpy.random.default_rng(3).integers(3, 49000, 32)]
    expected = graft_logits(program, work, model, run / "adapter", ids)
    size = float(abs(expected).max())
    tiny.graft(program, "export", run, "--format", "hf")
    found = transformers_logits(run / "export/hf", None, ids)
    report("SmolLM2: merged folder in transformers (relative)", float(abs(found - expected).max()) / size,
           WITHIN["transformers"])
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(run / "export/hf")
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Who are you?"}], tokenize=False)
    if "Who are you?" not in text:
        failures.append("SmolLM2: chat template in transformers")
    tiny.graft(program, "export", run, "--format", "peft")
    tiny.graft(program, "merge", "--model", model, "--output", work / "base-hf")
    found = transformers_logits(work / "base-hf", run / "export/peft", ids)
    report("SmolLM2: adapter in PEFT (relative)", float(abs(found - expected).max()) / size, WITHIN["transformers"])
    check_config(run / "export/peft")
    check_llama_cpp(program, llama, work, "SmolLM2", run, model, expected, ids)
    chat = llama.api.Llama(str(run / "export/gguf/model.gguf"), n_ctx=128, verbose=False)
    words = tiny.graft(program, "tokenize", "--model", model, "--text", "Hello, it's 1234 wörds", "--json").stdout
    if chat.tokenize("Hello, it's 1234 wörds".encode(), add_bos=False) != json.loads(words)["input_ids"]:
        failures.append("SmolLM2: tokenizer in llama.cpp")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graft", required=True, type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, help="SmolLM2's GGUF; without it tiny models alone are compared")
    arguments = parser.parse_args()
    program, llama = arguments.graft.resolve(), LlamaCpp()
    for name in tiny.MODELS:
        with tempfile.TemporaryDirectory() as folder:
            check_tiny(program, llama, pathlib.Path(folder), name)
    if arguments.model:
        with tempfile.TemporaryDirectory() as folder:
            check_smollm2(program, llama, pathlib.Path(folder), arguments.model.resolve())
    if failures:
        sys.exit("error: missed: " + "; ".join(failures))


if __name__ == "__main__":
    main()
