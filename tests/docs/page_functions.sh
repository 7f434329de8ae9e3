# shellcheck shell=bash
# Functions that create the files that the commands of a page read. run_pages_test.py sources this
# file in the empty folder of a page.

cp -r "$REPOSITORY/launch" .
sed -i -E 's/steps: (600|1000)$/steps: 6/; s/model_dim: 192/model_dim: 32/; s/num_layers: [46]/num_layers: 2/
  s/warmup_steps: [0-9]+/warmup_steps: 2/; s/ every: [0-9]+/ every: 6/g; s/windows: 64/windows: 4/' \
  launch/recipes/quickstart.textproto launch/recipes/gau_bytes.textproto

# make_text FILE [LINES]: writes lines of varied text to a file.
make_text() {
  mkdir -p "$(dirname "$1")"
  awk -v n="${2:-400}" 'BEGIN { for (i = 1; i <= n; ++i) print "Line " i ": once upon a time, " i * 7919 % 1009 " words were read." }' >"$1"
}

# first_model RUN [MIXER]: trains a small model with one mixer on datasets/mine.
first_model() {
  [ -e texts/book.txt ] || make_text texts/book.txt
  if ! [ -e datasets/mine ]; then
    halflife prepare --input texts/ --tokenizer bytes --out datasets/mine
  fi
  halflife train --config launch/recipes/quickstart.textproto --set data.path=datasets/mine --set data.seq_len=128 \
    --set model.mixer="${2:-gla}" --run "$1"
}

# a_llama FOLDER: creates a Hugging Face folder with a small Llama.
a_llama() {
  first_model runs/made_for_"$(basename "$1")" softmax
  halflife export --run runs/made_for_"$(basename "$1")" --out "$1"
}
