#include "cli/model_source.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "ckpt/merged_weights.h"
#include "cli/doctor/checks.h"
#include "core/concat.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/json_text.h"
#include "core/log.h"
#include "data/tokenizer_folder.h"
#include "interop/hf_model.h"
#include "interop/hf_tokenizer.h"
#include "train/device.h"

namespace halflife::cli {

at::ScalarType ComputeTypeOn(const Device& device, const std::string& precision) {
  const bool bf16 = precision == "bf16" || (precision == "auto" && device.is_cuda());
  return bf16 ? at::kBFloat16 : at::kFloat;
}

infer::Placement PlacementOf(const ComputeOptions& compute, int local_rank) {
  const Device device = train::ChooseDevice(compute.device, local_rank, "--device");
  doctor::RequireUsableGpu(device);
  train::PrepareDevice(device);
  const infer::Placement placement = {.device = train::ToTorch(device),
                                      .compute_dtype = ComputeTypeOn(device, compute.precision)};
  if (compute.precision == "auto" && device.is_cuda())
    HL_INFO("infer", "computing in bf16 on the GPU. Use --precision fp32 for fp32.");
  return placement;
}

infer::LoadedModel LoadAnyModel(const std::filesystem::path& model, const std::string& tokenizer,
                                const infer::Placement& placement, const std::string& weights) {
  if (!interop::HfFolder::IsOne(model))
    return infer::LoadModel(model, tokenizer, placement, weights);
  HL_CHECK_AS(ExitCode::kUsage, weights == "main", model.string(),
              " is a folder of transformers, which has no average of the weights. Use --weights "
              "main.");
  const interop::HfModel source = interop::HfModel::Open(model);
  infer::LoadedModel loaded;
  loaded.path = model;
  loaded.state.data.seq_len = static_cast<uint32_t>(source.max_positions());
  loaded.model = infer::LoadWeights(source.config(), source, placement);
  loaded.tokenizer =
      tokenizer.empty() ? interop::LoadHfTokenizer(model) : data::OpenTokenizer(tokenizer);
  HL_INFO("infer", "loaded ", model.string(), " (", source.layout().class_name(), ")");
  return loaded;
}

std::unique_ptr<ckpt::WeightSource> OpenWeights(const std::filesystem::path& model) {
  if (interop::HfFolder::IsOne(model))
    return std::make_unique<interop::HfModel>(interop::HfModel::Open(model));
  return ckpt::WeightsOfStep(ckpt::StepReader::Open(ckpt::FindStep(model)));
}

SharedFact WeightsFact(const infer::LoadedModel& loaded) {
  StreamHash hash;
  const std::string config = model::ToJson(loaded.model->config());
  hash.Update(config.data(), config.size());
  const model::ParameterSet& parameters = loaded.model->parameters();
  for (int i = 0; i < parameters.size(); ++i) {
    const at::Tensor tensor = parameters.tensor(i).to(at::kCPU).contiguous();
    hash.Update(tensor.const_data_ptr(), tensor.nbytes());
  }
  const std::string digest = ToHex(hash.Digest());
  return {"--model", digest, Concat(loaded.path.string(), " (weights ", digest, ")")};
}

data::ChatTemplate ChatTemplateOf(const std::string& name, const data::Tokenizer& tokenizer) {
  if (!name.empty()) return data::RequireChatTemplate(name);
  const auto detected = data::DetectChatTemplate(tokenizer.chat_templates());
  if (!detected && !tokenizer.chat_templates().empty())
    HL_WARN("chat",
            "the tokenizer has a chat template that halflife did not write, and halflife "
            "runs no Jinja: chats use chatml. Name the right template with --chat-template.");
  return detected ? *detected : data::RequireChatTemplate("chatml");
}

std::unique_ptr<data::Tokenizer> OpenTokenizer(const std::filesystem::path& model) {
  if (interop::HfFolder::IsOne(model)) return interop::LoadHfTokenizer(model);
  return infer::LoadTokenizerOfStep(ckpt::FindStep(model), {});
}

void RequireAlike(dist::RankContext& context, const std::vector<SharedFact>& facts) {
  nlohmann::ordered_json own = nlohmann::ordered_json::array();
  for (const SharedFact& fact : facts) own.push_back({fact.value, fact.words});
  std::vector<nlohmann::json> ranks;
  for (const std::string& other :
       dist::AllGatherBytes(context.control(), JsonText(own), {"shared_facts", 0})) {
    ranks.push_back(nlohmann::json::parse(other));
  }
  std::vector<std::string> differences;
  for (size_t i = 0; i < facts.size(); ++i) {
    const auto odd = std::find_if(ranks.begin(), ranks.end(), [&](const nlohmann::json& other) {
      return other[i][0] != ranks[0][i][0];
    });
    if (odd == ranks.end()) continue;
    differences.push_back(Concat(facts[i].name, " is ", ranks[0][i][1].get<std::string>(),
                                 " on rank 0, ", (*odd)[i][1].get<std::string>(), " on rank ",
                                 odd - ranks.begin()));
  }
  HL_CHECK_AS(ExitCode::kUsage, differences.empty(),
              "the ranks disagree: ", Join(differences, "; "), ". Give every rank the same.");
}

}  // namespace halflife::cli
