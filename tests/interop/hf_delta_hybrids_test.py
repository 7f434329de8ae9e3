#!/usr/bin/env python3
"""Tests that halflife import, score and export agree with transformers for hybrids of Gated DeltaNet and
softmax attention: Qwen3.5, Qwen3-Next without experts, OLMo Hybrid.

    .venv-compare/bin/python tests/interop/hf_delta_hybrids_test.py build/cpu/tests/engine_server
"""

import json
import random

import engine
import folder_checks as shared
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

# With matrices of standard deviation 0.2, transformers in fp32 differs from transformers in fp64 by up
# to 1.6e-3. With 0.1 the difference is 2e-5.
FRAME = {"vocab_size": shared.VOCAB, "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
         "initializer_range": 0.1, "max_position_embeddings": 256, "linear_num_key_heads": 2,
         "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12}
QWEN = FRAME | {"head_dim": 16}
OLMO = FRAME | {"pad_token_id": 0, "eos_token_id": 1}  # the class's own are beyond the vocabulary
QWEN_VARIANTS = {
    "plain": {},
    "biases_tied": {"attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    "other_layers": {"num_hidden_layers": 5, "linear_conv_kernel_dim": 3,
                     "layer_types": ["full_attention", "linear_attention", "full_attention",
                                     "full_attention", "linear_attention"]},
    "an_interval_of_two": {"full_attention_interval": 2, "linear_conv_kernel_dim": 1, "linear_num_key_heads": 1,
                           "linear_num_value_heads": 3},
    "heads_without_groups": {"linear_num_value_heads": 2, "linear_key_head_dim": 10,
                             "linear_value_head_dim": 7, "num_key_value_heads": 4},
    "half_of_a_head_turns": {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0,
                                                 "partial_rotary_factor": 0.5}},
    "a_key_outside": {"partial_rotary_factor": 1.0},
    "an_odd_number_of_channels": {"partial_rotary_factor": 0.2},
    "yarn": {"rope_parameters": shared.ROPE_SCALINGS["yarn"] | {"partial_rotary_factor": 0.75}},
    "only_linear_attention": {"layer_types": ["linear_attention"] * 4},
    "only_softmax_attention": {"layer_types": ["full_attention"] * 4},
}
OLMO_VARIANTS = {
    "plain": {},
    "biases_tied": {"attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    "no_rotation": {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
    "other_layers": {"num_hidden_layers": 5, "linear_allow_neg_eigval": False,
                     "linear_conv_kernel_dim": 3,
                     "layer_types": ["full_attention", "linear_attention", "linear_attention",
                                     "full_attention", "linear_attention"]},
    "default_widths": {"linear_num_key_heads": None, "linear_num_value_heads": None,
                         "linear_key_head_dim": None, "linear_value_head_dim": None,
                         "num_key_value_heads": None, "num_hidden_layers": 3},
    "equal_widths": {"linear_value_head_dim": 8, "linear_num_value_heads": 2,
                     "rope_parameters": {"rope_type": "default", "rope_theta": 700.0}},
}


def random_sizes(seed):
    """Returns the sizes of a small model that differ from all lists above."""
    rng = random.Random(seed)
    key_heads, kv_heads = rng.choice([1, 2, 3]), rng.choice([1, 2])
    layers = rng.randint(2, 5)
    types = [rng.choice(["linear_attention", "full_attention"]) for _ in range(layers)]
    types[0], types[1] = rng.sample(["linear_attention", "full_attention"], 2)
    return {"hidden_size": 8 * rng.randint(2, 6), "intermediate_size": rng.randint(5, 70),
            "num_hidden_layers": layers, "layer_types": types,
            "num_key_value_heads": kv_heads, "num_attention_heads": kv_heads * rng.randint(1, 3),
            "linear_num_key_heads": key_heads,
            "linear_num_value_heads": key_heads * rng.randint(1, 3),
            "linear_key_head_dim": rng.randint(3, 17), "linear_value_head_dim": rng.randint(3, 17),
            "linear_conv_kernel_dim": rng.randint(1, 5), "attention_bias": rng.random() < 0.5,
            "tie_word_embeddings": rng.random() < 0.5, "rms_norm_eps": 10 ** rng.uniform(-6, -3)}


class DeltaHybrids(shared.FolderChecks):
    @staticmethod
    def log_probs_of(model):
        model.config.use_cache = False  # transformers fails on a cache without softmax layers
        return shared.FolderChecks.log_probs_of(model)

    def make_folder(self, model_type, config):
        """Writes a folder with the tensor names of published models, which save_pretrained of olmo_hybrid
        changes."""
        torch.manual_seed(9)
        config = {key: value for key, value in config.items() if value is not None}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **config))
        model = model.float().eval()
        self.move_vectors(model)
        folder = self.dir / "original"
        folder.mkdir()
        tensors = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
        if config.get("tie_word_embeddings"):
            del tensors["lm_head.weight"]
        if model_type == "olmo_hybrid":
            for name in [name for name in tensors if name.endswith("conv1d.weight")]:
                attention = model.model.layers[int(name.split(".")[2])].linear_attn
                widths = [attention.key_dim, attention.key_dim, attention.value_dim]
                for part, rows in zip("qkv", tensors.pop(name).split(widths)):
                    tensors[name.replace("conv1d", part + "_conv1d")] = rows.contiguous()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        return folder, model

    def check(self, model_type, config):
        folder, model = self.make_folder(model_type, config)
        exported = self.check_exported_folder(folder, self.log_probs_of(model), type(model),
                                     ("--model-type", model_type))
        self.check_same_tensors(folder, exported)
        theirs, ours = (AutoConfig.from_pretrained(path).to_dict() for path in (folder, exported))
        keys = FRAME.keys() | {"layer_types", "attention_bias", "linear_conv_kernel_dim"}
        if "full_attention" not in theirs["layer_types"]:  # sizes that no layer has are not kept
            keys -= {"num_attention_heads", "num_key_value_heads", "attention_bias"}
        for key in keys:
            self.assertEqual(ours[key], theirs[key], key)
        return folder, exported

    def test_qwen(self):
        for model_type, more in (("qwen3_5_text", {}), ("qwen3_next", {"num_experts": 0})):
            for name, variant in QWEN_VARIANTS.items():
                with self.fresh(model_type + "_" + name):
                    self.check(model_type, QWEN | variant | more)

    def test_olmo(self):
        for name, variant in OLMO_VARIANTS.items():
            with self.fresh(name):
                self.check("olmo_hybrid", OLMO | variant)

    def test_random_sizes(self):
        for seed in range(4):
            for model_type in ("qwen3_5_text", "qwen3_next", "olmo_hybrid"):
                with self.fresh(f"{model_type}_{seed}"):
                    sizes = FRAME | random_sizes(seed)
                    if model_type == "olmo_hybrid":
                        sizes |= {"pad_token_id": 0, "eos_token_id": 1}
                        sizes["hidden_size"] = 4 * sizes["num_attention_heads"]
                    else:
                        sizes |= {"head_dim": 2 * random.Random(seed).randint(4, 9), "num_experts": 0,
                                  "partial_rotary_factor": random.Random(seed).uniform(0.25, 1)}
                    if model_type == "qwen3_5_text":
                        del sizes["num_experts"]
                    self.check(model_type, sizes)

    def test_a_null_partial_rotary_factor_rotates_whole_heads(self):
        folder, model = self.make_folder("qwen3_5_text", QWEN | {"partial_rotary_factor": 1.0})
        shared.change_config(folder, lambda config: (config.pop("rope_parameters"),
                                                     config.update(partial_rotary_factor=None)))
        theirs = AutoModelForCausalLM.from_pretrained(folder).float().eval()
        want = self.log_probs_of(theirs)
        self.assertLess(shared.max_difference(self.log_probs_of(model), want), 1e-5)
        self.check_exported_folder(folder, want, type(theirs))

    def test_the_exported_class_is_chosen_automatically(self):
        for model_type, config, wanted in (("qwen3_5_text", QWEN, "qwen3_5_text"),
                                           ("qwen3_next", QWEN | {"num_experts": 0}, "qwen3_5_text"),
                                           ("olmo_hybrid", OLMO, "olmo_hybrid")):
            with self.fresh(model_type):
                folder, model = self.make_folder(model_type, config)
                exported = self.check_round_trips(folder, self.log_probs_of(model))
                self.assertEqual(json.loads((exported / "config.json").read_text())["model_type"], wanted)

    def test_layers_by_an_interval(self):
        """Older folders have no layer_types."""
        folder, model = self.make_folder("qwen3_5_text", QWEN | {"full_attention_interval": 3})
        for interval in (3, None):
            if interval is None:  # the default, 4
                folder, model = (self.tearDown(), self.setUp(), self.make_folder("qwen3_5_text", QWEN))[2]
            shared.change_config(folder, lambda config: (config.pop("layer_types"),
                                                         config.update(full_attention_interval=interval)))
            got = shared.score(folder, shared.sequences(), self.dir)
            self.assertLess(shared.max_difference(got, self.log_probs_of(model)), shared.TOLERANCE)

    def test_a_published_folder_that_also_sees_images(self):
        """Sizes are in text_config, and other tensors are skipped."""
        folder, model = self.make_folder("qwen3_5_text", QWEN)
        want = self.log_probs_of(model)

        def rename(weights):
            for name in [name for name in weights if name.startswith("model.")]:
                weights[name.replace("model.", "model.language_model.", 1)] = weights.pop(name)
            weights["model.visual.patch_embed.proj.weight"] = torch.zeros(2, 3)
            weights["mtp.fc.weight"] = torch.zeros(4)

        shared.change_weights(folder, rename)
        text = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({
            "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"],
            "image_token_id": 5, "vision_config": {"depth": 2}, "text_config": text,
            "tie_word_embeddings": None}))
        exported = self.check_round_trips(folder, want)
        back = AutoModelForCausalLM.from_pretrained(exported).float().eval()
        self.assertEqual(back.config.model_type, "qwen3_5_text")
        self.assertLess(shared.max_difference(self.log_probs_of(back), want), shared.TOLERANCE)
        shared.change_config(folder, lambda config: config.pop("text_config"))
        output = engine.halflife("import", "--from", folder, "--out", self.dir / "run3", code=3)
        self.assertIn("config.json has no text_config, the object with the sizes of a qwen3_5 model. Add", output)

    def test_a_folder_that_transformers_saved(self):
        """save_pretrained of olmo_hybrid divides convolutions into equal parts and renames norms."""
        folder, model = self.make_folder("olmo_hybrid", OLMO)
        want = self.log_probs_of(model)
        saved = self.dir / "saved"
        model.save_pretrained(saved)
        names = shared.shapes_of(saved)
        self.assertIn("model.layers.0.attention_layer_norm.weight", names)
        self.assertEqual(names["model.layers.0.linear_attn.q_conv1d.weight"][0], (16 + 16 + 48) // 3 + 1)
        for i, source in enumerate((folder, saved)):
            self.assertLess(shared.max_difference(shared.score(source, shared.sequences(), self.dir), want),
                            shared.TOLERANCE)
            engine.halflife("import", "--from", source, "--out", self.dir / f"run{i}")
            engine.halflife("export", "--run", self.dir / f"run{i}", "--out", self.dir / f"exported{i}")
        self.assertEqual(*(shared.files_of(self.dir / f"exported{i}") for i in range(2)))
        shared.change_weights(saved, lambda weights: weights.pop("model.layers.0.linear_attn.k_conv1d.weight"))
        output = engine.halflife("import", "--from", saved, "--out", self.dir / "run", code=3)
        self.assertIn("missing: model.layers.0.linear_attn.k_conv1d.weight", output)

    def test_folders_that_are_refused(self):
        cases = (
            ("qwen3_next", QWEN | {"num_experts": 0}, {"num_experts": 4},
             "num_experts is 4, and layer 0 has experts. Use a model without experts (num_experts 0)"),
            ("qwen3_next", QWEN | {"num_experts": 0}, {"num_experts": None},
             "num_experts is 512, and layer 0 has experts."),
            ("qwen3_5_text", QWEN, {"layer_types": ["linear_attention"] * 3 + ["sliding_attention"]},
             'layer_types has "sliding_attention" for layer 3. Use a model that has only'),
            ("qwen3_5_text", QWEN, {"layer_types": ["linear_attention"]},
             "layer_types is not a list with one name for each of the 4 layers. Correct"),
            ("qwen3_5_text", QWEN, {"hidden_act": "gelu"}, "hidden_act is 'gelu'. Only silu"),
            ("qwen3_5_text", QWEN, {"rope_parameters": {"partial_rotary_factor": 1.5}},
             "rope_parameters.partial_rotary_factor is 1.5 with heads of 16 channels. Use a number"),
            ("qwen3_5_text", QWEN, {"rope_parameters": shared.ROPE_SCALINGS["yarn"] | {
                "partial_rotary_factor": 0.2}},
             "rope_parameters.yarn rotates 3 channels of each head. Use a partial_rotary_factor that"),
            ("olmo_hybrid", OLMO, {"layer_types": ["linear_attention"] * 4},
             "layer_types has 0 of 4 layers of full_attention. Use a model that has full_attention and"),
            ("olmo_hybrid", OLMO, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5."),
        )
        for model_type, config, change, message in cases:
            with self.fresh(message):
                folder, _ = self.make_folder(model_type, config)
                shared.change_config(folder, lambda written: written.update(change))
                output = engine.halflife("import", "--from", folder, "--out", self.dir / "run", code=3)
                self.assertIn(message, output)

    def test_layers_with_experts_that_are_all_excluded(self):
        folder, model = self.make_folder("qwen3_next", QWEN | {"num_experts": 0})
        for keys in ({"num_experts": 4, "mlp_only_layers": [3, 1, 0, 2]},
                     {"num_experts": 4, "mlp_only_layers": [1, 3], "decoder_sparse_step": 2}):
            shared.change_config(folder, lambda config: config.update(keys))
            got = shared.score(folder, shared.sequences(), self.dir)
            self.assertLess(shared.max_difference(got, self.log_probs_of(model)), shared.TOLERANCE)

    def test_models_that_no_class_expresses(self):
        folder, _ = self.make_folder("olmo_hybrid", OLMO)
        engine.halflife("import", "--from", folder, "--out", self.dir / "run")
        output = engine.halflife("export", "--run", self.dir / "run", "--out", self.dir / "exported",
                               "--model-type", "qwen3_5_text", code=2)
        for line in ("the norm is not zero_centered", "hybrid layers have a block of their own",
                     "allow_neg_eigval is true. Only false is supported.",
                     "in the softmax layers, output_gate is none. Only sigmoid is supported.",
                     "qk_norm_over is all_heads. Only head is supported."):
            self.assertIn("qwen3_5_text: " + line, output)

    def test_irregular_layers_are_reported(self):
        for name, warned in (("plain", False), ("other_layers", True)):
            with self.fresh(name):
                folder, _ = self.make_folder("qwen3_5_text", QWEN | QWEN_VARIANTS[name])
                engine.halflife("import", "--from", folder, "--out", self.dir / "run")
                output = engine.halflife("export", "--run", self.dir / "run", "--out", self.dir / "exported")
                self.assertEqual("SGLang reads only full_attention_interval" in output, warned)

    def test_tokenizers(self):
        """Byte tokenizers are exported in the form that the class loads."""
        for model_type, config in (("qwen3_5_text", QWEN), ("olmo_hybrid", OLMO)):
            with self.fresh(model_type):
                folder, _ = self.make_folder(model_type, config | {"vocab_size": 259})
                (folder / "tokenizer_config.json").write_text(
                    json.dumps({"tokenizer_class": "ByT5Tokenizer", "extra_ids": 0}))
                engine.halflife("import", "--from", folder, "--out", self.dir / "run")
                engine.halflife("export", "--run", self.dir / "run", "--out", self.dir / "exported")
                theirs = AutoTokenizer.from_pretrained(self.dir / "exported")
                self.assertEqual(theirs("a\n", add_special_tokens=False).input_ids, [ord("a") + 3, 13])


if __name__ == "__main__":
    engine.main()
