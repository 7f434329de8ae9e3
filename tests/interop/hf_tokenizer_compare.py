"""Checks that transformers' AutoTokenizer gives the same ids for exported tokenizer folders, also for text
with the names of special tokens. Special tokens must be in the vocabulary, chat templates must be kept, texts
must begin with bos where they do in transformers, Llama's classes must add the same spaces in front of text, and
halflife must give the same ids for the exported folder.

    hf_tokenizer_compare.py TOKENIZER_TOOL REPOSITORY
"""

import io
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import sentencepiece
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer

import bpe_compare
import texts

# Without tokenizer_class, transformers would choose a class that builds another tokenizer.
MODEL_TYPES = ["llama", "gpt2", "mamba2", "retnet", None]
SPECIALS = ["<unk>", "<s>", "</s>", "<pad>", bpe_compare.EOS]

PLAIN = dict(normalization_rule_name="identity", add_dummy_prefix=False,
             remove_extra_whitespaces=False)
# name -> options of the trainer, and how many lines in a thousand may differ. The score of a path of a
# unigram model is a sum of floats, so its last bit may decide between two paths of equal score.
SENTENCEPIECE = {
    "unigram": (dict(PLAIN, model_type="unigram", bos_id=-1, pad_id=0, eos_id=1, unk_id=2), 1),
    "bpe": (dict(PLAIN, model_type="bpe", bos_id=1, eos_id=2, unk_id=0), 0),
    "bpe_prefix": (dict(normalization_rule_name="identity", add_dummy_prefix=True,
                        remove_extra_whitespaces=False, model_type="bpe", pad_id=3), 0),
    "bpe_collapse": (dict(normalization_rule_name="identity", model_type="bpe",
                          byte_fallback=False), 0),
}


def train_sentencepiece(path, options, corpus):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=model, minloglevel=2,
        **{"vocab_size": 2000, "byte_fallback": True, "hard_vocab_limit": False,
           "character_coverage": 0.98, **options})
    path.write_bytes(model.getvalue())


CHAT_TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|endoftext|>\n"
                 "{% endfor %}")
CHAT = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
CHAT_TEXT = "<|im_start|>user\n2 + 2?<|endoftext|>\n<|im_start|>assistant\n4<|endoftext|>\n"


def encode(tool, tokenizer, lines, scratch, special_tokens="plain"):
    source, result = scratch / "lines", scratch / "ids"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    subprocess.run([tool, "encode", tokenizer, source, result, special_tokens], check=True)
    return [json.loads(line)["ids"] for line in result.read_text().split("\n")[:-1]]


def check(name, tool, tokenizer, allowed_per_thousand, lines, scratch):
    """Returns the number of faults."""
    folder = scratch / f"{name}.hf"
    folder.mkdir()
    special = json.loads(subprocess.run([tool, "export", tokenizer, folder], check=True,
                                        capture_output=True, text=True).stdout)
    wanted = encode(tool, tokenizer, lines, scratch)
    faults = 0
    for model_type in MODEL_TYPES:
        config = folder / "config.json"
        config.unlink(missing_ok=True)
        if model_type:
            config.write_text(json.dumps({"model_type": model_type}))
        theirs = AutoTokenizer.from_pretrained(folder)
        sample = lines if model_type == "llama" else lines[:200]
        ids = [theirs(line, add_special_tokens=False).input_ids for line in sample]
        different = [i for i, found in enumerate(ids) if found != wanted[i]]
        if len(different) * 1000 > allowed_per_thousand * len(sample):
            faults += 1
        print(f"{name}, {model_type}: {len(sample)} lines, {len(different)} differences", flush=True)
        for i in different[:2]:
            print(f"  {lines[i]!r}\n    ours   {wanted[i]}\n    theirs {ids[i]}")
        facts = {"vocab_size": len(theirs), "bos": theirs.bos_token_id, "eos": theirs.eos_token_id,
                 "pad": theirs.pad_token_id}
        for key, value in facts.items():
            if (-1 if value is None else value) != special[key]:
                faults += 1
                print(f"{name}, {model_type}: {key} is {value} in transformers, {special[key]} in halflife")
    if encode(tool, folder, lines, scratch) != wanted:
        faults += 1
        print(f"{name}: halflife gives different ids for the exported folder")
    second = scratch / f"{name}.second"
    second.mkdir()
    subprocess.run([tool, "export", folder, second], check=True, capture_output=True)
    for path in second.iterdir():
        if path.read_bytes() != (folder / path.name).read_bytes():
            faults += 1
            print(f"{name}: {path.name} differs after a second export")
    return faults


def check_names(name, tool, tokenizer, allowed_per_thousand, scratch):
    """Returns the number of faults on lines with the names of special tokens."""
    theirs = AutoTokenizer.from_pretrained(scratch / f"{name}.hf")
    lines = texts.mixed_unicode(1000, 5, SPECIALS)
    ids = [theirs(line, add_special_tokens=False).input_ids for line in lines]
    wanted = encode(tool, tokenizer, lines, scratch, "parse")
    different = [i for i, found in enumerate(ids) if found != wanted[i]]
    print(f"{name}, names of special tokens: {len(lines)} lines, {len(different)} differences")
    for i in different[:2]:
        print(f"  {lines[i]!r}\n    ours   {wanted[i]}\n    theirs {ids[i]}")
    return int(len(different) * 1000 > allowed_per_thousand * len(lines))


def check_chat(folder, tool, scratch):
    """Returns the number of faults in the exported chat template of `folder` and in the ids of a chat."""
    theirs = AutoTokenizer.from_pretrained(scratch / f"{folder.name}.hf")
    text = theirs.apply_chat_template(CHAT, tokenize=False)
    ids = theirs.apply_chat_template(CHAT, return_dict=False)
    ours = encode(tool, folder, [text], scratch, "parse")[0]
    print(f"{folder.name}, chat: {len(ours)} ids")
    return int(text != CHAT_TEXT) + int(ours != ids)


BOS = "<|begin_of_text|>"


def add_bos_template(folder):
    """Makes texts of a byte-level BPE folder begin with bos, as Llama 3's do."""
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_special_tokens([BOS])
    template = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B",
                                             special_tokens=[(BOS, tokenizer.token_to_id(BOS))])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    tokenizer.save(path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": bpe_compare.EOS}))


def check_bos(folder, tool, lines, scratch):
    """Returns the number of faults in whole texts of `folder`, whose texts begin with bos, and of its export."""
    exported = scratch / f"{folder.name}.bos"
    exported.mkdir()
    subprocess.run([tool, "export", folder, exported], check=True, capture_output=True)
    theirs = AutoTokenizer.from_pretrained(exported)
    wanted = [theirs(line).input_ids for line in lines]
    faults = sum(ids[0] != theirs.bos_token_id for ids in wanted)
    for ours in (folder, exported):
        faults += sum(a != b for a, b in zip(encode(tool, ours, lines, scratch, "whole"), wanted, strict=True))
    print(f"{folder.name}, texts from bos on: {len(lines)} lines, {faults} faults")
    return faults


# Options of tokenizer_config.json that decide where spaces are added in front of text.
LLAMA_CLASSES = [
    {"tokenizer_class": "LlamaTokenizer"},
    {"tokenizer_class": "LlamaTokenizer", "legacy": True},
    {"tokenizer_class": "LlamaTokenizerFast", "legacy": False},
    {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False},
    {"tokenizer_class": "CodeLlamaTokenizer"},
]
LLAMA_CHAT = ("{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
              "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}")


def check_llama_classes(exported, tool, lines, scratch):
    """Returns the number of faults in folders of Llama's classes and in their exports, on lines with the names of
    special tokens and on a chat. The vocabulary is that of `exported`."""
    faults = 0
    for number, options in enumerate(LLAMA_CLASSES):
        folder, second = scratch / f"llama_class{number}", scratch / f"llama_class{number}.hf"
        shutil.copytree(exported, folder)
        second.mkdir()
        config = json.loads((folder / "tokenizer_config.json").read_text()) | options
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        subprocess.run([tool, "export", folder, second], check=True, capture_output=True)
        theirs = AutoTokenizer.from_pretrained(folder)
        chat = theirs.apply_chat_template(CHAT, chat_template=LLAMA_CHAT, tokenize=False)
        sample = [*lines, chat, f" {chat}", "", " ", "</s>", "a</s>b</s> c"]
        wanted = [theirs(line, add_special_tokens=False).input_ids for line in sample]
        again = AutoTokenizer.from_pretrained(second)
        answers = {"ours": encode(tool, folder, sample, scratch, "parse"),
                   "ours for the export": encode(tool, second, sample, scratch, "parse"),
                   "theirs for the export": [again(line, add_special_tokens=False).input_ids for line in sample]}
        for name, ids in answers.items():
            different = [i for i, found in enumerate(ids) if found != wanted[i]]
            faults += len(different)
            print(f"{options}, {name}: {len(sample)} lines, {len(different)} differences", flush=True)
            for i in different[:2]:
                print(f"  {sample[i]!r}\n    {ids[i]}\n    theirs {wanted[i]}")
    return faults


def main():
    tool, repository = sys.argv[1:3]
    english = texts.english(repository)
    corpus = english[:6000] + texts.mixed_unicode(300, 1)
    lines = [line for line in texts.mixed_unicode(3000, 3) if not any(s in line for s in SPECIALS)]
    lines += english[:3000:2] + ["", " ", "  two  spaces  ", "trailing "]
    faults = 0
    with tempfile.TemporaryDirectory() as temporary:
        scratch = pathlib.Path(temporary)
        faults += check("bytes", tool, "bytes", 0, lines, scratch)
        for name, (options, allowed) in SENTENCEPIECE.items():
            model = scratch / f"{name}.model"
            train_sentencepiece(model, options, corpus)
            faults += check(name, tool, model, allowed, lines, scratch)
            faults += check_names(name, tool, model, allowed, scratch)
        faults += check_llama_classes(scratch / "bpe_prefix.hf", tool, texts.mixed_unicode(500, 7, SPECIALS), scratch)
        for name in ("gpt2", "llama3", "qwen2"):
            folder = scratch / name
            bpe_compare.make(folder, bpe_compare.kinds()[name], corpus)
            (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
            faults += check(name, tool, folder, 0, lines, scratch)
            faults += check_names(name, tool, folder, 0, scratch)
            faults += check_chat(folder, tool, scratch)
        mistral = scratch / "mistral"
        mistral.mkdir()
        (mistral / "tokenizer.model").write_bytes((scratch / "bpe.model").read_bytes())
        (mistral / "tokenizer_config.json").write_text('{"add_bos_token": true}')
        add_bos_template(scratch / "llama3")
        for folder in (mistral, scratch / "llama3"):
            faults += check_bos(folder, tool, lines[:200] + [""], scratch)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
