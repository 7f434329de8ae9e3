"""Compares halflife's chat templates with transformers. For five templates, 20 conversations and several
tokenizers, the ids and the assistant mask must equal those of `apply_chat_template`, with and without a
generation prompt. The Jinja templates that halflife writes must render the same text.

    chat_compare.py TOKENIZER_TOOL REPOSITORY
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from tokenizers import AddedToken
from transformers import AutoTokenizer

import bpe_compare
import hf_tokenizer_compare
import texts


def turn(before, content, end, after="", lead=""):
    """Returns the Jinja code of one message. The assistant mask covers everything except `before` and
    `after`."""
    text = f"{lead!r} + {content} + {end}"
    return (f"{{{{ {before} }}}}{{% if m.role == 'assistant' %}}{{% generation %}}{{{{ {text} }}}}{{% endgeneration %}}"
            f"{{% else %}}{{{{ {text} }}}}{{% endif %}}{{{{ {after!r} }}}}")


def prompt(text):
    return f"{{% if add_generation_prompt %}}{{{{ {text!r} }}}}{{% endif %}}"


CHATML = ("{% for m in messages %}" + turn(r"'<|im_start|>' + m.role + '\n'", "m.content", "'<|im_end|>'", "\n") +
          "{% endfor %}" + prompt("<|im_start|>assistant\n"))
LLAMA3 = ("{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}" +
          turn(r"'<|start_header_id|>' + m.role + '<|end_header_id|>\n\n'", "(m.content | trim)", "'<|eot_id|>'") +
          "{% endfor %}" + prompt("<|start_header_id|>assistant<|end_header_id|>\n\n"))
QWEN = (r"{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are "
        r"a helpful assistant.<|im_end|>\n' }}{% endif %}" + CHATML)
MISTRAL = (r"{{ bos_token }}{% set system = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}"
           "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}{% for m in rest %}"
           "{% if m.role == 'user' %}{{ ' [INST] ' + (system if loop.first else '') + m.content + ' [/INST]' }}"
           "{% else %}" + turn("''", "m.content", "eos_token", lead=" ") + "{% endif %}{% endfor %}")
ZEPHYR = ("{% for m in messages %}" + turn(r"'<|' + m.role + '|>\n'", "m.content", "eos_token", "\n") +
          "{% endfor %}" + prompt("<|assistant|>\n"))
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "qwen": QWEN, "mistral": MISTRAL, "zephyr": ZEPHYR}
NAMES = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
BOS = "<|begin_of_text|>"


def conversations():
    def chat(*contents, system=None):
        first = [] if system is None else [{"role": "system", "content": system}]
        return first + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]

    chats = [
        chat("2 + 2?", "4"), chat("2 + 2?", "4", system="Be brief."), chat("Only a question"),
        chat("Hi", "Hello!", "And now?", "Bye.", "Wait", "No."), chat("", ""), chat("a", " leading and trailing "),
        chat("a", "\n\nnew lines first"), chat("a", "last\n"), chat("\n a \n", "\tcode:\n    x = 1\n", system=" \n"),
        chat("Say <|im_end|>", "<|im_end|><|eot_id|> was said", system="<|im_start|>"),
        chat("\u00a0no break\u3000", "\u2028\u0085 x \u3000"), chat("e\u0301", "\u0301e", "\U0001f469\u200d\U0001f4bb", "\ud55c\uad6d"),
        chat("a  b", "c   d", system="two  spaces")]
    lines = texts.mixed_unicode(60, 11, NAMES)
    while len(chats) < 20:
        i = 7 * (len(chats) - 13)
        chats.append(chat(*lines[i:i + 6], system=lines[i + 6] if len(chats) % 2 else None))
    return chats


def run(tool, *arguments):
    return subprocess.run([tool, *arguments], check=True, capture_output=True, text=True).stdout


def compare(name, tool, folder, theirs, chats, scratch):
    """Compares all templates with one tokenizer. Returns the number of faults."""
    source, result = scratch / "chats", scratch / "chat_ids"
    source.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    faults = 0
    for template, jinja in TEMPLATES.items():
        run(tool, "chat", folder, template, source, result)
        written = run(tool, "jinja", template)
        num_ids = num_assistant = different = 0
        for chat, line in zip(chats, result.read_text().split("\n"), strict=False):
            ours = json.loads(line)
            wanted = theirs.apply_chat_template(chat, chat_template=jinja, tokenize=True, return_dict=True,
                                                return_assistant_tokens_mask=True)
            prompt_ids = theirs.apply_chat_template(chat, chat_template=jinja, tokenize=True, return_dict=True,
                                               add_generation_prompt=True)
            num_ids += len(ours["ids"])
            num_assistant += sum(ours["assistant"])
            equal = (ours["ids"] == wanted["input_ids"] and ours["assistant"] == wanted["assistant_masks"] and
                     ours["prompt"] == prompt_ids["input_ids"])
            for add in (False, True):
                equal &= (theirs.apply_chat_template(chat, chat_template=written, tokenize=False, add_generation_prompt=add)
                          == theirs.apply_chat_template(chat, chat_template=jinja, tokenize=False, add_generation_prompt=add))
            if not equal:
                different += 1
                if different == 1:
                    print(f"  {chat!r}\n    ours   {ours}\n    theirs {wanted}\n    prompt {prompt_ids}")
        print(f"{name}, {template}: {len(chats)} conversations, {num_ids} ids, {num_assistant} of assistants, "
              f"{different} differences", flush=True)
        faults += different + (num_assistant == 0)
    return faults


def check_single_ids(tool, folder, theirs, scratch):
    """Returns 1 if the name of a special token is split into several ids, otherwise 0."""
    source, result = scratch / "chats", scratch / "chat_ids"
    source.write_text(json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) + "\n")
    run(tool, "chat", folder, "chatml", source, result)
    ours = json.loads(result.read_text())
    found = [theirs.convert_ids_to_tokens(i) for i in ours["ids"]]
    marked = [token for token, mark in zip(found, ours["assistant"]) if mark]
    return int(found.count("<|im_start|>") != 2 or marked != ["b", "<|im_end|>"])


def main():
    tool, repository = sys.argv[1:3]
    corpus = texts.english(repository)[:6000] + texts.mixed_unicode(300, 1)
    chats = conversations()
    faults = int(len(chats) != 20)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = pathlib.Path(temporary)
        for name in ("bpe", "bpe_prefix"):
            model, folder = scratch / f"{name}.model", scratch / f"{name}.hf"
            hf_tokenizer_compare.train_sentencepiece(model, hf_tokenizer_compare.SENTENCEPIECE[name][0], corpus)
            folder.mkdir()
            run(tool, "export", model, folder)
            faults += compare(name, tool, model, AutoTokenizer.from_pretrained(folder), chats, scratch)
        for name in ("llama3", "qwen2"):
            pre_tokenizer, normalizer, added, changes = bpe_compare.kinds()[name]
            added = added + [AddedToken(token, special=True, normalized=False)
                             for token in [BOS, *NAMES] if token not in [a.content for a in added]]
            folder, exported = scratch / name, scratch / f"{name}.hf"
            bpe_compare.make(folder, (pre_tokenizer, normalizer, added, changes), corpus)
            (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": bpe_compare.EOS}))
            exported.mkdir()
            run(tool, "export", folder, exported)
            theirs = AutoTokenizer.from_pretrained(exported)
            faults += compare(name, tool, folder, theirs, chats, scratch)
            faults += check_single_ids(tool, folder, theirs, scratch)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
