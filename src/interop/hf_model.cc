#include "interop/hf_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "ckpt/step_dir.h"
#include "ckpt/step_writer.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "core/versions.h"
#include "interop/hf_tokenizer.h"
#include "model/language_model.h"

namespace halflife::interop {
namespace {

constexpr int64_t kComparedElements = 1 << 20;
// Allowed relative difference between the values of a buffer and the expected ones, because buffers
// may be stored in bf16.
constexpr float kBufferTolerance = 1.0f / 256;

// Describes how the pieces of a tensor, null if they are missing, differ from its shape. Empty if
// they do not.
std::string ShapeProblem(const std::vector<std::string>& names,
                         const std::vector<const HfTensor*>& pieces,
                         const std::vector<int64_t>& shape) {
  std::string missing, found;
  int64_t num_rows = 0;
  bool fit = true;  // in all dimensions but the first
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i] == nullptr) {
      missing += Concat("\n  missing: ", names[i]);
      if (pieces.size() == 1) missing += " " + ckpt::ShapeText(shape);
      continue;
    }
    const std::vector<int64_t>& piece = pieces[i]->shape;
    found += (found.empty() ? "" : " + ") + ckpt::ShapeText(piece);
    fit = fit && piece.size() == shape.size() && !piece.empty() &&
          std::equal(piece.begin() + 1, piece.end(), shape.begin() + 1);
    if (!piece.empty()) num_rows += piece[0];
  }
  if (!missing.empty() || (fit && num_rows == shape[0])) return missing;
  return Concat("\n  ", Join(names, " + "), ": file ", found, ", model ", ckpt::ShapeText(shape));
}

}  // namespace

HfModel HfModel::Open(const std::filesystem::path& path, const std::string& layout) {
  HfModel model(HfFolder::Open(path));
  const std::string file = (path / "config.json").string();
  const std::string model_type =
      ConfigReader(model.folder_.config(), file).String("model_type", "");
  model.layout_ = &LayoutOf(layout.empty() ? model_type : layout, file);
  const std::string member = model.layout_->config_member();
  HL_CHECK_AS(ExitCode::kData, member.empty() || model.folder_.config().contains(member), file,
              " has no ", member, ", the object with the sizes of a ", model_type,
              " model. Add it, or set model_type to that of the text model.");
  const std::string where = member.empty() ? file : file + ", " + member;
  ConfigReader reader(member.empty() ? model.folder_.config() : model.folder_.config().at(member),
                      where);
  const Layout::PositionsKey positions = model.layout_->positions_key();
  const int64_t usual = positions.other_name == nullptr
                            ? positions.usual
                            : reader.Int(positions.other_name, positions.usual, /*min=*/0);
  model.max_positions_ = reader.Int(positions.name, usual, /*min=*/0);
  // The class has no position table.
  if (model.max_positions_ == 0) model.max_positions_ = positions.usual;
  model.config_ = model.layout_->ReadConfig(reader);
  // 0 is legal in the classes, and has no effect on a model whose weights are read.
  if (model.config_.initializer_range == 0)
    model.config_.initializer_range = model::ModelConfig().initializer_range;
  reader.Check();
  // The class of the whole folder ties the head if the outer key says so.
  constexpr const char* kTied = "tie_word_embeddings";
  const nlohmann::json& outer = model.folder_.config();
  if (!member.empty() && outer.contains(kTied) && outer.at(kTied) == true)
    model.config_.head.tied = true;
  // Every layer has its own tensors, so this bounds the memory that a corrupt num_layers can
  // allocate.
  HL_CHECK_AS(ExitCode::kData,
              model.config_.num_layers <= static_cast<int64_t>(model.folder_.tensors().size()),
              where, " has ", model.config_.num_layers, " layers, but the folder holds only ",
              model.folder_.tensors().size(), " tensors");
  std::string problems;
  for (const std::string& problem : model::Problems(model.config_)) problems += "\n  " + problem;
  HL_CHECK_AS(ExitCode::kData, problems.empty(), where,
              " describes an impossible model:", problems);
  model.Match(reader);
  return model;
}

bool HfModel::AreEqual(const std::string& one, const std::string& other) const {
  const HfTensor &a = *folder_.Find(one), &b = *folder_.Find(other);
  if (a.shape != b.shape) return false;
  std::vector<float> left, right;
  for (int64_t begin = 0; begin < a.count(); begin += kComparedElements) {
    const int64_t end = std::min(begin + kComparedElements, a.count());
    left.resize(static_cast<size_t>(end - begin));
    right.resize(left.size());
    folder_.Read(a, begin, end, left.data());
    folder_.Read(b, begin, end, right.data());
    if (left != right) return false;
  }
  return true;
}

std::string HfModel::BufferProblem(const HfTensor& tensor, const std::string& name,
                                   ConfigReader& reader) const {
  const std::vector<float> expected = layout_->BufferValues(name, reader);
  if (expected.empty()) return "";
  if (tensor.count() != static_cast<int64_t>(expected.size()))
    return Concat(name, ": the file has ", tensor.count(), " elements, its config.json implies ",
                  expected.size());
  std::vector<float> values(expected.size());
  folder_.Read(tensor, 0, tensor.count(), values.data());
  for (size_t i = 0; i < values.size(); ++i)
    if (!(std::abs(values[i] - expected[i]) <= kBufferTolerance * std::abs(expected[i])))
      return Concat(name, ": element ", i, " is ", values[i], ", its config.json implies ",
                    expected[i], ". The folder was written by another version of the class.");
  return "";
}

std::string HfModel::StoredName(const std::string& name) const {
  std::vector<std::string> names = layout_->OtherNames(name);
  names.insert(names.begin(), name);
  const std::string prefix = layout_->OptionalPrefix();
  const auto first = folder_.tensors().lower_bound(prefix);
  const bool written = first != folder_.tensors().end() && first->first.starts_with(prefix);
  for (std::string& own : names) {
    if (folder_.Find(own) != nullptr) return own;
    if (!written && own.starts_with(prefix)) own.erase(0, prefix.size());
    if (folder_.Find(own) != nullptr) return own;
  }
  return names.front();
}

std::vector<std::string> HfModel::StoredPieces(const std::string& name) const {
  std::vector<std::string> names;
  const std::string whole = StoredName(name);
  if (folder_.Find(whole) == nullptr)
    for (const std::string& piece : layout_->PiecesOf(name)) names.push_back(StoredName(piece));
  if (names.empty()) names.push_back(whole);
  return names;
}

void HfModel::ReadPieces(const std::vector<const HfTensor*>& pieces, int64_t begin, int64_t end,
                         float* out) const {
  for (const HfTensor* piece : pieces) {
    const int64_t count = std::clamp<int64_t>(end, 0, piece->count());
    if (begin < count) folder_.Read(*piece, begin, count, out), out += count - begin;
    begin = std::max<int64_t>(0, begin - piece->count());
    end -= piece->count();
    if (end <= 0) return;
  }
}

void HfModel::Match(ConfigReader& reader) {
  const auto stored_name = [&](const std::string& parameter) {
    return StoredName(layout_->PlaceOf(config_, parameter, &reader).name);
  };
  const std::string head = stored_name("lm_head.weight"),
                    embedding = stored_name("embeddings.weight");
  std::string problems;
  std::set<std::string> spare;
  for (const auto& [name, tensor] : folder_.tensors()) {
    if (layout_->IsBuffer(name, reader)) {
      const std::string problem = BufferProblem(tensor, name, reader);
      if (!problem.empty()) problems += "\n  " + problem;
      continue;
    }
    const std::string original = layout_->CopyOf(name);
    if (folder_.Find(original) == nullptr || !AreEqual(name, original)) spare.insert(name);
  }
  if (config_.head.tied && spare.contains(head) && spare.contains(embedding)) {
    if (AreEqual(head, embedding)) {
      spare.erase(head);
    } else {
      HL_WARN("interop", where(), ": tie_word_embeddings is true, but ", head, " differs from ",
              embedding, ". The model is read as untied.");
      config_.head.tied = false;
    }
  }
  // A tied folder may have the common tensor under the name of the head.
  const bool under_head =
      config_.head.tied && layout_->can_tie() && spare.contains(head) && !spare.contains(embedding);
  std::set<std::string> asked;
  const model::LanguageModel declared(config_);
  if (declared.max_positions() > 0) max_positions_ = declared.max_positions();
  for (const dist::ParamSpec& spec : declared.parameters().specs()) {
    const auto [name_of_class, placement] = layout_->PlaceOf(config_, spec.name, &reader);
    const std::vector<std::string> names = under_head && spec.name == "embeddings.weight"
                                               ? std::vector{head}
                                               : StoredPieces(name_of_class);
    Stored& stored = stored_[spec.name] = {{}, placement, spec.shape};
    weights_.push_back({spec.name, spec.shape});
    for (const std::string& name : names) stored.pieces.push_back(folder_.Find(name));
    if (!asked.insert(names.front()).second) continue;  // The tensor contains several parameters.
    for (const std::string& name : names) spare.erase(name);
    problems += ShapeProblem(names, stored.pieces, TensorShape(placement, spec.shape));
  }
  for (const std::string& name : spare) {
    if (layout_->IsUnused(name)) {
      unused_.push_back(name);
    } else {
      problems += Concat("\n  unexpected: ", name, " ", ckpt::ShapeText(folder_.Find(name)->shape));
    }
  }
  HL_CHECK_AS(ExitCode::kData, problems.empty(), "the tensors of ", where(),
              " do not match its config.json:", problems);
}

void HfModel::ReadRange(const std::string& name, int64_t begin, int64_t end, float* out) const {
  const auto found = stored_.find(name);
  HL_CHECK(found != stored_.end(), "no weight ", name, " in ", where());
  const Stored& stored = found->second;
  ParameterReader(stored.placement, stored.shape, [&](int64_t from, int64_t to, float* values) {
    ReadPieces(stored.pieces, from, to, values);
  })(begin, end, out);
}

namespace {

namespace fs = std::filesystem;

ckpt::StepState StepZero(const HfModel& model, const std::string& run_config_text) {
  ckpt::StepState state;
  state.run_id = RandomHex(16);
  state.run_config_text = run_config_text;
  state.model_family = model.config().mixer.name();
  state.model_config_json = model::ToJson(model::Resolved(model.config()));
  state.data.seq_len = static_cast<uint32_t>(model.max_positions());
  const BuildInfo build = GetBuildInfo();
  state.versions.halflife = build.version;
  state.versions.git_hash = build.git_hash;
  state.versions.git_dirty = build.git_dirty;
  return state;
}

}  // namespace

ImportReport ImportModel(const HfModel& model, const std::string& run_config_text,
                         const fs::path& run) {
  std::error_code error;
  HL_CHECK_AS(ExitCode::kUsage, !fs::exists(fs::symlink_status(NamedFolder(run), error)),
              run.string(), " exists already. Choose another folder with --out.");
  const std::unique_ptr<data::Tokenizer> tokenizer = LoadHfTokenizer(model.folder().path());
  HL_CHECK_AS(ExitCode::kData,
              tokenizer == nullptr || tokenizer->vocab_size() <= model.config().vocab_size,
              "the tokenizer of ", model.where(), " has ",
              tokenizer == nullptr ? 0 : tokenizer->vocab_size(), " ids, but the model has only ",
              model.config().vocab_size, ". Replace the tokenizer files of the folder, ",
              "or remove them.");
  const fs::path temporary = TemporaryPathFor(run, RandomHex(8));
  fs::create_directories(temporary / "ckpt", error);
  HL_CHECK_AS(ExitCode::kCheckpointIo, !error, "cannot create ", temporary.string(), ": ",
              error.message());
  try {
    const std::vector<dist::ParamSpec> specs =
        model::LanguageModel(model.config()).parameters().specs();
    ckpt::WriteMainWeights(temporary / "ckpt" / ckpt::StepName(0), StepZero(model, run_config_text),
                           specs,
                           [&model](const std::string& name, int64_t begin, int64_t end,
                                    float* out) { model.ReadRange(name, begin, end, out); });
    AtomicWriteFile(temporary / "config.textproto", run_config_text, ExitCode::kCheckpointIo);
    if (tokenizer != nullptr) {
      fs::create_directories(temporary / "tokenizer");
      tokenizer->Save(temporary / "tokenizer");
    }
    PublishDirectory(temporary, run, ExitCode::kCheckpointIo);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  int64_t count = 0;
  for (const ckpt::WeightInfo& weight : model.weights()) count += weight.count();
  return {.num_parameters = count, .has_tokenizer = tokenizer != nullptr};
}

}  // namespace halflife::interop
