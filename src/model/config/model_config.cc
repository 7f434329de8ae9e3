#include "model/config/model_config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace halflife::model {
namespace {

// Returns the group that sets `part` of `layer`, or null if no group does.
template <typename Part>
const LayerGroup* GroupOf(const ModelConfig& config, int64_t layer,
                          std::optional<Part> LayerGroup::*part) {
  for (const LayerGroup& group : config.hybrid)
    if ((group.*part) && group.Holds(layer)) return &group;
  return nullptr;
}

std::string NameOf(const LayerGroup& group) {
  if (group.every > 0) return Concat("every ", group.every, " from ", group.first);
  return "layers " + Join(group.layers, ", ");
}

void CheckGroup(const ModelConfig& config, const LayerGroup& group, ProblemList& problems) {
  const bool pattern = group.every > 0;
  problems.Require(group.every >= 0 && group.first >= 0, "a hybrid group has every ", group.every,
                   " and first ", group.first, ". Use numbers that are not negative.");
  problems.Require(pattern || !group.layers.empty(),
                   "a hybrid group names no layers. Use `layers: [1, 3]` or `every: 2 first: 1`.");
  problems.Require(!pattern || group.layers.empty(),
                   "a hybrid group has both layers and every. Use only one of them.");
  problems.Require(!pattern || group.first < config.num_layers, "a hybrid group of every ",
                   group.every, " from ", group.first, " contains none of the ", config.num_layers,
                   " layers. Use a first of 0 to ", config.num_layers - 1, ".");
  problems.Require(pattern || group.first == 0, "the hybrid group of ", NameOf(group),
                   " has first ", group.first, ", which is only used with every. Remove it.");
  problems.Require(
      group.mixer || group.channel_mixer || group.block, "the hybrid group of ", NameOf(group),
      " names no mixer, channel mixer or block. Add one, for example mixer { softmax {} }.");
  for (const int64_t layer : group.layers)
    problems.Require(layer >= 0 && layer < config.num_layers, "hybrid layer ", layer,
                     " does not exist. Use 0 to ", config.num_layers - 1, ".");
}

// Reports layers whose `part` is set by two groups.
template <typename Part>
void CheckTwice(const ModelConfig& config, std::optional<Part> LayerGroup::*part,
                ProblemList& problems) {
  std::set<int64_t> seen;
  for (const LayerGroup& group : config.hybrid) {
    if (!(group.*part)) continue;
    for (const int64_t layer : group.Numbers(config.num_layers))
      problems.Require(seen.insert(layer).second, "hybrid layer ", layer,
                       " is named twice. Name it in one group only.");
  }
}

// These limits exceed every real model. Within them, counts of parameters and bytes do not
// overflow.
constexpr int64_t kMaxDims = int64_t{1} << 20, kMaxLayers = int64_t{1} << 14;

std::vector<std::string> SizeProblems(const ModelConfig& config) {
  ProblemList problems("model");
  const auto require_size = [&](const char* name, int64_t size, int64_t most) {
    problems.Require(size >= 1, name, " is ", size, ". Use at least 1.");
    problems.Require(size <= most, name, " is ", size, ". Use at most ", most, ".");
  };
  require_size("vocab_size", config.vocab_size, INT32_MAX);
  require_size("model_dim", config.model_dim, kMaxDims);
  require_size("num_layers", config.num_layers, kMaxLayers);
  problems.Require(config.dropout >= 0 && config.dropout < 1, "dropout is ", config.dropout,
                   ". Use a number in [0, 1).");
  problems.Require(config.initializer_range > 0 && std::isfinite(config.initializer_range),
                   "initializer_range is ", config.initializer_range,
                   ". Use a number above 0 (0.02 is usual).");
  problems.Require(config.initializer == "normal" || config.initializer == "fan_in",
                   "initializer is '", config.initializer, "'. Use normal or fan_in.");
  for (const LayerGroup& group : config.hybrid) CheckGroup(config, group, problems);
  if (config.num_layers <= kMaxLayers) {
    CheckTwice(config, &LayerGroup::mixer, problems);
    CheckTwice(config, &LayerGroup::channel_mixer, problems);
    CheckTwice(config, &LayerGroup::block, problems);
  }
  return problems.lines();
}

// Sets all options that derive from others. Returns one line per problem.
std::vector<std::string> ResolveParts(ModelConfig& config) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& where, const std::vector<std::string>& more) {
    for (const std::string& line : more) lines.push_back(where + line);
  };
  const ModelSizes sizes = config.sizes();
  VisitParts(config, {.group =
                          [&](const char* name, PartOptions& options) {
                            ProblemList problems(name);
                            const std::unique_ptr<PartOptions> usual = options.Clone();
                            CheckLimits(options, *usual, problems);
                            if (problems.lines().empty()) options.Resolve(sizes, problems);
                            add("", problems.lines());
                          },
                      .part = [&](PartConfig& part) { add("", part.Resolve(sizes)); }});
  if (config.final_norm) add("final: ", config.final_norm->Resolve(sizes));
  for (LayerGroup& group : config.hybrid) {
    if (group.mixer) add("hybrid: ", group.mixer->Resolve(sizes));
    if (group.channel_mixer) add("hybrid: ", group.channel_mixer->Resolve(sizes));
    if (group.block) add("hybrid: ", group.block->Resolve(sizes));
  }
  return lines;
}

}  // namespace

bool LayerGroup::Holds(int64_t layer) const {
  if (every > 0) return layer >= first && (layer - first) % every == 0;
  return std::ranges::count(layers, layer) > 0;
}

std::vector<int64_t> LayerGroup::Numbers(int64_t num_layers) const {
  std::vector<int64_t> numbers = layers;
  // Groups that CheckGroup rejects are counted here as well, so `every` and `first` can have any
  // value.
  const int64_t step = std::min(every, num_layers);
  for (int64_t layer = std::max<int64_t>(first, 0); step > 0 && layer < num_layers; layer += step)
    numbers.push_back(layer);
  return numbers;
}

const MixerConfig& ModelConfig::mixer_of(int64_t layer) const {
  const LayerGroup* group = GroupOf(*this, layer, &LayerGroup::mixer);
  return group == nullptr ? mixer : *group->mixer;
}

std::string ModelConfig::NameOfMixer(int64_t layer) const {
  return Concat("the mixer of layer ", layer, ", ", mixer_of(layer).name(), ",");
}

const ChannelMixerConfig& ModelConfig::channel_mixer_of(int64_t layer) const {
  const LayerGroup* group = GroupOf(*this, layer, &LayerGroup::channel_mixer);
  return group == nullptr ? channel_mixer : *group->channel_mixer;
}

const BlockConfig& ModelConfig::block_of(int64_t layer) const {
  const LayerGroup* group = GroupOf(*this, layer, &LayerGroup::block);
  return group == nullptr ? block : *group->block;
}

void VisitParts(ModelConfig& config, const PartVisitor& visitor) {
  visitor.group("embedding", config.embedding);
  visitor.part(config.positions);
  visitor.part(config.block);
  visitor.part(config.norm);
  visitor.part(config.mixer);
  visitor.part(config.channel_mixer);
  visitor.group("head", config.head);
  visitor.part(config.objective);
}

namespace {

void VisitMixersIn(PartConfig& part, const std::function<void(PartConfig& mixer)>& visit) {
  if (&part.kind() == &kMixers) visit(part);
  for (PartConfig* inner : part.options().Parts()) VisitMixersIn(*inner, visit);
  for (const OptionList& list : part.options().Lists())
    for (size_t i = 0; i < list.size(); ++i)
      for (PartConfig* inner : list.at(i).Parts()) VisitMixersIn(*inner, visit);
}

}  // namespace

void VisitMixers(ModelConfig& config, const std::function<void(PartConfig& mixer)>& visit) {
  VisitMixersIn(config.mixer, visit);
  for (LayerGroup& group : config.hybrid)
    if (group.mixer) VisitMixersIn(*group.mixer, visit);
}

ModelConfig Resolved(ModelConfig config) {
  ResolveParts(config);
  return config;
}

std::string MixerSummary(const ModelConfig& config) {
  std::map<std::string, int64_t> others;
  int64_t num_others = 0;
  for (const LayerGroup& group : config.hybrid) {
    if (!group.mixer || group.mixer->name() == config.mixer.name()) continue;
    const auto count = static_cast<int64_t>(group.Numbers(config.num_layers).size());
    num_others += count;
    others[group.mixer->name()] += count;
  }
  std::string text = num_others < config.num_layers ? config.mixer.name() : std::string();
  for (const auto& [name, count] : others) {
    text += Concat(text.empty() ? "" : " + ", name, " in ", count, " of ", config.num_layers,
                   " layers");
  }
  return text;
}

std::vector<std::string> Problems(const ModelConfig& config) {
  std::vector<std::string> lines = SizeProblems(config);
  if (config.model_dim < 1 || config.model_dim > kMaxDims) return lines;
  ModelConfig copy = config;
  for (const std::string& line : ResolveParts(copy)) lines.push_back(line);
  return lines;
}

}  // namespace halflife::model
