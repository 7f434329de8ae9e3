// halflife.Model: scores, logits and generated text.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>

#include "bindings.h"
#include "cli/model_source.h"
#include "core/concat.h"
#include "core/error.h"
#include "eval/scorer.h"
#include "infer/generator.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace halflife::python {
namespace {

using Ids = std::vector<int32_t>;
using TextOrIds = std::variant<std::string, Ids>;
using IdRows = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

class Model {
 public:
  Model(const std::filesystem::path& path, const std::string& tokenizer, const std::string& device,
        const std::string& precision, int threads) {
    HL_CHECK_AS(ExitCode::kUsage, precision == "fp32" || precision == "bf16", "the precision '",
                precision, "' is unknown. Use 'fp32' or 'bf16'.");
    HL_CHECK_AS(ExitCode::kUsage, device == "auto" || device == "cpu" || device == "cuda",
                "the device '", device, "' is unknown. Use 'auto', 'cpu' or 'cuda'.");
    HL_CHECK_AS(ExitCode::kUsage, threads >= 0, "threads is ", threads,
                ". Use a number of threads, or 0 to leave their number as it is.");
    const nb::gil_scoped_release release;
    if (threads > 0) at::set_num_threads(threads);
    loaded_ = cli::LoadAnyModel(path, tokenizer,
                                cli::PlacementOf({.device = device, .precision = precision}));
    tokenizer_ = std::move(loaded_.tokenizer);
  }

  const model::LanguageModel& model() const { return *loaded_.model; }
  const SharedTokenizer& tokenizer() const { return tokenizer_; }
  std::string path() const { return loaded_.path.string(); }
  int64_t step() const { return static_cast<int64_t>(loaded_.state.step); }

  Ids ToIds(const TextOrIds& input) const {
    if (const Ids* ids = std::get_if<Ids>(&input)) return *ids;
    // As `score --text` and `generate --prompt` read texts by default.
    return RequireTokenizer().EncodeText(std::get<std::string>(input), data::SpecialTokens::kParse);
  }

  std::vector<std::vector<float>> Score(const std::vector<TextOrIds>& inputs,
                                        const eval::ScoreConfig& config) const {
    HL_CHECK_AS(ExitCode::kUsage, config.piece > 0 && config.batch_tokens > 0, "piece is ",
                config.piece, " and batch_tokens is ", config.batch_tokens,
                ". Use numbers of at least 1.");
    std::vector<Ids> sequences;
    std::vector<size_t> lengths;
    for (const TextOrIds& input : inputs) {
      sequences.push_back(ToIds(input));
      lengths.push_back(sequences.back().size());
    }
    const nb::gil_scoped_release release;
    std::vector<std::vector<float>> scores(sequences.size());
    for (const std::vector<size_t>& batch : eval::ScoreBatches(lengths, config)) {
      std::vector<std::span<const int32_t>> rows;
      for (const size_t i : batch) rows.emplace_back(sequences[i]);
      std::vector<std::vector<float>> of_batch = eval::ScoreBatch(model(), rows, config);
      for (size_t r = 0; r < batch.size(); ++r) scores[batch[r]] = std::move(of_batch[r]);
    }
    return scores;
  }

  // ids [B, T] -> logits [B, T, vocab]. Every row is one document.
  std::vector<float> Logits(const IdRows& ids) const {
    HL_CHECK_AS(ExitCode::kUsage, !model().objective().classifier(), "the model's objective is ",
                config().objective.name(),
                ", which has logits of classes and none of tokens. Use `halflife eval` to score "
                "its classes, or a model with the objective next_token or masked_token.");
    const auto rows = static_cast<int64_t>(ids.shape(0)),
               length = static_cast<int64_t>(ids.shape(1));
    for (int64_t i = 0; i < rows * length; ++i)
      HL_CHECK_AS(ExitCode::kUsage, ids.data()[i] >= 0 && ids.data()[i] < config().vocab_size,
                  "id ", ids.data()[i], " is outside of the model's vocabulary of ",
                  config().vocab_size, ". Use the model's own tokenizer.");
    HL_CHECK_AS(ExitCode::kUsage, rows > 0 && length > 0, "there are no ids. Give at least one.");
    model().RequirePosition(length - 1);
    const nb::gil_scoped_release release;
    const at::NoGradGuard no_grad;
    const at::Tensor tokens =
        at::from_blob(const_cast<int64_t*>(ids.data()), {rows, length}, at::kLong)
            .to(model().device());
    const auto slice = model::SequenceSlice::Contiguous(rows, length, 0, model().device());
    const at::Tensor logits =
        model().Logits(model().Hidden(tokens, {.slice = &slice})).to(at::kCPU).contiguous();
    std::vector<float> values(static_cast<size_t>(logits.numel()));
    std::memcpy(values.data(), logits.const_data_ptr<float>(), logits.nbytes());
    return values;
  }

  // Calls `on_token` for each new token, with the GIL, until it returns false.
  void Generate(const TextOrIds& prompt, infer::GenerateConfig config, bool ignore_eos,
                const std::function<bool(int32_t)>& on_token) const {
    infer::RequireNextTokens(model());
    if (tokenizer_ != nullptr) {
      if (!ignore_eos) config.eos_id = tokenizer_->eos_id();
      config.vocab_size = tokenizer_->vocab_size();
    }
    const Ids ids = ToIds(prompt);
    const nb::gil_scoped_release release;
    infer::Generate(model(), ids, config, [&](int32_t id) {
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C
      return on_token(id);
    });
  }

  const model::ModelConfig& config() const { return model().config(); }

  const data::Tokenizer& RequireTokenizer() const {
    HL_CHECK_AS(ExitCode::kUsage, tokenizer_ != nullptr, path(),
                " has no tokenizer. Pass ids instead of text, or load it with `tokenizer`.");
    return *tokenizer_;
  }

 private:
  infer::LoadedModel loaded_;
  SharedTokenizer tokenizer_;
};

void DeclareScores(nb::class_<Model>& model) {
  model.def(
      "score",
      [](const Model& self, const std::vector<TextOrIds>& inputs, int64_t piece,
         int64_t batch_tokens) {
        nb::list arrays;
        for (std::vector<float>& scores :
             self.Score(inputs, {.piece = piece, .batch_tokens = batch_tokens}))
          arrays.append(ToNumpy(std::move(scores)));
        return arrays;
      },
      "inputs"_a, nb::kw_only(), "piece"_a = eval::ScoreConfig().piece,
      "batch_tokens"_a = eval::ScoreConfig().batch_tokens,
      nb::sig("def score(self, inputs: collections.abc.Sequence[str | "
              "collections.abc.Sequence[int]], *, piece: int = 2048, "
              "batch_tokens: int = 8192) -> list[numpy.ndarray]"),
      "Returns one array per input: ln p(ids[i+1] | ids[..i]), [N - 1] float32 for N ids. Numbers "
      "are those of `halflife score`. An input is a text, or ids.");
  model.def(
      "logits",
      [](const Model& self, const IdRows& ids) {
        const auto vocab = static_cast<size_t>(self.config().vocab_size);
        return ToNumpy(self.Logits(ids), {ids.shape(0), ids.shape(1), vocab});
      },
      "ids"_a, nb::sig("def logits(self, ids: numpy.ndarray) -> numpy.ndarray"),
      "Returns logits [B, T, vocab_size] float32 of ids [B, T] int64. Each row is one document.");
}

// Bytes that are not UTF-8 become U+FFFD.
nb::str ToStr(const std::string& text) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(decoded);
}

// Calls a callback, if there is one, and returns whether generation continues: not after False.
template <typename Value>
bool Continues(const char* name, const std::optional<nb::callable>& callback, const Value& value) {
  if (!callback) return true;
  const nb::object result = (*callback)(value);
  if (result.is(Py_False)) return false;
  if (result.is_none() || result.is(Py_True)) return true;
  const std::string type = nb::cast<std::string>(result.type().attr("__name__"));
  throw nb::type_error(Concat(name, " returned a value of type ", type,
                              ". Return False to stop, and None or True to continue.")
                           .c_str());
}

std::string GenerateText(const Model& model, const std::string& prompt,
                         const infer::GenerateConfig& config, bool ignore_eos,
                         const std::optional<nb::callable>& on_text) {
  data::StreamDecoder decoder(model.RequireTokenizer(), data::StreamDecoder::Begins::kAfterText);
  std::string text;
  const auto add = [&](const std::string& piece) {
    text += piece;
    return piece.empty() || Continues("on_text", on_text, ToStr(piece));
  };
  model.Generate(prompt, config, ignore_eos, [&](int32_t id) { return add(decoder.Push(id)); });
  add(decoder.Finish());
  return text;
}

Ids GenerateIds(const Model& model, const Ids& prompt, const infer::GenerateConfig& config,
                bool ignore_eos, const std::optional<nb::callable>& on_token) {
  Ids ids;
  model.Generate(prompt, config, ignore_eos, [&](int32_t id) {
    ids.push_back(id);
    return Continues("on_token", on_token, id);
  });
  return ids;
}

infer::GenerateConfig ConfigOf(int64_t max_tokens, double temperature, int top_k, double top_p,
                               uint64_t seed) {
  return {.max_tokens = max_tokens,
          .sampler = {.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed}};
}

#define HL_SAMPLING_ARGUMENTS                                                                 \
  nb::kw_only(), "max_tokens"_a = 200, "temperature"_a = 1.0, "top_k"_a = 0, "top_p"_a = 1.0, \
                 "seed"_a = 1, "ignore_eos"_a = false
#define HL_SAMPLING_SIGNATURE                                                         \
  "*, max_tokens: int = 200, temperature: float = 1.0, top_k: int = 0, top_p: float " \
  "= 1.0, seed: int = 1, ignore_eos: bool = False, "

void DeclareGeneration(nb::class_<Model>& model) {
  model.def(
      "generate",
      [](const Model& self, const std::string& prompt, int64_t max_tokens, double temperature,
         int top_k, double top_p, uint64_t seed, bool ignore_eos,
         const std::optional<nb::callable>& on_text) {
        return ToStr(GenerateText(self, prompt,
                                  ConfigOf(max_tokens, temperature, top_k, top_p, seed), ignore_eos,
                                  on_text));
      },
      "prompt"_a, HL_SAMPLING_ARGUMENTS, "on_text"_a = nb::none(),
      nb::sig("def generate(self, prompt: str, " HL_SAMPLING_SIGNATURE
              "on_text: collections.abc.Callable[[str], bool | None] | None = None) -> str"),
      "Returns the text after a prompt: that of `halflife generate` with the same options. "
      "temperature 0 takes the most likely token. on_text receives each new piece of text. "
      "Generation stops if it returns False.");
  model.def(
      "generate_ids",
      [](const Model& self, const Ids& prompt, int64_t max_tokens, double temperature, int top_k,
         double top_p, uint64_t seed, bool ignore_eos,
         const std::optional<nb::callable>& on_token) {
        return ToNumpy(GenerateIds(self, prompt,
                                   ConfigOf(max_tokens, temperature, top_k, top_p, seed),
                                   ignore_eos, on_token));
      },
      "prompt"_a, HL_SAMPLING_ARGUMENTS, "on_token"_a = nb::none(),
      nb::sig(
          "def generate_ids(self, prompt: collections.abc.Sequence[int], " HL_SAMPLING_SIGNATURE
          "on_token: collections.abc.Callable[[int], bool | None] | None = None) -> numpy.ndarray"),
      "Like generate, from ids to ids, [N] int32. It needs no tokenizer. on_token receives each "
      "new id. Generation stops if it returns False.");
}
#undef HL_SAMPLING_ARGUMENTS
#undef HL_SAMPLING_SIGNATURE

}  // namespace

void DeclareModel(nb::module_& module) {
  nb::class_<Model> model(module, "Model", "A trained model and its tokenizer.");
  model.def_prop_ro("path", &Model::path, "The folder that was loaded.")
      .def_prop_ro("step", &Model::step, "The step of the checkpoint; 0 for imported models.")
      .def_prop_ro("tokenizer", &Model::tokenizer, "None if the model has no tokenizer.")
      .def_prop_ro(
          "vocab_size", [](const Model& self) { return self.config().vocab_size; },
          "The number of ids that the model knows; at least that of its tokenizer.")
      .def_prop_ro(
          "max_positions", [](const Model& self) { return self.model().max_positions(); },
          "The longest row in tokens; 0 if it is unlimited.")
      .def_prop_ro(
          "num_parameters",
          [](const Model& self) { return self.model().CountParameters().total(); },
          "The number of parameters.")
      .def_prop_ro(
          "config",
          [](const Model& self) {
            return nb::module_::import_("json").attr("loads")(model::ToJson(self.config()));
          },
          nb::sig("def config(self) -> dict"), "The configuration, as checkpoints store it.");
  DeclareScores(model);
  DeclareGeneration(model);
  module.def(
      "load",
      [](const std::filesystem::path& path, const std::filesystem::path& tokenizer,
         const std::string& device, const std::string& precision, int threads) {
        return std::make_unique<Model>(path, tokenizer.string(), device, precision, threads);
      },
      "path"_a, nb::kw_only(), "tokenizer"_a = "", "device"_a = "auto", "precision"_a = "fp32",
      "threads"_a = 0,
      "Loads a run (its newest step; 'RUN@STEP' and 'RUN@best' select others), the folder of a "
      "step, or a Hugging Face folder.\n\n"
      "tokenizer: as in load_tokenizer; '' is the model's own.\n"
      "device: 'auto' (a GPU if there is one), 'cpu' or 'cuda'.\n"
      "precision: of the matrix products, 'fp32' or 'bf16'.\n"
      "threads: CPU threads of the process; 0 leaves their number as it is.");
}

}  // namespace halflife::python
