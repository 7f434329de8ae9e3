#!/usr/bin/env python3
"""The documented commands of a whole project, one after the other: two sources become datasets, a
model trains on a blend of them with two validation sets, is tuned on conversations with LoRA, is
served, scored as lm-evaluation-harness does it, continues many prompts, and is loaded by
transformers.

    .venv-compare/bin/python tests/interop/users_day_test.py build/cpu/src/cli/halflife
"""

import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

try:
    import torch
    from transformers import AutoModelForCausalLM
except ImportError as error:
    print(f"SKIPPED: users_day_test: {error} (launch/setup --tests)")
    sys.exit(77)

HALFLIFE = ""
MODEL = """
model {
  model_dim: 32 num_layers: 2
  mixer { softmax { num_heads: 2 } }
  channel_mixer { swiglu {} }
}
optimizer { lr: 0.01 }
train { global_batch: 8 micro_batch: 4 seed: 3 device: "cpu" threads: 1 }
"""
BLEND = """
data {
  seq_len: 64
  source { name: "verses" path: "data/verses" weight: 0.7 }
  source { name: "code" path: "data/code" weight: 0.3 }
}
train { steps: 30 }
eval { every: 15 windows: 8 }
ckpt { every: 15 keep_best: "val_loss/verses" }
"""
CHATS = """
data { path: "data/chats" seq_len: 128 }
train { steps: 10 }
lora { rank: 4 alpha: 8 }
"""


class UsersDay(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="halflife_day_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, *arguments):
        done = subprocess.run([HALFLIFE, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def prepare(self):
        self.write("verses.txt", "".join(f"In the beginning was word number {i} of many.\n" for i in range(300)))
        self.write("code.txt", "".join(f"def f{i}(x):  return x + {i}\n" for i in range(300)))
        for name in ("verses", "code"):
            self.run_program("prepare", "--input", f"{name}.txt", "--tokenizer", "bytes", "--documents", "line",
                             "--validation-fraction", "0.2", "--out", f"data/{name}")

    def train(self):
        self.write("model.textproto", MODEL)
        self.write("blend.textproto", BLEND)
        self.run_program("train", "--config", "model.textproto", "--config", "blend.textproto", "--run", "runs/base")
        lines = [json.loads(line) for line in (self.folder / "runs/base/metrics.jsonl").read_text().splitlines()]
        for name in ("verses", "code"):
            losses = [line[f"val_loss/{name}"] for line in lines if f"val_loss/{name}" in line]
            self.assertGreaterEqual(len(losses), 2)
            self.assertLess(losses[-1], losses[0])
        drawn = [line for line in lines if "drawn/code" in line][-1]
        self.assertEqual(drawn["drawn/verses"] + drawn["drawn/code"], 30 * 8)
        self.assertAlmostEqual(drawn["drawn/code"] / (30 * 8), 0.3, delta=0.05)

    def tune(self):
        chats = [{"messages": [{"role": "user", "content": f"{i} + 1?"}, {"role": "assistant", "content": str(i + 1)}]}
                 for i in range(60)]
        self.write("chats.jsonl", "".join(json.dumps(chat) + "\n" for chat in chats))
        self.run_program("prepare", "--labels", "messages", "--input", "chats.jsonl", "--template", "chatml",
                         "--row-len", "128", "--tokenizer", "runs/base/tokenizer", "--out", "data/chats")
        self.write("chats.textproto", CHATS)
        self.run_program("train", "--config", "model.textproto", "--config", "chats.textproto", "--init-from",
                         "runs/base@best", "--run", "runs/chat")

    def serve(self):
        """Starts the server on a free port. Returns the process and its address."""
        server = subprocess.Popen([HALFLIFE, "serve", "--model", "runs/chat", "--port", "0"], cwd=self.folder,
                                  stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.kill)
        for line in server.stderr:
            if found := re.search(r"listening at (http://127\.0\.0\.1:\d+/v1)", line):
                return server, found.group(1)
        self.fail(f"the server ended with {server.wait()}")

    def post(self, address, body):
        request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def score(self, ids):
        self.write("ids.json", json.dumps(ids))
        self.run_program("score", "--model", "runs/chat", "--tokens", "ids.json", "--out", "scores.jsonl")
        return [json.loads(line)["logprobs"] for line in (self.folder / "scores.jsonl").read_text().splitlines()]

    def check_answers(self, address):
        messages = [{"role": "user", "content": "3 + 1?"}]
        answer = self.post(f"{address}/chat/completions", {"messages": messages, "max_tokens": 8, "seed": 1})
        self.assertIsInstance(answer["choices"][0]["message"]["content"], str)
        # What lm-evaluation-harness sends for the log-likelihood of a continuation.
        ids = [[byte + 3 for byte in text.encode()] for text in ("In the beginning was", "def f7(x):  return x + 7")]
        for row, expected in zip(ids, self.score(ids)):
            reply = self.post(f"{address}/completions", {"prompt": row, "echo": True, "logprobs": 1, "max_tokens": 1,
                                                         "temperature": 0, "seed": 1234})
            scores = reply["choices"][0]["logprobs"]["token_logprobs"]
            self.assertIsNone(scores[0])
            for own, other in zip(scores[1:len(row)], expected, strict=True):
                self.assertAlmostEqual(own, other, delta=1e-4)

    def generate(self):
        prompts = [f"In the beg{'i' * i}" for i in range(5)]
        self.write("prompts.jsonl", "".join(json.dumps(prompt) + "\n" for prompt in prompts))
        options = ["--model", "runs/chat", "--max-tokens", "12", "--seed", "4"]
        texts = self.run_program("generate", "--prompts", "prompts.jsonl", "--batch", "4", *options).splitlines()
        self.assertEqual(len(texts), 5)
        self.write("prompts.jsonl", json.dumps(prompts[3]) + "\n")
        alone = json.loads(self.run_program("generate", "--prompts", "prompts.jsonl", *options))
        self.assertEqual(json.loads(texts[3])["text"], alone["text"])

    def load_in_transformers(self):
        self.run_program("export", "--run", "runs/chat", "--out", "exports/chat")
        model = AutoModelForCausalLM.from_pretrained(self.folder / "exports/chat")
        ids = [byte + 3 for byte in b"In the beginning was word number 5"]
        with torch.no_grad():
            scores = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1].double(), -1)
        own = self.score([ids])[0]
        for position, expected in enumerate(own):
            self.assertAlmostEqual(scores[position, ids[position + 1]].item(), expected, delta=2e-4)

    def test_a_day(self):
        self.prepare()
        self.train()
        self.tune()
        server, address = self.serve()
        self.check_answers(address)
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
        self.assertEqual(server.returncode, 0)
        self.generate()
        self.load_in_transformers()


if __name__ == "__main__":
    HALFLIFE = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
