#include "interop/hf_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/log.h"
#include "model/language_model.h"

namespace halflife::interop {
namespace {

constexpr int64_t kDefaultPositions = 2048;
constexpr int64_t kPieceElements = 1 << 20;

std::vector<dist::ParamSpec> SpecsOf(const model::ModelConfig& config) {
  return model::LanguageModel(config).parameters().specs();
}

}  // namespace

HfModel HfModel::Open(const std::filesystem::path& path) {
  HfModel model(HfFolder::Open(path));
  const std::string where = (path / "config.json").string();
  ConfigReader reader(model.folder_.config(), where);
  model.layout_ = &LayoutOf(reader.String("model_type", ""), where);
  model.max_positions_ = reader.Int("max_position_embeddings", kDefaultPositions);
  model.config_ = model.layout_->ReadConfig(reader);
  reader.Check();
  // Each layer has tensors of its own: a number from nowhere must not become memory.
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

bool HfModel::HeadEqualsEmbedding(const std::string& head, const std::string& embedding) const {
  const HfTensor &a = *folder_.Find(head), &b = *folder_.Find(embedding);
  if (a.shape != b.shape) return false;
  std::vector<float> left, right;
  for (int64_t begin = 0; begin < a.count(); begin += kPieceElements) {
    const int64_t end = std::min(begin + kPieceElements, a.count());
    left.resize(static_cast<size_t>(end - begin));
    right.resize(left.size());
    folder_.Read(a, begin, end, left.data());
    folder_.Read(b, begin, end, right.data());
    if (left != right) return false;
  }
  return true;
}

void HfModel::Match(ConfigReader& reader) {
  const std::string head = layout_->TensorName("lm_head.weight", &reader),
                    embedding = layout_->TensorName("embeddings.weight", &reader);
  std::set<std::string> spare;
  for (const auto& [name, tensor] : folder_.tensors()) {
    if (!layout_->IsBuffer(name)) spare.insert(name);
  }
  if (config_.head.tied && spare.contains(head) && spare.contains(embedding)) {
    if (HeadEqualsEmbedding(head, embedding)) {
      spare.erase(head);
    } else {
      HL_WARN("interop", where(), ": tie_word_embeddings is true, but ", head, " differs from ",
              embedding, "; read as an untied model");
      config_.head.tied = false;
    }
  }
  std::string problems;
  for (const dist::ParamSpec& spec : SpecsOf(config_)) {
    const std::string name = layout_->TensorName(spec.name, &reader);
    const HfTensor* tensor = folder_.Find(name);
    spare.erase(name);
    if (tensor == nullptr) {
      problems += Concat("\n  missing: ", name, " ", ckpt::ShapeText(spec.shape));
    } else if (tensor->shape != spec.shape) {
      problems += Concat("\n  ", name, ": file ", ckpt::ShapeText(tensor->shape), ", model ",
                         ckpt::ShapeText(spec.shape));
    }
    weights_.push_back({spec.name, spec.shape});
    tensor_of_[spec.name] = tensor;
  }
  for (const std::string& name : spare)
    problems += Concat("\n  unexpected: ", name, " ", ckpt::ShapeText(folder_.Find(name)->shape));
  HL_CHECK_AS(ExitCode::kData, problems.empty(), "the tensors of ", where(),
              " are not those of its config.json:", problems);
}

void HfModel::ReadRange(const std::string& name, int64_t begin, int64_t end, float* out) const {
  const auto found = tensor_of_.find(name);
  HL_CHECK(found != tensor_of_.end(), "no weight ", name, " in ", where());
  folder_.Read(*found->second, begin, end, out);
}

}  // namespace halflife::interop
