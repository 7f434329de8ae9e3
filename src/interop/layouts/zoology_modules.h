// The modules of Zoology's small models, as their configuration holds them: an import path and what
// the constructor is called with. One entry of a table in zoology_modules.cc for each class.
//
//   const ZoologyModule module = ZoologyMixerOf(*reader.Member("sequence_mixer"), /*layer=*/1);
//   const model::MixerConfig mixer = ReadZoologyMixer(module, /*layer=*/1, reader);
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "interop/config_reader.h"
#include "interop/placement.h"
#include "model/config/model_config.h"

namespace halflife::interop {

struct ZoologyModule {
  std::string class_name;  // the last piece of the import path; empty: no module is described
  std::shared_ptr<const nlohmann::json> kwargs;  // an object where there is a class
  bool in_hybrid = false;                        // its tensors lie one level deeper
};

// The mixer of a layer: the module itself, or that of the layer in a Hybrid's list, which begins
// anew where it ends.
ZoologyModule ZoologyMixerOf(const nlohmann::json& sequence_mixer, int64_t layer);
// After so many layers the mixers repeat; at most `num_layers`.
int64_t ZoologyPeriod(const nlohmann::json& sequence_mixer, int64_t num_layers);

// What the module's class cannot be here is a problem in `reader`, or Error kData.
model::MixerConfig ReadZoologyMixer(const ZoologyModule& module, int64_t layer,
                                    ConfigReader& reader);
// Mamba with the kwargs of a module of whatever name.
model::MixerConfig ReadZoologyMamba(const nlohmann::json& sequence_mixer, ConfigReader& reader);
model::ChannelMixerConfig ReadZoologyStateMixer(const nlohmann::json& state_mixer,
                                                int64_t model_dim, ConfigReader& reader);

// What the mixer's class calls the parameter, below the names of the layer and the module.
std::string ZoologyMixerName(const ZoologyModule& mixer, const std::string& parameter);
Placement ZoologyPlacement(const ZoologyModule& mixer, const std::string& parameter);

}  // namespace halflife::interop
