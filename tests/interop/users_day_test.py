#!/usr/bin/env python3
"""Runs the documented commands of a whole project. Two sources, one of them in Parquet, are prepared as
datasets. A model is trained on a mixture of both with two validation sets, and fine-tuned on
conversations with LoRA. The model is then served, evaluated with lm-evaluation-harness, used to continue
many prompts, and loaded in transformers.

    .venv-compare/bin/python tests/interop/users_day_test.py build/cpu/src/cli/halflife
"""

import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

try:
    import lm_eval  # run as a program
    import pyarrow
    import pyarrow.parquet
    import torch
    from transformers import AutoModelForCausalLM
except ImportError as error:
    print(f"SKIPPED: users_day_test: {error} (launch/setup --tests)")
    sys.exit(77)

HALFLIFE = ""
DATA_FORMAT = pathlib.Path(__file__).resolve().parents[2] / "docs/data_format.md"
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
# Tasks of lm-evaluation-harness on local files. last_words is defined like lambada_openai.
LAST_WORDS = """
task: last_words
dataset_path: json
dataset_kwargs: {data_files: {test: last_words.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+text.split(' ')[-1]}}"
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
CONTINUATIONS = """
task: continuations
dataset_path: json
dataset_kwargs: {data_files: {test: continuations.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{text}}"
generation_kwargs: {until: ["w"], max_gen_toks: 12, temperature: 0}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
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
        self.write("code.txt", "".join(f"def f{i}(x):  return x + {i}\n" for i in range(300)))
        verses = [f"In the beginning was word number {i} of many." for i in range(300)]
        pyarrow.parquet.write_table(pyarrow.table({"text": verses}), self.folder / "verses.parquet")
        script = re.search(r"<<'END'\n(import json, sys\n.*?)END\n", DATA_FORMAT.read_text(), re.DOTALL)[1]
        converted = subprocess.run([sys.executable, "-c", script, "verses.parquet"], cwd=self.folder, check=True,
                                   capture_output=True, text=True).stdout
        self.write("verses.jsonl", converted)
        options = ["--tokenizer", "bytes", "--validation-fraction", "0.2"]
        self.run_program("prepare", "--input", "verses.jsonl", *options, "--out", "data/verses")
        self.run_program("prepare", "--input", "code.txt", "--documents", "line", *options, "--out", "data/code")

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

    def evaluate(self, model, arguments, tasks, output, *more):
        """Runs lm-evaluation-harness against the server. Returns its results and logged samples, by task."""
        for name, task in (("last_words", LAST_WORDS), ("continuations", CONTINUATIONS)):
            self.write(f"{name}.yaml", task)
        command = [sys.executable, "-m", "lm_eval", "--model", model, "--tasks", tasks, "--include_path", ".",
                   "--model_args", f"model=chat,num_concurrent=4,{arguments}", "--log_samples", "--output_path", output,
                   *more]
        environment = {**os.environ, "HF_HOME": str(self.folder / "hf_home")}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        [results] = self.folder.glob(f"{output}/**/results_*.json")
        samples = {path.name.split("_20")[0]: [json.loads(line) for line in path.read_text().splitlines()]
                   for path in self.folder.glob(f"{output}/**/samples_*.jsonl")}
        return json.loads(results.read_text())["results"], samples

    def check_harness(self, address):
        texts = [f"In the beginning was word number {i} of many." for i in range(0, 60, 3)] + ["def f7(x):  return x + 7"]
        prompts = [f"In the beginning was word number {i}" for i in range(6)]
        self.write("last_words.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.write("prompts.jsonl", "".join(json.dumps(prompt) + "\n" for prompt in prompts))
        lines = self.run_program("generate", "--model", "runs/chat", "--prompts", "prompts.jsonl", "--max-tokens", "12",
                                 "--temperature", "0", "--stop", "w").splitlines()
        continued = [{"prompt": prompt, "text": json.loads(line)["text"]} for prompt, line in zip(prompts, lines)]
        self.write("continuations.jsonl", "".join(json.dumps(row) + "\n" for row in continued))

        self.assertTrue(any(row["text"] for row in continued), continued)
        results, samples = self.evaluate("local-completions",
                                         f"base_url={address}/completions,tokenizer_backend=remote",
                                         "last_words,continuations", "scores")
        self.assertEqual(results["continuations"]["exact_match,none"], 1, samples["samples_continuations"])
        scores = self.score([[byte + 3 for byte in text.encode()] for text in texts])
        sums = [sum(row[len(text.rpartition(" ")[0].encode()) - 1:]) for text, row in zip(texts, scores)]
        logged = sorted(samples["samples_last_words"], key=lambda sample: sample["doc_id"])
        self.assertEqual(len(logged), len(texts))
        for sample, expected in zip(logged, sums):
            self.assertAlmostEqual(float(sample["resps"][0][0][0]), expected, delta=1e-4)
        self.assertAlmostEqual(math.log(results["last_words"]["perplexity,none"]), -sum(sums) / len(sums), delta=1e-4)

        # The same prompts as messages of a chat.
        _, samples = self.evaluate("local-chat-completions", f"base_url={address}/chat/completions", "continuations",
                                   "chat_scores", "--apply_chat_template")
        for sample in samples["samples_continuations"]:
            messages = [{"role": "user", "content": sample["doc"]["prompt"]}]
            answer = self.post(f"{address}/chat/completions",
                               {"messages": messages, "max_tokens": 12, "temperature": 0, "stop": ["w"]})
            self.assertEqual(sample["resps"][0][0], answer["choices"][0]["message"]["content"])

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
        self.check_harness(address)
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
        self.assertEqual(server.returncode, 0)
        self.generate()
        self.load_in_transformers()


if __name__ == "__main__":
    HALFLIFE = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
