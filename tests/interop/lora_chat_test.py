#!/usr/bin/env python3
"""Fine-tunes a Llama of transformers on conversations with LoRA, and loads the results in transformers. The
merged export and the adapter with the original folder must give equal logits. If peft is installed, it loads
the adapter. Otherwise its formula, W + (alpha / r) B A, is applied to the tensors by their names.

    .venv-compare/bin/python tests/interop/lora_chat_test.py build/cpu/src/cli/halflife
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer, LlamaConfig, LlamaForCausalLM
except ImportError as error:
    print(f"SKIPPED: lora_chat_test: {error} (launch/setup --tests)")
    sys.exit(77)
try:
    import peft
except ImportError:
    peft = None

HALFLIFE = ""
# Both sides compute in fp32. The merge adds one rounding of weights of order 0.1 per matrix.
TOLERANCE = 2e-5
RANK, ALPHA = 4, 12


def run(*arguments):
    result = subprocess.run([HALFLIFE, *map(str, arguments)], capture_output=True, text=True, errors="replace",
                            check=False)
    if result.returncode != 0:
        raise AssertionError(f"{arguments}: {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result.stdout


def with_adapter(base, folder):
    """Returns the model of `base` with the adapter of `folder`."""
    model = AutoModelForCausalLM.from_pretrained(base)
    if peft is not None:
        return peft.PeftModel.from_pretrained(model, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    modules = dict(model.named_modules())
    assert len(tensors) == 2 * len(config["target_modules"])
    with torch.no_grad():
        for name in config["target_modules"]:
            a, b = (tensors[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
            assert a.shape[0] == b.shape[1] == config["r"]
            modules[name].weight += config["lora_alpha"] / config["r"] * b @ a
    return model


class LoraChatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        torch.manual_seed(1)
        LlamaForCausalLM(LlamaConfig(vocab_size=259, hidden_size=32, num_hidden_layers=2, intermediate_size=48,
                                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                                     tie_word_embeddings=False)).save_pretrained(cls.dir / "base")
        ByT5Tokenizer(extra_ids=0).save_pretrained(cls.dir / "base")
        chats = cls.dir / "chats.jsonl"
        chats.write_text("".join(json.dumps({"messages": [{"role": "user", "content": f"{i} + 1?"},
                                                          {"role": "assistant", "content": str(i + 1)}]}) + "\n"
                                 for i in range(200)))
        run("import", "--from", cls.dir / "base", "--out", cls.dir / "imported")
        run("prepare", "--labels", "messages", "--input", chats, "--template", "zephyr", "--row-len", 128,
            "--tokenizer", cls.dir / "base", "--out", cls.dir / "chats.data")
        run("train", "--config", cls.dir / "imported/config.textproto", "--set", f"data.path={cls.dir / 'chats.data'}",
            "--set", f"lora.rank={RANK}", "--set", f"lora.alpha={ALPHA}", "--set", "train.steps=30", "--set", "optimizer.lr=2e-2",
            "--set", "train.device=cpu", "--set", "schedule.warmup_steps=2", "--init-from", cls.dir / "base",
            "--run", cls.dir / "lora")
        run("export", "--run", cls.dir / "lora", "--out", cls.dir / "merged")
        run("export", "--run", cls.dir / "lora", "--adapter", "--out", cls.dir / "adapter")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def logits(self, model):
        torch.manual_seed(2)
        with torch.no_grad():
            return model(torch.randint(3, 259, (2, 40))).logits

    def test_training_lowers_the_loss(self):
        lines = [json.loads(line) for line in (self.dir / "lora/metrics.jsonl").read_text().splitlines()]
        losses = [line["val_loss"] for line in lines if "val_loss" in line]
        self.assertLess(losses[-1], losses[0] - 0.2)  # LoRA does not train the random embedding and head

    def test_adapter_and_merged_model_agree(self):
        base = self.logits(AutoModelForCausalLM.from_pretrained(self.dir / "base"))
        merged = self.logits(AutoModelForCausalLM.from_pretrained(self.dir / "merged"))
        adapted = self.logits(with_adapter(self.dir / "base", self.dir / "adapter"))
        self.assertGreater((merged - base).abs().max().item(), 0.1)
        self.assertLess((merged - adapted).abs().max().item(), TOLERANCE * (1 + merged.abs().max().item()))

    def test_exported_tokenizer_has_the_template(self):
        tokenizer = AutoTokenizer.from_pretrained(self.dir / "merged")
        text = tokenizer.apply_chat_template([{"role": "user", "content": "1 + 1?"}], tokenize=False,
                                             add_generation_prompt=True)
        self.assertEqual(text, "<|user|>\n1 + 1?</s>\n<|assistant|>\n")

    def test_generate_continues_with_the_merged_weights(self):
        texts = [run("generate", "--model", self.dir / name, "--prompt", "<|user|>\n7 + 1?", "--max-tokens", 12,
                     "--temperature", 0) for name in ("lora", "merged", "imported")]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_refuses(self):
        with self.assertRaisesRegex(AssertionError, "is not a step of a LoRA run, so it has no adapter. Export it "
                                                    "without --adapter."):
            run("export", "--run", self.dir / "imported", "--adapter", "--out", self.dir / "none")


if __name__ == "__main__":
    HALFLIFE = sys.argv.pop(1)
    unittest.main(verbosity=2)
