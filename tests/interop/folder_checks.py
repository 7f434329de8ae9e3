"""What the tests of Hugging Face folders share: running halflife, scores, and a base class that checks a
folder by importing and exporting it."""

import json
import pathlib
import sys

from engine import EngineTest, halflife

try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM
except ImportError as error:
    print(f"SKIPPED: {pathlib.Path(sys.argv[0]).stem}: {error} (launch/setup --tests)")
    sys.exit(77)

# Both sides compute two or three layers in fp32. The difference is the rounding of logits of order 10
# and of sums over 200 tokens.
TOLERANCE = 2e-4
VOCAB = 61
LENGTHS = (2, 29, 64, 65, 200)
# Rotations of texts of up to 200 tokens, for models that were trained on 64.
ROPE_SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 2.5, "rope_theta": 700.0},
    "linear_below_1": {"rope_type": "linear", "factor": 0.5, "rope_theta": 700.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64, "rope_theta": 500000.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    # The factor is max_position_embeddings / original_max_position_embeddings.
    "yarn_without_a_factor": {"rope_type": "yarn", "factor": None,
                              "original_max_position_embeddings": 64},
    "yarn_ramp_between_pairs": {"rope_type": "yarn", "factor": 4.0, "truncate": False, "beta_fast": 8,
                                "beta_slow": 2, "original_max_position_embeddings": 64,
                                "attention_factor": 1.2},
    "yarn_with_mscales": {"rope_type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 0.5,
                          "original_max_position_embeddings": 64},
}


def sequences():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in LENGTHS]


def score(model, ids, folder, *more):
    (folder / "ids.json").write_text(json.dumps(ids))
    halflife("score", "--model", model, "--tokens", folder / "ids.json", "--out",
             folder / "scores.jsonl", "--threads", 1, *more)
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert [line["ids"] for line in lines] == ids
    return [torch.tensor(line["logprobs"], dtype=torch.float64) for line in lines]


def max_difference(got, want):
    assert [x.shape for x in got] == [x.shape for x in want]
    # The maximum of a tensor is NaN if an element is NaN. Python's max() may ignore a NaN.
    return float(torch.stack([(a - b).abs().max() for a, b in zip(got, want)]).max())


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def shapes_of(folder):
    names = {}
    for path in folder.glob("*.safetensors"):
        names |= {name: list(tensor.shape) for name, tensor in load_file(path).items()}
    return names


def change_config(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


class FolderChecks(EngineTest):
    def check_round_trips(self, folder, want, *export_options):
        """Imports and exports the folder twice. All scores must be equal, and both exported folders must
        have the same bytes."""
        ids = sequences()
        of_folder = score(folder, ids, self.dir)
        self.assertLess(max_difference(of_folder, want), TOLERANCE)
        run, exported = self.dir / "run", self.dir / "exported"
        halflife("import", "--from", folder, "--out", run)
        in_pieces = score(run, ids, self.dir, "--piece", 16, "--batch-tokens", 40)
        self.assertLess(max_difference(in_pieces, of_folder), 1e-4)
        halflife("export", "--run", run, "--out", exported, *export_options)
        self.assertLess(max_difference(score(exported, ids, self.dir), of_folder), 1e-5)
        halflife("import", "--from", exported, "--out", self.dir / "run2")
        halflife("export", "--run", self.dir / "run2", "--out", self.dir / "exported2", *export_options)
        self.assertEqual(files_of(exported), files_of(self.dir / "exported2"))
        return exported

    def write_folder(self, config, weights):
        folder = self.dir / "original"
        folder.mkdir()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def make_model_folder(self, seed, model_type, **config):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **config)).float().eval()
        self.move_vectors(model)
        folder = self.dir / "original"
        model.save_pretrained(folder, safe_serialization=True)
        return folder, model

    @staticmethod
    def move_vectors(model):
        """Sets biases and norms to values other than 0 and 1."""
        for parameter in model.parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter.data, float(parameter.data.mean()), 0.2)

    def check_same_tensors(self, folder, exported, renamed=("", "")):
        theirs = {name.replace(*renamed): tensor
                  for name, tensor in load_file(folder / "model.safetensors").items()}
        ours = load_file(exported / "model.safetensors")
        self.assertEqual(theirs.keys(), ours.keys())
        for key, tensor in theirs.items():
            self.assertTrue(torch.equal(tensor, ours[key]), key)

    def check_exported_folder(self, folder, want, of_class=LlamaForCausalLM, export_options=()):
        exported = self.check_round_trips(folder, want, *export_options)
        back, loading = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
        self.assertIsInstance(back, of_class)
        for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(loading[fault], fault)
        self.assertLess(max_difference(self.log_probs_of(back.float().eval()), want), TOLERANCE)
        return exported

    @staticmethod
    def log_probs_of(model):
        # The cache of rwkv stores only hidden_size channels.
        options = {"use_cache": False} if model.config.model_type == "rwkv" else {}
        rows = []
        for ids in sequences():
            with torch.no_grad():
                logits = model(torch.tensor([ids]), **options).logits[0].double()
            rows.append(logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0])
        return rows
